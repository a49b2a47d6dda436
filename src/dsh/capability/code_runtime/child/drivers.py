"""What a program's ``await`` runs on: asyncio when it is used, and otherwise nothing at all.

Importing asyncio takes longer than everything else that an interpreter does to be ready, and most
programs only await one call after the other.
"""

from __future__ import annotations

import re
from types import coroutine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator
    from typing import Any, TypeAlias

    from .channel import Channel

    Driver: TypeAlias = "Sequence | EventLoop"

_NO_LOOP = "only tool calls can be awaited without importing asyncio"
_MAY_USE_ASYNCIO = re.compile(r"asyncio|import_module|__import__|\bexec\b|\beval\b")


def driver_for(source: str, channel: Channel) -> Driver:
    """Return the cheapest driver that a program can do with."""
    return EventLoop(channel) if _MAY_USE_ASYNCIO.search(source) else Sequence(channel)


class _Wanted(int):
    """The number of the call whose reply is awaited; nobody else can yield one."""


@coroutine
def _ask(id: int) -> Generator[_Wanted, dict[str, Any], dict[str, Any]]:
    return (yield _Wanted(id))


class Sequence:
    """One call at a time: the interpreter simply waits for the reply that is awaited."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def reply(self, id: int) -> dict[str, Any]:
        """Wait for the reply to a call."""
        return await _ask(id)

    def run(self, program: Coroutine[Any, Any, Any]) -> Any:
        """Run a program to its end."""
        reply: Any = None
        try:
            while True:
                wanted = program.send(reply)
                while type(wanted) is not _Wanted:
                    wanted = program.throw(RuntimeError(_NO_LOOP))
                reply = self._channel.receive()
                while reply["id"] != wanted:
                    reply = self._channel.receive()
        except StopIteration as end:
            return end.value


class EventLoop:
    """Asyncio's loop, which hears the replies beside all else that it does."""

    def __init__(self, channel: Channel) -> None:
        import asyncio

        self._channel = channel
        self._loop = asyncio.new_event_loop()
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}

    async def reply(self, id: int) -> dict[str, Any]:
        """Wait for the reply to a call."""
        self._waiting[id] = self._loop.create_future()
        try:
            return await self._waiting[id]
        finally:
            del self._waiting[id]

    def run(self, program: Coroutine[Any, Any, Any]) -> Any:
        """Run a program to its end."""
        self._loop.add_reader(self._channel.fd, self._hear)
        return self._loop.run_until_complete(program)

    def _hear(self) -> None:
        try:
            frames = self._channel.arrived()
        except MemoryError as error:
            # Raised here, the loop would print it and everybody would wait for ever.
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(error)
            return
        for frame in frames:
            waiting = self._waiting.get(frame["id"])
            if waiting is not None and not waiting.done():
                waiting.set_result(frame)
