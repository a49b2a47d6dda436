"""A whole run of the product, with a collector beside it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from telemetry_parts import Receiver, receiving

from dsh.testing.provider import start_provider

PATCH = """
- id: session-telemetry-otel
  merge:
    traces: {enabled: true}
"""


def run(tmp_path: Path, url: str, **variables: str) -> subprocess.CompletedProcess[str]:
    patch = tmp_path / "traces.yml"
    patch.write_text(PATCH)
    with start_provider({"replies": [{"text": "done", "repeat": 9}]}) as provider:
        env = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        env |= {
            "DSH_HOME": str(tmp_path / "home"),
            "DEEPSEEK_API_KEY": "sk-telemetry-secret",
            "DEEPSEEK_BASE_URL": provider.url,
            "DSH_TELEMETRY_OTLP_URL": url,
            **variables,
        }
        return subprocess.run(
            [sys.executable, "-m", "dsh", "--profile", "headless", "--patch", str(patch), "hello"],
            env=env,
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )


def span_names(receiver: Receiver) -> set[str]:
    spans: list[Any] = [
        span
        for request in receiver.traces()
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    return {span.name for span in spans}


def test_a_full_run_sends_its_log_and_its_spans_and_no_key(tmp_path: Path) -> None:
    with receiving() as receiver:
        done = run(tmp_path, receiver.url, DSH_TELEMETRY_MODE="FULL")
        assert (done.returncode, done.stdout.strip()) == (0, "done"), done.stderr
        assert {"session", "invoke_agent", "step"} < span_names(receiver)
        assert any(name.startswith("chat ") for name in span_names(receiver))
        sent = receiver.bodies()
    assert b"turn/end" in sent
    assert b"sk-telemetry-secret" not in sent


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"DSH_TELEMETRY_MODE": ""},
        {"DSH_TELEMETRY_MODE": "DISABLED"},
        {"DSH_TELEMETRY_MODE": "FULL", "DSH_TELEMETRY_DISABLED": "0"},
    ],
    ids=str,
)
def test_nothing_is_sent_unless_it_is_asked_for(tmp_path: Path, variables: dict[str, str]) -> None:
    with receiving() as receiver:
        done = run(tmp_path, receiver.url, **variables)
        assert (done.returncode, done.stdout.strip()) == (0, "done"), done.stderr
        assert receiver.requests == []
    assert not (tmp_path / "home" / ".anonymous-user-id").exists()


@pytest.mark.parametrize(
    ("mode", "problem"), [("FULL", "set DSH_TELEMETRY_OTLP_URL"), ("on", "'FULL', 'FEEDBACK_ONLY'")]
)
def test_a_mode_that_cannot_work_is_told_at_the_start(
    tmp_path: Path, mode: str, problem: str
) -> None:
    done = run(tmp_path, "", DSH_TELEMETRY_MODE=mode)
    assert done.returncode == 1
    assert "session-telemetry-otel" in done.stderr
    assert problem in done.stderr
