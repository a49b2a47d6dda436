"""HTTP/1.1 for httpx over asyncio, made for long streams of small events.

The transport that comes with httpx hands on every HTTP chunk by itself, through a dozen calls, and
imports two more libraries. This one gives whatever a read of the socket brought, as one piece.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable

import httpx

from dsh.model.adapters.deepseek.chunked import ChunkedDecoder
from dsh.model.adapters.deepseek.connection import Connection, open_connection
from dsh.model.adapters.deepseek.framing import Head, find_head, parse_head

__all__ = ["ON_SEND", "StreamTransport"]

ON_SEND = "dsh.on-send"
"""Request extension: called with a function that tells how many bytes are still to be sent."""

_Origin = tuple[str, str, int]

_KEPT_CONNECTIONS = 16


class StreamTransport(httpx.AsyncBaseTransport):
    """Opens connections, and keeps those whose answer was read to its end.

    Args:
        tls: For https addresses; without it they are refused.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self._kept: dict[_Origin, list[Connection]] = {}
        self._busy: set[Connection] = set()
        self._closed = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request and return when the head of its answer is there.

        A server may have closed a kept connection just now. When no byte of an answer came back
        over one, the request is sent once more, over a new connection.
        """
        head = _encode_head(request)
        data = head + b"".join([part async for part in _parts(request)])
        url = request.url
        port = url.port or (443 if url.scheme == "https" else 80)
        origin = (url.scheme, url.host, port)
        connection = self._take(origin)
        if connection is not None:
            try:
                return await self._exchange(request, origin, connection, data)
            except (httpx.ReadError, httpx.RemoteProtocolError):
                if connection.heard or self._closed:
                    raise
        connection = await self._connect(request, origin)
        if self._closed:
            connection.abort()
            raise httpx.ConnectError("the HTTP client was closed")
        return await self._exchange(request, origin, connection, data)

    async def aclose(self) -> None:
        """Close all connections; answers that are being read break off."""
        self._closed = True
        kept, self._kept = self._kept, {}
        connections = [*self._busy, *(one for more in kept.values() for one in more)]
        self._busy.clear()
        for connection in connections:
            connection.abort(httpx.ReadError("the HTTP client was closed"))
        for connection in connections:
            await connection.closed()

    def give_back(self, origin: _Origin, connection: Connection, *, keep: bool) -> None:
        """Take a connection out of use; keep it for the next request, if it is good for one."""
        self._busy.discard(connection)
        connection.rest()
        kept = self._kept.setdefault(origin, [])
        room = len(kept) < _KEPT_CONNECTIONS
        if keep and room and not self._closed and connection.is_usable():
            kept.append(connection)
        else:
            connection.abort()

    def _take(self, origin: _Origin) -> Connection | None:
        kept = self._kept.get(origin)
        while kept:
            connection = kept.pop()
            if connection.is_usable():
                return connection
            connection.abort()
        return None

    async def _connect(self, request: httpx.Request, origin: _Origin) -> Connection:
        scheme, host, port = origin
        secure = scheme == "https"
        if secure and self._tls is None:
            raise httpx.UnsupportedProtocol("this client was made without TLS", request=request)
        return await open_connection(
            host,
            port,
            tls=self._tls if secure else None,
            timeout_s=request.extensions.get("timeout", {}).get("connect"),
        )

    async def _exchange(
        self, request: httpx.Request, origin: _Origin, connection: Connection, data: bytes
    ) -> httpx.Response:
        self._busy.add(connection)
        on_send: Callable[[Callable[[], int]], None] | None = request.extensions.get(ON_SEND)
        try:
            connection.send(data)
            if on_send is not None:
                on_send(lambda: connection.unsent)
            head = await _read_head(connection, request.method)
        except BaseException:
            self.give_back(origin, connection, keep=False)
            raise
        stream = _Body(self, origin, connection, head)
        return httpx.Response(head.status, headers=head.headers, stream=stream, request=request)


class _Body(httpx.AsyncByteStream):
    """The body of one answer; closing it gives the connection back or ends it."""

    def __init__(
        self, transport: StreamTransport, origin: _Origin, connection: Connection, head: Head
    ) -> None:
        self._transport = transport
        self._origin = origin
        self._connection: Connection | None = connection
        self._head = head
        self._complete = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        connection = self._connection
        if connection is None:
            return
        if self._head.chunked:
            decoder = ChunkedDecoder()
            while not decoder.complete:
                if data := _decode(decoder, _not_empty(await connection.read())):
                    yield data
            connection.put_back(decoder.rest)
        elif self._head.length is not None:
            left = self._head.length
            while left > 0:
                data = _not_empty(await connection.read())
                connection.put_back(data[left:])
                data = data[:left]
                left -= len(data)
                yield data
        else:
            while data := await connection.read():
                yield data
        self._complete = True

    async def aclose(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            keep = self._complete and self._head.keep
            self._transport.give_back(self._origin, connection, keep=keep)


async def _read_head(connection: Connection, method: str) -> Head:
    """Read the head of the answer, past any that only announce it."""
    data = b""
    while True:
        while (found := find_head(data)) is None:
            more = await connection.read()
            if not more:
                said = "an incomplete answer" if data else "no answer"
                raise httpx.RemoteProtocolError(f"the server closed the connection with {said}")
            data += more
        head, data = found
        if (parsed := parse_head(head, method)) is not None:
            connection.put_back(data)
            return parsed


def _decode(decoder: ChunkedDecoder, data: bytes) -> bytes:
    try:
        return decoder.feed(data)
    except ValueError as error:
        raise httpx.RemoteProtocolError(str(error)) from error


def _not_empty(data: bytes) -> bytes:
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
    if any(b"\n" in line or b"\r" in line or b"\0" in line for line in lines):
        raise httpx.LocalProtocolError("a header holds a line break")
    return b"\r\n".join(lines) + b"\r\n\r\n"
