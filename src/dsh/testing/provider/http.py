"""As much of HTTP/1.1 as the scripted provider needs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Answer", "BadRequest", "Request", "read_request"]

_PENDING_BYTES = 65536


class BadRequest(Exception):
    """The request cannot be read."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request."""

    method: str
    path: str
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes

    @property
    def keeps_alive(self) -> bool:
        """Whether the connection may be used again."""
        return self.headers.get("connection", "").lower() != "close"


async def read_request(reader: asyncio.StreamReader) -> Request | None:
    """Read the next request; ``None`` when the client has no more."""
    line = await reader.readline()
    if not line.strip():
        return None
    try:
        method, path, _ = line.decode("ascii").split(" ", 2)
    except ValueError as error:
        raise BadRequest from error
    headers: dict[str, str] = {}
    while (line := (await reader.readline()).strip()) != b"":
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
    if "content-length" in headers:
        body = await reader.readexactly(int(headers["content-length"]))
    elif headers.get("transfer-encoding", "").lower() == "chunked":
        body = await _read_chunks(reader)
    else:
        body = b""
    return Request(method, path.partition("?")[0], headers, body)


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    body = bytearray()
    while True:
        size = int((await reader.readline()).partition(b";")[0], 16)
        body += await reader.readexactly(size)
        await reader.readline()
        if size == 0:
            return bytes(body)


class Answer:
    """Writes one answer: whole, or as a stream of HTTP chunks."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._pending = 0

    async def whole(
        self,
        status: int,
        body: bytes,
        *,
        content_type: str = "application/json",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Send status, headers and body."""
        lines = {
            "Content-Type": content_type,
            "Content-Length": str(len(body)),
            **(headers or {}),
        }
        self._writer.write(_head(status, lines) + body)
        await self._writer.drain()

    async def json(self, status: int, value: Any, headers: Mapping[str, str] | None = None) -> None:
        """Send a JSON body."""
        await self.whole(status, json.dumps(value).encode(), headers=headers)

    def begin_stream(self) -> None:
        """Send the head of an event stream."""
        self._writer.write(
            _head(
                200,
                {
                    "Content-Type": "text/event-stream; charset=utf-8",
                    "Cache-Control": "no-cache",
                    "Transfer-Encoding": "chunked",
                },
            )
        )

    async def chunk(self, data: bytes, *, now: bool) -> None:
        """Send one HTTP chunk.

        Args:
            data: Not empty.
            now: Wait until it is on its way.
        """
        self._writer.write(b"%x\r\n%b\r\n" % (len(data), data))
        self._pending += len(data)
        if now or self._pending > _PENDING_BYTES:
            self._pending = 0
            await self._writer.drain()

    async def end_stream(self) -> None:
        """Send the last chunk."""
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()

    async def flush(self) -> None:
        """Wait until everything is on its way."""
        await self._writer.drain()

    def reset(self) -> None:
        """Drop the connection without another word."""
        self._writer.transport.abort()


def _head(status: int, headers: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} Scripted", *(f"{key}: {value}" for key, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
