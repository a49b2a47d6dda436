"""One connection to a server: what came and was not taken yet, what is still to be sent."""

from __future__ import annotations

import asyncio
import ssl
import time
from typing import cast

import httpx

from dsh.model.adapters.deepseek.dial import dial

__all__ = ["Connection", "open_connection"]

_FULL_BYTES = 1 << 18
_KEPT_S = 30.0


class Connection(asyncio.Protocol):
    """Bytes go out in the background and come in until enough of them wait to be read.

    So an answer is seen as soon as it is there, also before the request was sent to its end,
    and it is still readable after the server went away.
    """

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._came: list[bytes] = []
        self._size = 0
        self._paused = False
        self._ended = False
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._lost = asyncio.get_running_loop().create_future()
        self._idle_since = 0.0
        self.heard = False
        """Whether a byte came since `send`."""

    @property
    def unsent(self) -> int:
        """Bytes of the request that are still to go."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def is_usable(self) -> bool:
        """Whether the next request may use it: nothing waits in it, and nobody ended it.

        Bytes that nobody asked for would be taken for the answer to the next request.
        """
        fresh = time.monotonic() - self._idle_since < _KEPT_S
        return fresh and not self._ended and not self._came and not self.unsent

    def rest(self) -> None:
        """Note that nobody uses it from now on."""
        self._idle_since = time.monotonic()

    def send(self, data: bytes) -> None:
        """Begin to send; does not wait."""
        self.heard = False
        if self._transport is not None and not self._ended:
            self._transport.write(data)

    async def read(self) -> bytes:
        """Return all that came; nothing at the end.

        Raises:
            httpx.ReadError: the connection broke.
        """
        while not self._came:
            if self._error is not None:
                raise httpx.ReadError(_words(self._error)) from self._error
            if self._ended:
                return b""
            await self._change()
        data = self._came[0] if len(self._came) == 1 else b"".join(self._came)
        self._came.clear()
        self._size = 0
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return data

    def put_back(self, data: bytes) -> None:
        """Let the next read return ``data`` first."""
        if data:
            self._came.insert(0, data)
            self._size += len(data)

    def abort(self, error: Exception | None = None) -> None:
        """Close at once; a read under way, or a later one, fails with ``error``."""
        if not self._ended and error is not None:
            self._error = error
        self._ended = True
        if self._transport is not None:
            self._transport.abort()
        self._wake()

    async def closed(self) -> None:
        """Wait until the socket is closed."""
        await asyncio.shield(self._lost)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self.heard = True
        self._came.append(data)
        self._size += len(data)
        if self._size >= _FULL_BYTES and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> bool:
        """See `asyncio.Protocol`; a server that says no more wants no more either."""
        self._ended = True
        self._wake()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        if not self._ended:
            self._error = exc
        self._ended = True
        self._wake()
        if not self._lost.done():
            self._lost.set_result(None)

    async def _change(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


async def open_connection(
    host: str, port: int, *, tls: ssl.SSLContext | None, timeout_s: float | None
) -> Connection:
    """Connect.

    Args:
        host: Name or address.
        port: Its port.
        tls: For a connection over TLS.
        timeout_s: How long it may take, TLS included.

    Raises:
        httpx.ConnectTimeout: it took longer.
        httpx.ConnectError: nobody answers there, or not in TLS that is to be trusted.
    """
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_s):
            _, connection = await loop.create_connection(
                Connection,
                sock=await dial(host, port),
                ssl=tls,
                server_hostname=host if tls is not None else None,
            )
    except TimeoutError as error:
        raise httpx.ConnectTimeout(f"no connection within {timeout_s} s") from error
    except OSError as error:  # TLS errors are among them
        raise httpx.ConnectError(_words(error)) from error
    return connection


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
