"""Runs the scripted provider as a child process, for tests."""

from __future__ import annotations

import json
import select
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["Provider", "start_provider"]

_START_S = 20.0
_STOP_S = 10.0
_GREETING = "listening on "


class Provider:
    """A provider that runs in another process."""

    def __init__(self, process: subprocess.Popen[str], url: str, folder: Path) -> None:
        self._process = process
        self._folder = folder
        self.url = url
        """Its base URL."""

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        """Return the lines of its log so far, of one kind or all."""
        text = self.log_path.read_text("utf-8") if self.log_path.exists() else ""
        lines = [json.loads(line) for line in text.splitlines() if line.endswith("}")]
        return [line for line in lines if kind is None or line["event"] == kind]

    def requests(self) -> list[dict[str, Any]]:
        """Return the requests so far; each has ``path``, ``headers``, ``session`` and ``body``."""
        return self.events("request")

    def bodies(self) -> list[bytes]:
        """Return the bytes of each request body."""
        return [path.read_bytes() for path in sorted((self._folder / "bodies").glob("*.json"))]

    @property
    def log_path(self) -> Path:
        """Its log."""
        return self._folder / "log.jsonl"

    def wait(self, timeout_s: float = _STOP_S) -> int:
        """Wait for its end (it was started with ``once``) and return its exit code."""
        return self._process.wait(timeout_s)

    def stop(self) -> None:
        """End it; harmless when it has ended."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


@contextmanager
def start_provider(
    script: str | Path | Mapping[str, Any],
    *,
    variables: Mapping[str, str] | None = None,
    once: bool = False,
    cwd: str | Path | None = None,
) -> Iterator[Provider]:
    """Run a provider while entered.

    Args:
        script: Path of a script, its YAML text, or the document itself.
        variables: Values for its slots.
        once: Let it end by itself when every reply was given.
        cwd: Its working folder, which is ``{{cwd}}`` in the script.

    Raises:
        RuntimeError: it did not start; the text is what it said.
    """
    with tempfile.TemporaryDirectory(prefix="dsh-provider-") as name:
        folder = Path(name)
        command = [
            sys.executable,
            "-m",
            "dsh.testing.provider",
            f"--script={_script_file(script, folder)}",
            f"--log={folder / 'log.jsonl'}",
            f"--bodies={folder / 'bodies'}",
            *(f"--var={key}={value}" for key, value in (variables or {}).items()),
            *(["--once"] if once else []),
        ]
        with (folder / "stderr").open("w+") as errors:
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=cwd
            )
            provider = Provider(process, "", folder)
            try:
                provider.url = _greeting(process, folder / "stderr")
                yield provider
            finally:
                provider.stop()


def _script_file(script: str | Path | Mapping[str, Any], folder: Path) -> Path:
    if isinstance(script, Path):
        return script.absolute()
    if isinstance(script, str):
        if "\n" not in script:
            return Path(script).absolute()
        path = folder / "script.yml"
        path.write_text(script, "utf-8")
        return path
    path = folder / "script.json"
    path.write_text(json.dumps(script), "utf-8")
    return path


def _greeting(process: subprocess.Popen[str], errors: Path) -> str:
    assert process.stdout is not None  # asked for above
    ready, _, _ = select.select([process.stdout], [], [], _START_S)
    line = process.stdout.readline().strip() if ready else ""
    if not line.startswith(_GREETING):
        said = errors.read_text() or line or f"nothing for {_START_S:g} s"
        message = f"the scripted provider did not start: {said.strip()}"
        raise RuntimeError(message)
    return line.removeprefix(_GREETING)
