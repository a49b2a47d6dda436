"""Lines to and from a process that may do anything with its end of the socket."""

from __future__ import annotations

import asyncio
import socket
from collections import deque

_CHUNK = 1 << 18


class BrokenRules(Exception):
    """The other side sends or ignores more than any honest one would."""


class Link:
    """Reads whole lines and sends without waiting, both with a bound.

    Args:
        ours: Dsh's end; non-blocking from here on.
        max_line: The longest line that is accepted, in bytes.
        max_unsent: How much may wait for a reader that does not read.
    """

    def __init__(self, ours: socket.socket, *, max_line: int, max_unsent: int) -> None:
        ours.setblocking(False)
        self._socket = ours
        self._max_line, self._max_unsent = max_line, max_unsent
        self._heard = bytearray()
        self._unsent: deque[bytes] = deque()
        self._unsent_bytes = 0
        self._more = asyncio.Event()
        self._may_read = asyncio.Event()
        self._is_hung_up = False

    async def lines(self) -> list[bytes] | None:
        """Return the next lines that are not empty, at least one; ``None`` at the end.

        Raises:
            BrokenRules: a line is longer than allowed.
        """
        found: list[bytes] = []
        while not found:
            if not (data := await self._received()):
                return None
            *whole, rest = data.split(b"\n")
            for line in whole:
                if self._heard or line:
                    found.append(bytes(self._heard + line))
                    self._heard.clear()
            self._heard += rest
            if len(self._heard) > self._max_line:
                raise BrokenRules("it sent a message that is too long")
        return found

    def hang_up(self) -> None:
        """Take what has arrived as all there is; somebody else may hold the other end."""
        self._is_hung_up = True
        self._may_read.set()

    async def _received(self) -> bytes:
        """Return what arrives next; nothing at the end."""
        loop = asyncio.get_running_loop()
        while True:
            # What has arrived already is read without a turn of the loop, which others need too.
            await asyncio.sleep(0)
            try:
                return self._socket.recv(_CHUNK)
            except BlockingIOError:
                if self._is_hung_up:
                    return b""
            except ConnectionError:
                return b""
            loop.add_reader(self._socket, self._may_read.set)
            try:
                await self._may_read.wait()
            finally:
                loop.remove_reader(self._socket)
            self._may_read.clear()

    def send(self, line: bytes) -> None:
        """Queue a line.

        Raises:
            BrokenRules: too much waits already.
        """
        if self._unsent_bytes > self._max_unsent:
            raise BrokenRules("it does not read the replies to its calls")
        self._unsent.append(line)
        self._unsent_bytes += len(line)
        self._more.set()

    async def pump(self) -> None:
        """Send what is queued, until cancelled or until nobody is there to read."""
        loop = asyncio.get_running_loop()
        while True:
            await self._more.wait()
            while self._unsent:
                line = self._unsent[0]
                try:
                    await loop.sock_sendall(self._socket, line)
                except OSError:
                    return
                self._unsent.popleft()
                self._unsent_bytes -= len(line)
            self._more.clear()
