"""The installed ``dsh`` as a user runs it, against a scripted provider over real HTTP."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dsh.state.persistence.artifact.reader import StoredLog, read_log

DSH = str(Path(sys.executable).parent / "dsh")
KEY = "sk-test-0123456789"
PATIENCE_S = 25.0


@dataclass
class Ran:
    """What a finished ``dsh`` did."""

    code: int
    out: str
    err: str


@dataclass
class Home:
    """One user: a home folder, a workspace, and an environment without ambient settings."""

    folder: Path
    workspace: Path
    variables: dict[str, str] = field(default_factory=dict)
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        return {**kept, "DSH_HOME": str(self.folder), **self.variables, **(extra or {})}

    def start(self, *words: str, **options: Any) -> subprocess.Popen[str]:
        environment = self.environment(options.pop("env", None))
        options.setdefault("stdin", subprocess.DEVNULL)
        process = subprocess.Popen(
            [DSH, *words],
            cwd=options.pop("cwd", self.workspace),
            env=environment,
            text=True,
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
        )
        self.started.append(process)
        return process

    def close(self) -> None:
        """End what a failed test left running."""
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.wait()
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()

    def run(
        self,
        *words: str,
        input: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> Ran:
        stdin = subprocess.DEVNULL if input is None else subprocess.PIPE
        process = self.start(*words, env=env, stdin=stdin, cwd=cwd or self.workspace)
        return finish(process, input)

    def headless(self, *words: str, **options: Any) -> Ran:
        return self.run("--profile", "headless", *words, **options)

    def logs(self) -> list[Path]:
        found = (self.folder / "sessions").glob("*/*/session.jsonl*")
        return sorted(path for path in found if path.suffix in {".jsonl", ".zstd"})

    def log(self) -> StoredLog:
        (path,) = self.logs()
        return read_log(path)


def finish(process: subprocess.Popen[str], input: str | None = None) -> Ran:
    try:
        out, err = process.communicate(input, timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        pytest.fail(f"dsh did not end; stdout {out!r}, stderr {err!r}")
    return Ran(process.returncode, out, err)


def wait_for(condition: Callable[[], object], what: str) -> None:
    """Poll for something that happens in another process."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > end:
            pytest.fail(f"{what} did not happen")
        time.sleep(0.02)


def processes_with(marker: str) -> list[int]:
    """Return the processes whose command line contains ``marker``."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if marker.encode() in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def say(*words: str) -> dict[str, Any]:
    return {"text": " ".join(words)}


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}
