"""Operations one after the other: each runs to its end, whoever stops waiting for it."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

T = TypeVar("T")


class SerialQueue:
    """Runs operations on one key in the order they were asked for; keys do not wait for others.

    A caller that is cancelled is let go at once; its operation is carried out all the same. The
    operations run in the contextvars of the moment the queue was made, so that they never carry
    the identity of whoever happened to ask.

    Args:
        name: Part of the names of the tasks.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._context = contextvars.copy_context()
        self._tails: dict[str, asyncio.Task[Any]] = {}

    async def run(self, operation: Callable[[], Awaitable[T]], *, key: str = "") -> T:
        """Run an operation in its turn and return what it returns."""
        return await asyncio.shield(self.start(operation, key=key))

    def start(self, operation: Callable[[], Awaitable[T]], *, key: str = "") -> asyncio.Task[T]:
        """Ask for an operation; its failure is for those who await the task, if any do."""
        before = self._tails.get(key)
        work = _in_turn(operation, before)
        name = f"{self._name}:{key}" if key else self._name
        task = asyncio.get_running_loop().create_task(work, name=name, context=self._context)
        self._tails[key] = task
        task.add_done_callback(lambda done: self._leave(key, done))
        return task

    async def join(self) -> None:
        """Wait until nothing runs or waits."""
        while self._tails:
            await asyncio.wait(set(self._tails.values()))

    def _leave(self, key: str, task: asyncio.Task[Any]) -> None:
        if self._tails.get(key) is task:
            del self._tails[key]
        if not task.cancelled():
            task.exception()


async def _in_turn(operation: Callable[[], Awaitable[T]], before: asyncio.Task[Any] | None) -> T:
    if before is not None and not before.done():
        await asyncio.wait({before})
    del before  # a chain of finished tasks would never be collected
    return await operation()
