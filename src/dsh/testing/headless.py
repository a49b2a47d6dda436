"""Runs a whole tree in a process of its own, with a scripted model: an agent does one task."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["HeadlessRun", "run_headless"]

_TIMEOUT_S = 60.0


class HeadlessRun(NamedTuple):
    """What a finished run did."""

    code: int
    """0 when the agent completed its turn and the script was met."""
    out: str
    """The agent's last words."""
    err: str
    log: list[dict[str, Any]]
    """The session's events, in order; empty when there was no session."""


def run_headless(
    script: Mapping[str, Any],
    *,
    patches: Sequence[Path] = (),
    task: str = "do it",
    timeout_s: float = _TIMEOUT_S,
) -> HeadlessRun:
    """Let an agent do one task in the profile ``headless``, with a model that plays a script.

    The home and the working folder are empty ones. The child imports what the caller can.

    Args:
        script: As in ``docs/rehearsal.md``; an expectation that a tool result does not meet
            ends the run with another code than 0.
        patches: Patch files, or bundles that are lists, on top of the profile.
        task: What the agent is asked.
        timeout_s: When the child is killed.

    Raises:
        subprocess.TimeoutExpired: it took longer.
    """
    with tempfile.TemporaryDirectory(prefix="dsh-run-") as name:
        folder = Path(name).resolve()
        workspace = folder / "workspace"
        workspace.mkdir()
        files = [_model(script, folder), *patches]
        words = [word for file in files for word in ("--patch", str(file.absolute()))]
        kept = {key: os.environ[key] for key in ("PATH", "LANG", "TMPDIR") if key in os.environ}
        done = subprocess.run(
            [sys.executable, "-m", "dsh", "--profile", "headless", *words, "--", task],
            cwd=workspace,
            env={
                **kept,
                "HOME": str(folder),
                "DSH_HOME": str(folder / "home"),
                "PYTHONPATH": os.pathsep.join(each for each in sys.path if each),
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        return HeadlessRun(done.returncode, done.stdout, done.stderr, _log(folder / "home"))


def _model(script: Mapping[str, Any], folder: Path) -> Path:
    """Write the script, and the patch that lets it play the model."""
    (folder / "script.json").write_text(json.dumps(script), "utf-8")
    config = {"script": str(folder / "script.json")}
    patches = [
        {"id": "agent-default-model", "config": {"provider": "rehearsal", "model": "rehearsal"}},
        {
            "insert": [
                {"id": "llm-rehearsal", "name": "dsh.model.adapters.rehearsal", "config": config}
            ]
        },
    ]
    path = folder / "model.yml"
    # JSON is YAML, too.
    path.write_text(json.dumps(patches), "utf-8")
    return path


def _log(home: Path) -> list[dict[str, Any]]:
    from dsh.state.persistence.artifact.reader import read_log

    files = sorted(
        path
        for path in (home / "sessions").glob("*/*/session.jsonl*")
        if path.suffix in {".jsonl", ".zstd"}
    )
    return [dict(event) for path in files for event in read_log(path).events]
