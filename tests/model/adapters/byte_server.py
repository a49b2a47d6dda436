"""A server on loopback that answers with chosen bytes, and a client over our transport."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx

from dsh.model.adapters.deepseek.transport import StreamTransport


class Server:
    """Answers each request on a connection with the next of some byte strings."""

    def __init__(self, *answers: bytes, close: bool = False) -> None:
        self.answers = list(answers)
        self.close = close
        self.connections = 0
        self.requests: list[bytes] = []
        self.asked = asyncio.Event()
        self.closed = asyncio.Event()
        self.writers: list[asyncio.StreamWriter] = []

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        await self.serve(reader, writer)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while self.answers:
                head = await reader.readuntil(b"\r\n\r\n")
                self.requests.append(head)
                self.asked.set()
                writer.write(self.answers.pop(0))
                await writer.drain()
                if self.close:
                    break
            else:
                await reader.read()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            self.closed.set()


@asynccontextmanager
async def serving(
    server: Server, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1"
) -> AsyncIterator[str]:
    listener = await asyncio.start_server(server.accept, host, 0, ssl=tls)
    async with listener:
        port = listener.sockets[0].getsockname()[1]
        place = f"[{host}]" if ":" in host else host
        try:
            yield f"{'https' if tls else 'http'}://{place}:{port}/x?q=1"
        finally:
            for writer in server.writers:  # since Python 3.12 the listener waits for them
                writer.transport.abort()


@asynccontextmanager
async def client(tls: ssl.SSLContext | None = None) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=StreamTransport(tls), timeout=5) as made:
        yield made


def answer(body: bytes, *headers: bytes) -> bytes:
    return b"\r\n".join([b"HTTP/1.1 200 OK", *headers, b"", body])


SIZED = answer(b"hello", b"Content-Length: 5")
CODED = b"3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\nTrailer: t\r\n\r\n"
CHUNKED = answer(CODED, b"Transfer-Encoding: chunked")
