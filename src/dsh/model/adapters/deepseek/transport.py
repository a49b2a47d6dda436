"""HTTP/1.1 for httpx over asyncio streams, made for long streams of small events.

The transport that comes with httpx hands on every HTTP chunk by itself, through a dozen calls, and
imports two more libraries. This one gives whatever a read of the socket brought, as one piece.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import suppress

import httpx

from dsh.model.adapters.deepseek.chunked import ChunkedDecoder

__all__ = ["StreamTransport"]

_Origin = tuple[str, str, int]

_READ_BYTES = 1 << 16
_MAX_HEAD_BYTES = 1 << 16
_KEPT_S = 30.0
_KEPT_CONNECTIONS = 16
_STATUS = re.compile(rb"HTTP/1\.[01] ([0-9]{3})(?: .*)?")


class StreamTransport(httpx.AsyncBaseTransport):
    """Opens connections, and keeps those whose answer was read to its end.

    Args:
        tls: For https addresses; without it they are refused.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self._kept: dict[_Origin, list[_Connection]] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request and return when the head of its answer is there."""
        head = _encode_head(request)
        body = b"".join([part async for part in _parts(request)])
        url = request.url
        port = url.port or (443 if url.scheme == "https" else 80)
        origin = (url.scheme, url.host, port)
        connection = self._take(origin) or await self._connect(request, origin)
        try:
            await connection.send(head + body)
            status, headers = await connection.read_head()
            stream = _Body(self, origin, connection, status, headers)
        except BaseException:
            connection.abort()
            raise
        return httpx.Response(status, headers=headers, stream=stream, request=request)

    async def aclose(self) -> None:
        """Close the connections that are kept."""
        kept, self._kept = self._kept, {}
        for connections in kept.values():
            for connection in connections:
                await connection.close()

    def give_back(self, origin: _Origin, connection: _Connection) -> None:
        """Keep a connection for the next request."""
        kept = self._kept.setdefault(origin, [])
        if len(kept) >= _KEPT_CONNECTIONS:
            connection.abort()
            return
        connection.idle_since = time.monotonic()
        kept.append(connection)

    def _take(self, origin: _Origin) -> _Connection | None:
        kept = self._kept.get(origin)
        while kept:
            connection = kept.pop()
            if connection.is_usable():
                return connection
            connection.abort()
        return None

    async def _connect(self, request: httpx.Request, origin: _Origin) -> _Connection:
        scheme, host, port = origin
        if scheme == "https" and self._tls is None:
            raise httpx.UnsupportedProtocol("this client was made without TLS", request=request)
        timeout = request.extensions.get("timeout", {}).get("connect")
        try:
            async with asyncio.timeout(timeout):
                reader, writer = await asyncio.open_connection(
                    host,
                    port,
                    limit=_READ_BYTES,
                    ssl=self._tls if scheme == "https" else None,
                    happy_eyeballs_delay=0.25,
                )
        except TimeoutError as error:
            raise httpx.ConnectTimeout(f"no connection within {timeout} s") from error
        except OSError as error:  # TLS errors are among them
            raise httpx.ConnectError(str(error) or type(error).__name__) from error
        return _Connection(reader, writer)


class _Connection:
    """One connection; what was read too far stays for the next reader."""

    __slots__ = ("_ahead", "_reader", "_writer", "idle_since")

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._ahead = b""
        self.idle_since = 0.0

    def is_usable(self) -> bool:
        """Whether the server, as far as is known, still listens."""
        fresh = time.monotonic() - self.idle_since < _KEPT_S
        closing = self._writer.is_closing() or self._reader.at_eof()
        return fresh and not closing and not self._ahead and self._reader.exception() is None

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        try:
            await self._writer.drain()
        except OSError as error:
            raise httpx.WriteError(_words(error)) from error

    async def read_head(self) -> tuple[int, list[tuple[bytes, bytes]]]:
        """Read status and headers of the answer, past any that only announce it."""
        while True:
            head = await self._read_until_blank_line()
            first, *lines = head.split(b"\r\n")
            matched = _STATUS.fullmatch(first)
            if matched is None:
                shown = first[:60].decode("latin-1")
                raise httpx.RemoteProtocolError(f"{shown!r} is no HTTP answer")
            status = int(matched[1])
            if status >= 200:
                return status, [_header(line) for line in lines if line]

    async def _read_until_blank_line(self) -> bytes:
        data = self._ahead
        while (end := data.find(b"\r\n\r\n")) < 0:
            if len(data) > _MAX_HEAD_BYTES:
                raise httpx.RemoteProtocolError("the head of the answer does not end")
            more = await self.read()
            if not more:
                said = "an incomplete answer" if data else "no answer"
                raise httpx.RemoteProtocolError(f"the server closed the connection with {said}")
            data += more
        self._ahead = data[end + 4 :]
        return data[:end]

    async def read(self) -> bytes:
        """Return what comes next; nothing at the end."""
        try:
            return await self._reader.read(_READ_BYTES)
        except OSError as error:
            raise httpx.ReadError(_words(error)) from error

    async def read_body(self) -> bytes:
        """Return the next part of the body, which may have come with the head."""
        if self._ahead:
            data, self._ahead = self._ahead, b""
            return data
        return await self.read()

    def abort(self) -> None:
        self._writer.transport.abort()

    async def close(self) -> None:
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()


class _Body(httpx.AsyncByteStream):
    """The body of one answer; closing it gives the connection back or ends it."""

    def __init__(
        self,
        transport: StreamTransport,
        origin: _Origin,
        connection: _Connection,
        status: int,
        headers: list[tuple[bytes, bytes]],
    ) -> None:
        self._transport = transport
        self._origin = origin
        self._connection: _Connection | None = connection
        self._complete = False
        fields = {name.lower(): value.strip() for name, value in headers}
        self._keep = fields.get(b"connection", b"").lower() != b"close"
        self._decoder = None
        self._left: int | None = None
        if status in (204, 304):
            self._left = 0
        elif fields.get(b"transfer-encoding", b"").lower().endswith(b"chunked"):
            self._decoder = ChunkedDecoder()
        elif b"content-length" in fields:
            self._left = _length(fields[b"content-length"])
        else:
            self._keep = False  # the body ends with the connection

    async def __aiter__(self) -> AsyncIterator[bytes]:
        connection = self._connection
        if connection is None:
            return
        if self._decoder is not None:
            while not self._decoder.complete:
                data = self._decode(await connection.read_body())
                if data:
                    yield data
        elif self._left is not None:
            while self._left > 0:
                data = (await connection.read_body())[: self._left]
                self._left -= len(data)
                yield self._not_empty(data)
        else:
            while data := await connection.read_body():
                yield data
        self._complete = True

    async def aclose(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if self._complete and self._keep:
            self._transport.give_back(self._origin, connection)
        else:
            connection.abort()

    def _decode(self, data: bytes) -> bytes:
        assert self._decoder is not None  # asked by the caller
        try:
            return self._decoder.feed(self._not_empty(data))
        except ValueError as error:
            raise httpx.RemoteProtocolError(str(error)) from error

    def _not_empty(self, data: bytes) -> bytes:
        if not data:
            raise httpx.RemoteProtocolError("the server closed the connection in mid-answer")
        return data


async def _parts(request: httpx.Request) -> AsyncIterator[bytes]:
    assert isinstance(request.stream, httpx.AsyncByteStream)  # an async client sends these
    async for part in request.stream:
        yield part


def _encode_head(request: httpx.Request) -> bytes:
    lines = [request.method.encode("ascii") + b" " + request.url.raw_path + b" HTTP/1.1"]
    lines += [name + b": " + value for name, value in request.headers.raw]
    if any(b"\n" in line or b"\r" in line for line in lines):
        raise httpx.LocalProtocolError("a header holds a line break")
    return b"\r\n".join(lines) + b"\r\n\r\n"


def _header(line: bytes) -> tuple[bytes, bytes]:
    name, colon, value = line.partition(b":")
    if not colon or not name or name != name.strip():
        raise httpx.RemoteProtocolError(f"{line[:60]!r} is no header")
    return name, value.strip()


def _length(value: bytes) -> int:
    if not value.isdigit():
        raise httpx.RemoteProtocolError(f"{value[:40]!r} is no length")
    return int(value)


def _words(error: OSError) -> str:
    return str(error) or type(error).__name__
