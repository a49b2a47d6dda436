"""One supervisor: runs a command and answers for every process that comes of it."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress

from . import child, tree
from .system import become_subreaper
from .wire import TERMINATE, Request, encode_message, receive_request

_SETTLE_S = 0.25
"""Time left-over processes have to end by themselves, such as a ``tee`` that still flushes."""
_KILL_PAUSE_S, _KILL_PAUSE_MAX_S = 0.005, 0.5
"""Between rounds of SIGKILL; it doubles, since a process in the kernel's hands may take long."""
_CHASE_ROUNDS = 500
"""How often children are killed and reaped in a row while new ones turn up."""
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def supervise(link: socket.socket) -> None:
    """Run the command that ``link`` asks for; returns when its whole tree is gone."""
    os.setsid()
    become_subreaper()
    received = receive_request(link)
    if received is None:
        return
    request, fds = received
    supervisor = _Supervisor(link, request)
    try:
        supervisor.launch(fds)
    finally:
        for fd in fds:
            os.close(fd)
    supervisor.watch()


class _Supervisor:
    """State of one command: running, being asked to end, being killed."""

    def __init__(self, link: socket.socket, request: Request) -> None:
        self._link = link
        self._request = request
        self._leader = self._group = 0
        self._wake, self._wake_in = _wake_pipe()
        self._terminate_at: float | None = None
        self._kill_at: float | None = None
        self._kill_pause = _KILL_PAUSE_S
        self._killed: frozenset[tree.Process] = frozenset()

    def launch(self, fds: list[int]) -> None:
        """Start the command and tell dsh the pid, or why it did not start."""
        readable, low = os.pipe()
        # Out of the way of the numbers that the command's descriptors get.
        writable = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, max(self._request["fds"]) + 1)
        os.close(low)
        self._leader = self._group = os.fork()
        if self._leader == 0:
            child.become(self._request, fds, lambda stage, error: _report(writable, stage, error))
        os.close(writable)
        # The write end closes on exec: end of file without a word means that the program runs.
        failure = os.read(readable, 4096)
        os.close(readable)
        if failure:
            stage, number, detail = failure.decode("utf-8", "replace").split("\0", 2)
            self._send(failed=[stage, int(number), detail])
        else:
            self._send(started=self._leader)

    def watch(self) -> None:
        """Return when no process is left."""
        poller = select.poll()
        poller.register(self._wake, select.POLLIN)
        poller.register(self._link, select.POLLIN)
        while self._reap():
            for fd, _ in poller.poll(self._advance()):
                if fd == self._wake:
                    self._drain_wake()
                elif not self._obey():
                    poller.unregister(self._link)
        self._send(gone=True)

    def _reap(self) -> bool:
        """Collect the dead; False when nobody is left."""
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return True
                if pid == self._leader:
                    self._leader_ended(status)
        except ChildProcessError:
            return False

    def _leader_ended(self, status: int) -> None:
        self._leader = 0
        code = os.waitstatus_to_exitcode(status)
        self._send(exited=[code, None] if code >= 0 else [None, signal.Signals(-code).name])
        if not self._request["keep_descendants"]:
            self._end_by(time.monotonic() + _SETTLE_S)

    def _obey(self) -> bool:
        """Read what dsh says; False when it is gone and will say no more."""
        try:
            said = self._link.recv(64)
        except OSError:
            said = b""
        if not said or TERMINATE in said:
            self._end_by(time.monotonic())
        return bool(said)

    def _drain_wake(self) -> None:
        if not set(_ENDING).isdisjoint(os.read(self._wake, 512)):
            self._end_by(time.monotonic())

    def _end_by(self, when: float) -> None:
        """Start the ladder at ``when``, unless it starts earlier anyway."""
        if self._kill_at is None or when + self._request["grace_s"] < self._kill_at:
            self._terminate_at = when
            self._kill_at = when + self._request["grace_s"]

    def _advance(self) -> float | None:
        """Take the steps of the ladder that are due; return the wait for the next one in ms."""
        now = time.monotonic()
        if self._kill_at is None:
            return None
        if now >= self._kill_at:
            if self._kill_all():
                self._kill_pause = _KILL_PAUSE_S
            pause, self._kill_pause = self._kill_pause, min(self._kill_pause * 2, _KILL_PAUSE_MAX_S)
            return pause * 1000
        if self._terminate_at is not None and now >= self._terminate_at:
            self._terminate_at = None
            self._ask_to_end()
        return max(0.0, (self._terminate_at or self._kill_at) - now) * 1000 + 1

    def _ask_to_end(self) -> None:
        # A sandbox runner would take what it runs down at once, without time to clean up.
        spared = self._leader if self._request["runner"] else 0
        self._signal_all(signal.SIGTERM, spared)
        self._signal_all(signal.SIGCONT, spared)

    def _kill_all(self) -> bool:
        """Kill the whole tree, and what it forks meanwhile; True when the last round found new."""
        if sys.platform != "linux":
            self._signal_all(signal.SIGKILL)
            return False
        found = frozenset(tree.kill_below())
        fresh, self._killed = bool(found - self._killed), found
        seen: frozenset[int] = frozenset()
        for _ in range(_CHASE_ROUNDS):
            children = tree.kill_children()
            if children <= seen:
                return fresh
            seen = children
            self._reap()
        return True

    def _signal_all(self, number: int, spared: int = 0) -> None:
        if sys.platform != "linux":
            # No /proc there, and no adoption of orphans: the session is all that can be reached.
            with suppress(OSError):
                os.killpg(self._group, number)
            return
        for process in tree.descendants(os.getpid()):
            if process.pid != spared:
                tree.send(process, number)

    def _send(self, **message: object) -> None:
        with suppress(OSError):
            self._link.sendall(encode_message(message))


def _wake_pipe() -> tuple[int, int]:
    """Return a pipe that gets a byte, the signal's number, for each signal we watch for."""
    readable, writable = os.pipe()
    os.set_blocking(readable, False)
    os.set_blocking(writable, False)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, *_ENDING):
        signal.signal(number, lambda *_: None)
    return readable, writable


def _report(pipe: int, stage: str, error: OSError) -> None:
    text = f"{stage}\0{error.errno or 0}\0{error.strerror or error}"
    os.write(pipe, text.encode("utf-8", "replace"))
