"""A person who runs ``dsh`` with a home and a folder of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

PATIENCE_S = 60


class Person:
    """Runs the command in processes of its own."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.cwd = folder / "project"
        self.cwd.mkdir()
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
        self.env = {**kept, "HOME": str(folder), "DSH_HOME": str(self.home), "COLUMNS": "100"}
        self.env["DEEPSEEK_API_KEY"] = "sk-of-this-test-alone"

    def run(self, *argv: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        """Run to the end and check the exit code, unless it is None."""
        done = self._run("-m", "dsh", *argv)
        assert code is None or done.returncode == code, done
        return done

    def python(self, source: str, *argv: str) -> subprocess.CompletedProcess[str]:
        """Run a script of Python."""
        return self._run("-c", source, *argv)

    def _run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *words],
            env=self.env,
            cwd=self.cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    def json(self, *argv: str, code: int | None = 0) -> Any:
        """Run and parse what is printed."""
        return json.loads(self.run(*argv, code=code).stdout)

    def profile(self, name: str, rows: str, **files: str) -> Path:
        """Make a profile of these rows; a file ``x_py`` becomes ``x.py`` beside them."""
        folder = self.home / "profiles" / name
        folder.mkdir(parents=True)
        (folder / "profile.json").write_text('{"dsh": {"profile": {"bundles": []}}}')
        (folder / "cordis.patch.yml").write_text(rows)
        for file, text in files.items():
            (folder / file.replace("_py", ".py")).write_text(text)
        return folder

    def patch(self, text: str) -> str:
        """Write a patch file and return its path."""
        path = self.cwd / "extra.yml"
        path.write_text(text)
        return str(path)

    def write(self, path: str, text: str, mode: int = 0o600) -> Path:
        """Write a file of the home folder."""
        file = self.home / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(mode)
        return file
