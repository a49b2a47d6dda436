"""Moving bytes between the loop and pipes, without a thread."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress

from dsh.capability.subprocess.collect import OutputWindow

_CHUNK = 1 << 18


async def pump(fd: int, window: OutputWindow) -> None:
    """Feed everything that arrives on a non-blocking pipe to a window; the pipe stays open."""
    while True:
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            await ready(fd, reading=True)
            continue
        if not data:
            return
        await window.feed(data)
        await asyncio.sleep(0)


async def pour(fd: int, data: bytes) -> None:
    """Write ``data`` to a non-blocking pipe, or as much as its reader takes; it stays open."""
    view = memoryview(data)
    with suppress(BrokenPipeError):
        while view:
            try:
                view = view[os.write(fd, view) :]
            except BlockingIOError:
                await ready(fd, reading=False)


class Intake(asyncio.StreamReaderProtocol):
    """The reading end of a pipe as a stream that knows when it has been closed."""

    def __init__(self) -> None:
        self.reader = asyncio.StreamReader()
        super().__init__(self.reader)
        self.closed = asyncio.Event()
        self._pipe: asyncio.BaseTransport | None = None

    async def open(self, fd: int) -> asyncio.StreamReader:
        """Take over a descriptor; it is closed at the end of the stream, or by `close`."""
        pipe = os.fdopen(fd, "rb", buffering=0)
        self._pipe, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: self, pipe)
        return self.reader

    def close(self) -> None:
        """Stop reading; what has not arrived in the stream yet is lost."""
        if self._pipe is not None:
            self._pipe.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.BaseProtocol`."""
        super().connection_lost(exc)
        self.closed.set()


async def open_writer(fd: int) -> asyncio.StreamWriter:
    """Return a stream on the writing end of a pipe; closing it closes the pipe."""
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.connect_write_pipe(
        lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()),
        os.fdopen(fd, "wb", buffering=0),
    )
    return asyncio.StreamWriter(transport, protocol, None, loop)


async def ready(fd: int, *, reading: bool) -> None:
    """Return when a descriptor can be read, or written, without blocking."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()
    add, remove = (
        (loop.add_reader, loop.remove_reader) if reading else (loop.add_writer, loop.remove_writer)
    )
    add(fd, _resolve, future)
    try:
        await future
    finally:
        remove(fd)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
