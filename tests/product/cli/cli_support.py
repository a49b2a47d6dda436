"""Run the ``dsh`` command in a process of its own, with a home of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PATIENCE_S = 30


class Command:
    """The command with a fresh home and working folder."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.cwd = folder / "cwd"
        self.cwd.mkdir(parents=True)
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
        self.env = {**kept, "HOME": str(folder), "DSH_HOME": str(self.home)}

    def run(self, *argv: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run to the end."""
        return subprocess.run(
            [sys.executable, "-m", "dsh", *argv],
            env=self.env,
            cwd=self.cwd,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    @contextmanager
    def started(self, *argv: str) -> Iterator[subprocess.Popen[str]]:
        """Start, and make sure that it is gone afterwards."""
        process = subprocess.Popen(
            [sys.executable, "-m", "dsh", *argv],
            env=self.env,
            cwd=self.cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.communicate()

    def profile(self, name: str, plugin: str, rows: str, oneshot: bool = False) -> Path:
        """Write a profile whose rows may name ``./app.py`` with this source."""
        folder = self.home / "profiles" / name
        folder.mkdir(parents=True)
        bundles: list[str] = []
        if oneshot:
            bundles = ["once"]
            self.install(folder / "site", "once", "oneshot: true\n")
        (folder / "profile.json").write_text(json.dumps({"dsh": {"profile": {"bundles": bundles}}}))
        (folder / "app.py").write_text(plugin)
        (folder / "cordis.patch.yml").write_text(rows)
        return folder

    def install(self, site: Path, name: str, bundle: str, source: str = "") -> None:
        """Put a distribution with a bundle where a profile's plugins are installed."""
        package = site / name
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(source)
        (package / "bundle.yml").write_text(bundle)
        info = site / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        points = f"[dsh.bundle]\n{name} = {name}:bundle.yml\n\n[dsh.plugins]\nmy-{name} = {name}\n"
        (info / "entry_points.txt").write_text(points)
