"""Threads for native work, in the order of asking, and work that several callers share."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Generic, TypeVar

from dsh.base.signal import AbortedError

__all__ = ["Lane", "SharedWork", "Stop"]

T = TypeVar("T")

_UNLOADING: Final = "the attachment store is unloading"


class Stop:
    """Tells work in a thread that nobody waits for it any more."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        """Ask the work to end at its next check."""
        self._event.set()

    def check(self) -> None:
        """Raise when the work should end.

        Raises:
            AbortedError: nobody waits.
        """
        if self._event.is_set():
            raise AbortedError("nobody waits for the image any more")


class Lane:
    """A bounded number of threads that take calls first in, first out; started when first used."""

    def __init__(self, name: str, width: int) -> None:
        self._name = name
        self._width = width
        self._executor: ThreadPoolExecutor | None = None
        self._stops: set[Stop] = set()
        self._closed = False

    async def run(self, call: Callable[..., T], *args: Any) -> T:
        """Run a call in a thread; a caller that is cancelled while it queues takes it back.

        Raises:
            AbortedError: the store unloads.
        """
        if self._closed:
            raise AbortedError(_UNLOADING)
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self._width, thread_name_prefix=self._name)
        return await asyncio.get_running_loop().run_in_executor(self._executor, call, *args)

    async def run_stoppable(self, call: Callable[[Stop], T]) -> T:
        """Run a call that asks, from time to time, whether its caller still waits.

        A cancelled caller is let go at once; its call ends at the next check.

        Raises:
            AbortedError: the store unloads.
        """
        stop = Stop()
        self._stops.add(stop)

        def run() -> T:
            stop.check()
            return call(stop)

        try:
            return await self.run(run)
        except asyncio.CancelledError:
            stop.set()
            raise
        finally:
            self._stops.discard(stop)

    async def close(self) -> None:
        """Stop the calls that can be, wait for the others, and take no more."""
        self._closed = True
        for stop in self._stops:
            stop.set()
        executor, self._executor = self._executor, None
        if executor is not None:
            await asyncio.to_thread(executor.shutdown, wait=True)


class SharedWork(Generic[T]):
    """Work by key: those who ask while it runs wait for the same result.

    It runs in the contextvars of the moment this object was made, so that it carries nobody's
    identity, and is cancelled when the last of its waiters has left.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._context = contextvars.copy_context()
        self._running: dict[str, _Flight[T]] = {}
        self._tasks: set[asyncio.Task[T]] = set()
        self._closed = False

    async def run(self, key: str, work: Callable[[], Awaitable[T]]) -> T:
        """Return the result of the work, which starts unless it runs already.

        Raises:
            AbortedError: the store unloads.
            Exception: what the work raised.
        """
        if self._closed:
            raise AbortedError(_UNLOADING)
        flight = self._running.get(key)
        if flight is None:
            flight = self._running[key] = _Flight(self._start(key, work))
            flight.task.add_done_callback(lambda _: self._forget(key, flight))
        flight.waiters += 1
        try:
            return await asyncio.shield(flight.task)
        except asyncio.CancelledError:
            if self._closed and not _is_cancelled():
                raise AbortedError(_UNLOADING) from None
            raise
        finally:
            flight.waiters -= 1
            if not flight.waiters and not flight.task.done():
                # Whoever asks from now on starts afresh.
                self._forget(key, flight)
                flight.task.cancel()

    async def close(self) -> None:
        """Cancel what runs, and wait until it has ended."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    def _start(self, key: str, work: Callable[[], Awaitable[T]]) -> asyncio.Task[T]:
        async def run() -> T:
            return await work()

        loop = asyncio.get_running_loop()
        task = loop.create_task(run(), name=f"{self._name}:{key}", context=self._context)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[T]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # those who waited have it

    def _forget(self, key: str, flight: _Flight[T]) -> None:
        if self._running.get(key) is flight:
            del self._running[key]


class _Flight(Generic[T]):
    """One piece of work and how many wait for it."""

    def __init__(self, task: asyncio.Task[T]) -> None:
        self.task = task
        self.waiters = 0


def _is_cancelled() -> bool:
    """Whether the cancellation at hand was meant for the task that runs."""
    task = asyncio.current_task()
    return task is not None and bool(task.cancelling())
