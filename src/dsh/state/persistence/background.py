"""Storage work beside the loop: threads, tasks that nobody may cancel, order by session."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from dsh.state.persistence.errors import PersistenceError

T = TypeVar("T")

_MOST_THREADS = 4


class Workers:
    """A few threads for calls that block, started when first used.

    Args:
        name: Part of the names of the threads.
        most: How many there are at most; with one, calls run in the order they were made.
    """

    def __init__(self, name: str, most: int = _MOST_THREADS) -> None:
        self._name = name
        self._most = most
        self._executor: ThreadPoolExecutor | None = None
        self._closed = False

    async def run(self, call: Callable[..., T], *args: Any) -> T:
        """Run a call in a thread and return what it returns.

        Raises:
            PersistenceError: the threads have been ended.
        """
        if self._closed:
            raise PersistenceError("session persistence is shutting down")
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self._most, thread_name_prefix=self._name)
        return await asyncio.get_running_loop().run_in_executor(self._executor, call, *args)

    def close(self) -> None:
        """End the threads; every call must have returned."""
        self._closed = True
        if self._executor is not None:
            self._executor.shutdown(wait=True)
            self._executor = None


class Tasks:
    """Tasks that run to their end whoever stops waiting for them.

    They run in the contextvars of the moment this object was made, so that storage work never
    carries the identity of an agent that happened to cause it.
    """

    def __init__(self) -> None:
        self.context = contextvars.copy_context()
        self._running: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Start a task; its failure is for those who await it, and is no secret if none does."""
        task = asyncio.get_running_loop().create_task(work, name=name, context=self.context)
        self._running.add(task)
        task.add_done_callback(self._finished)
        return task

    async def join(self) -> None:
        """Wait until no task runs."""
        while self._running:
            await asyncio.wait(set(self._running))

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()


class Chains:
    """Runs operations on the same key one after the other, in the order they were asked for.

    An operation that has begun runs to its end. A caller that is cancelled while it waits in the
    queue is let go at once, and its operation is left out.
    """

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._tails: dict[str, asyncio.Task[Any]] = {}

    async def run(
        self,
        key: str,
        operation: Callable[[], Awaitable[T]],
        *,
        unclaimed: Callable[[T], object] | None = None,
    ) -> T:
        """Run an operation in its turn.

        Args:
            key: What it works on.
            operation: The work.
            unclaimed: Gets the result when the caller was cancelled meanwhile.
        """
        turn = _Turn(operation, self._tails.get(key), unclaimed)
        task = self._tails[key] = self._tasks.start(turn.run(), f"session-log:{key}")
        task.add_done_callback(lambda done: self._leave(key, done))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            turn.abandoned = True
            if task.done() and not task.cancelled() and task.exception() is None:
                turn.hand_over(task.result())
            raise

    def _leave(self, key: str, task: asyncio.Task[Any]) -> None:
        if self._tails.get(key) is task:
            del self._tails[key]


class _Turn:
    """One operation in the queue; what nobody takes is handed over before the next one begins."""

    def __init__(
        self,
        operation: Callable[[], Awaitable[Any]],
        before: asyncio.Task[Any] | None,
        unclaimed: Callable[[Any], object] | None,
    ) -> None:
        self.abandoned = False
        self._operation = operation
        self._before = before
        self._unclaimed = unclaimed

    async def run(self) -> Any:
        if self._before is not None and not self._before.done():
            await asyncio.wait({self._before})
        self._before = None
        if self.abandoned:
            raise asyncio.CancelledError
        result = await self._operation()
        if self.abandoned:
            self.hand_over(result)
        return result

    def hand_over(self, result: Any) -> None:
        if self._unclaimed is not None:
            self._unclaimed(result)
