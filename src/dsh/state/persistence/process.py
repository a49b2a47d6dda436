"""Which process this is, and whether another one is certainly gone."""

from __future__ import annotations

import os
import socket
import sys
from functools import cache
from pathlib import Path

from dsh.base.values import value

_LONGEST_NAME = 64


@value
class ProcessIdentity:
    """A process, named so that no later one is taken for it.

    Attributes:
        host: The name of its computer, for people.
        machine: The running system whose process numbers it uses; differs after a restart of
            the computer, and from container to container.
        pid: Its number there.
        started: When it started, in whatever unit the system counts.
    """

    host: str
    machine: str
    pid: int
    started: str

    def is_gone(self) -> bool:
        """Tell whether the process certainly ended; one that cannot be seen from here has not."""
        if self.machine != _machine():
            return False
        return _started(self.pid) != self.started


def this_process() -> ProcessIdentity:
    """Return the identity of the calling process."""
    pid = os.getpid()
    host = socket.gethostname()[:_LONGEST_NAME]
    return ProcessIdentity(host, _machine(), pid, _started(pid) or "")


@cache
def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{boot}:{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        import uuid

        return f"{socket.gethostname()[:_LONGEST_NAME]}:{uuid.getnode():x}"


def _started(pid: int) -> str | None:
    """Return when a process started; ``None`` when none has this number, or only its remains."""
    if sys.platform != "linux":
        return _started_by_ps(pid)
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = stat.rpartition(b")")[2].split()
    return None if fields[0] in (b"Z", b"X") else fields[19].decode()


def _started_by_ps(pid: int) -> str | None:
    import subprocess

    command = ["ps", "-o", "lstart=", "-p", str(pid)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None
