from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dsh.capability.sandbox.service import SandboxMode
from dsh.capability.shell.rendering import parse_exit_status, render, to_value
from dsh.capability.shell.service import SandboxOutcome, ShellRunResult, StreamText


def text(*, escalation: bool = True, **facts: Any) -> str:
    result: dict[str, Any] = {
        "exit_code": 0,
        "signal": None,
        "timed_out": False,
        "aborted": False,
        "timeout_s": 1.5,
        "stdout": StreamText(""),
        "stderr": StreamText(""),
        "sandbox": None,
    }
    return render(to_value(ShellRunResult(**{**result, **facts})), escalation=escalation)


def test_a_silent_success_says_so() -> None:
    assert text() == "(no output)"


def test_output_comes_first_then_stderr_then_the_exit_code() -> None:
    shown = text(stdout=StreamText("out\n"), stderr=StreamText("err\n"), exit_code=2)
    assert shown == "out\n[stderr]\nerr\n[exit code: 2]"


def test_only_stderr() -> None:
    assert text(stderr=StreamText("err\n")) == "[stderr]\nerr"


def test_a_timeout_is_told_before_the_signal_and_also_after_a_clean_exit() -> None:
    assert text(timed_out=True, exit_code=None, signal="SIGTERM") == (
        "(no output)\n[timed out after 1500ms]\n[killed by signal: SIGTERM]"
    )
    assert text(timed_out=True) == "(no output)\n[timed out after 1500ms]"


def test_a_denial_is_told_before_the_exit_code() -> None:
    sandbox = SandboxOutcome("read-only", denied=True)
    lines = text(stderr=StreamText("x: refused"), exit_code=1, sandbox=sandbox).splitlines()
    assert lines[2] == "[sandbox: file access denied under read-only mode]"
    assert lines[3].startswith("[sandbox: ")
    assert "sandbox_permissions" in lines[3]
    assert lines[-1] == "[exit code: 1]"


def test_the_way_to_a_wider_mode_is_told_only_where_there_is_one() -> None:
    sandbox = SandboxOutcome("read-only", denied=True)
    assert "sandbox_permissions" not in text(exit_code=1, sandbox=sandbox, escalation=False)


@pytest.mark.parametrize("mode", ["read-only", "danger-full-access"])
def test_without_a_denial_the_sandbox_is_not_mentioned(mode: SandboxMode) -> None:
    assert "sandbox" not in text(exit_code=1, sandbox=SandboxOutcome(mode, denied=False))


def test_a_cut_stream_names_its_file_right_after_it() -> None:
    shown = text(
        stdout=StreamText("head tail\n", True, Path("/tmp/x/full.txt")),
        stderr=StreamText("err", True),
    )
    assert shown.splitlines() == [
        "head tail",
        "[output truncated; full output: /tmp/x/full.txt]",
        "[stderr]",
        "err",
        "[output truncated; full output: (unavailable)]",
    ]


@pytest.mark.parametrize(
    ("shown", "status"),
    [
        ("out\n[exit code: 2]", {"exitCode": 2}),
        ("out\n[killed by signal: SIGKILL]\n", {"signal": "SIGKILL"}),
        ("[exit code: 2]\nout", {}),
        ("out [exit code: 2]", {}),
        ("", {}),
    ],
)
def test_only_the_last_line_tells_the_status(shown: str, status: dict[str, object]) -> None:
    assert parse_exit_status(shown) == status


def test_the_value_leaves_out_what_is_not_there() -> None:
    result = ShellRunResult(
        exit_code=0, signal=None, timed_out=False, aborted=False, timeout_s=2.0,
        stdout=StreamText("a"), stderr=StreamText(""),
        sandbox=SandboxOutcome("workspace-write", False, "partial"),
    )  # fmt: skip
    assert to_value(result) == {
        "kind": "foreground",
        "exitCode": 0,
        "signal": None,
        "timedOut": False,
        "aborted": False,
        "timeoutMs": 2000,
        "stdout": {"text": "a", "truncated": False},
        "stderr": {"text": "", "truncated": False},
        "sandbox": {"mode": "workspace-write", "denied": False, "enforcement": "partial"},
    }
