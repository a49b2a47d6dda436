"""dsh's side of the process that forks supervisors."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from dsh.capability.subprocess.streams import ready

_SCRIPT = Path(__file__).parent / "supervisor" / "__main__.py"
_CLOSE_S = 5.0
_LOADER_VARIABLES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""All the process keeps of dsh's environment: an interpreter may not start without them."""


class ForkServer:
    """Starts the process on first use, and again when somebody killed it.

    Supervisors do not depend on it: commands that run survive its end.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: socket.socket | None = None

    async def open_link(self) -> socket.socket:
        """Have a new supervisor forked and return the socket that leads to it.

        Raises:
            OSError: the process cannot be started.
        """
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        try:
            await self._hand_over(theirs)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        return ours

    async def close(self) -> None:
        """End the process, and wait until it is gone. Its commands must have ended before."""
        process, requests = self._process, self._requests
        self._process = self._requests = None
        if process is None or requests is None:
            return
        try:
            requests.shutdown(socket.SHUT_WR)
            async with asyncio.timeout(_CLOSE_S):
                while True:
                    await ready(requests.fileno(), reading=True)
                    if not requests.recv(64):
                        break
        except (TimeoutError, OSError):
            process.kill()
        finally:
            requests.close()
            # The socket closes as the process exits, so that this returns at once.
            process.wait()

    async def _hand_over(self, theirs: socket.socket) -> None:
        for last_try in (False, True):
            requests = self._requests or self._start()
            try:
                while True:
                    try:
                        socket.send_fds(requests, [b"+"], [theirs.fileno()])
                        return
                    except BlockingIOError:
                        await ready(requests.fileno(), reading=False)
            except (BrokenPipeError, ConnectionResetError):
                if last_try:
                    raise
                self._bury(requests)

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        number = theirs.fileno()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-X", "utf8", str(_SCRIPT), "--serve", str(number)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=None if os.environ.get("DSH_DEBUG") else subprocess.DEVNULL,
                cwd="/",
                env={name: os.environ[name] for name in _LOADER_VARIABLES if name in os.environ},
                pass_fds=(number,),
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._requests = ours
        return ours

    def _bury(self, requests: socket.socket) -> None:
        """Forget a process that closed its socket, unless another caller did so already."""
        if self._requests is not requests:
            return
        requests.close()
        if self._process is not None:
            with suppress(OSError):
                self._process.kill()
            self._process.wait()
        self._process = self._requests = None
