"""The process that forks a supervisor for each command, so that Python starts only once."""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
from contextlib import suppress

from . import command, tree
from .system import become_subreaper
from .wire import receive_with_fds

_SWEEP_MS = 10


def serve(fd: int) -> int:
    """Answer requests on the socket ``fd`` until it closes and every supervisor has ended."""
    gc.freeze()
    become_subreaper()
    return _Server(socket.socket(fileno=fd)).run()


class _Server:
    """Forks supervisors, and ends what a supervisor leaves behind when it is killed itself."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._supervisors: set[int] = set()
        self._orphaned = False
        self._wake, wake_in = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(wake_in, False)
        signal.set_wakeup_fd(wake_in, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def run(self) -> int:
        """Serve until there is nothing left to serve."""
        poller = select.poll()
        poller.register(self._wake, select.POLLIN)
        poller.register(self._requests, select.POLLIN)
        open_ = True
        while open_ or self._supervisors or self._orphaned:
            for fd, _ in poller.poll(_SWEEP_MS if self._orphaned else None):
                if fd == self._wake:
                    os.read(self._wake, 512)
                elif not self._accept():
                    open_ = False
                    poller.unregister(self._requests)
            self._reap()
        return 0

    def _accept(self) -> bool:
        """Fork a supervisor for the link that comes with a byte; False at end of file."""
        byte, fds = receive_with_fds(self._requests, 1, 1)
        if not byte:
            return False
        if not fds:
            return True  # none could be received; the link closes, which tells dsh
        with socket.socket(fileno=fds[0]) as link, suppress(OSError):
            # Without a fork the link just closes, which tells dsh that nothing runs.
            pid = os.fork()
            if pid == 0:
                self._be_supervisor(link)
            self._supervisors.add(pid)
        return True

    def _be_supervisor(self, link: socket.socket) -> None:
        status = 1
        try:
            self._requests.close()
            command.supervise(link)
            status = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(status)

    def _reap(self) -> None:
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                if pid in self._supervisors:
                    self._supervisors.discard(pid)
                    self._orphaned = self._orphaned or status != 0
        except ChildProcessError:
            self._orphaned = False
        if self._orphaned:
            self._sweep()

    def _sweep(self) -> None:
        """Kill what a dead supervisor left to us: all below us that no supervisor answers for."""
        spare = frozenset(self._supervisors)
        self._orphaned = bool(tree.kill_below(spare) or tree.kill_children(spare))
