"""A real PostgreSQL server on a socket of its own, for tests."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

_USER = "postgres"
_START_S = 20.0


def programs() -> Path | None:
    """Return the folder of the server's programs, the newest version's if there are several."""
    found = sorted(
        (path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/postgres")),
        key=lambda path: int(path.parent.name),
    )
    if found:
        return found[-1]
    elsewhere = shutil.which("initdb")
    return None if elsewhere is None else Path(elsewhere).resolve().parent


class PostgresServer:
    """One cluster below a folder. As root it runs as another user, as the server demands."""

    def __init__(self, binaries: Path) -> None:
        self._binaries = binaries
        self._folder = Path(tempfile.mkdtemp(prefix="dsh-pg-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._as_user: dict[str, Any] = {}
        if os.getuid() == 0:
            shutil.chown(self._folder, _USER, _USER)
            self._as_user = {"user": _USER, "group": _USER, "extra_groups": []}

    @property
    def dsn(self) -> str:
        return f"host={self._folder} user=dsh dbname=postgres"

    def create(self) -> None:
        """Make the cluster."""
        words = ["-D", "data", "-U", "dsh", "--auth=trust", "--no-sync", "-E", "UTF8", "--locale=C"]
        self._run("initdb", *words)

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        command = [
            str(self._binaries / "postgres"),
            *("-D", "data", "-k", str(self._folder), "-c", "listen_addresses="),
        ]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=self._folder, stdout=log, stderr=log, **self._as_user
            )
        end = time.monotonic() + _START_S
        while not self._answers():
            if time.monotonic() > end or self._process.poll() is not None:
                raise RuntimeError((self._folder / "log").read_text())
            time.sleep(0.02)

    def kill(self) -> None:
        """End the server as a crash does: all of its processes at once."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        # Its children notice only sooner or later, and a successor waits for none of them.
        while pids := self._pids():
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.005)

    def stop(self) -> None:
        """End the server, and remove the cluster."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait()
        shutil.rmtree(self._folder)

    def _pids(self) -> list[int]:
        """Return the processes of the cluster, which all work in its folder."""
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError):
                if os.readlink(f"/proc/{name}/cwd") == str(self._folder / "data"):
                    found.append(int(name))
        return found

    def _answers(self) -> bool:
        command = [self._binaries / "pg_isready", "-q", "-h", self._folder]
        return subprocess.run(command, check=False).returncode == 0

    def _run(self, program: str, *words: str) -> None:
        subprocess.run(
            [self._binaries / program, *words],
            cwd=self._folder,
            check=True,
            stdout=subprocess.DEVNULL,
            **self._as_user,
        )


def new_server() -> PostgresServer:
    """Make a cluster and start it; without the programs the test is skipped, but not in CI."""
    binaries = programs()
    if binaries is None:
        problem = "PostgreSQL is not installed; run scripts/system-packages.sh"
        if os.environ.get("CI") == "true":
            pytest.fail(problem)
        pytest.skip(problem)
    server = PostgresServer(binaries)
    server.create()
    server.start()
    return server
