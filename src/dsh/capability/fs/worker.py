"""Blocking file work off the loop: one hop an operation, nothing left running behind it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import field
from typing import TypeVar

from dsh.base.signal import AbortSignal
from dsh.base.values import record
from dsh.capability.fs.service import FsError

T = TypeVar("T")


class Stop:
    """Tells a worker thread that its caller has given up."""

    __slots__ = ("_signal", "cancelled")

    def __init__(self, signal: AbortSignal | None) -> None:
        self._signal = signal
        self.cancelled = False

    def check(self) -> None:
        """Raise once the caller has given up.

        Raises:
            FsError: ``FS_ABORTED``.
        """
        if self.cancelled or (self._signal is not None and self._signal.aborted):
            raise FsError("the file operation was aborted", code="FS_ABORTED")


async def run_blocking(work: Callable[[Stop], T], signal: AbortSignal | None) -> T:
    """Run ``work`` in a thread and wait for its end, also when this task is cancelled.

    Raises:
        FsError: ``FS_ABORTED`` at once when the signal is aborted already; nothing ran.
    """
    stop = Stop(signal)
    stop.check()
    running = asyncio.get_running_loop().run_in_executor(None, work, stop)
    try:
        await asyncio.wait([running])
    except asyncio.CancelledError:
        stop.cancelled = True
        await _settled(running)
        raise
    return running.result()


async def _settled(running: asyncio.Future[T]) -> None:
    while not running.done():
        try:
            await asyncio.wait([running])
        except asyncio.CancelledError:
            continue
    running.exception()  # seen, though nobody is left to hear of it


@record
class _Turnstile:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


class KeyedLocks:
    """One first-come-first-served lock for each key in use."""

    def __init__(self) -> None:
        self._turnstiles: dict[str, _Turnstile] = {}

    @asynccontextmanager
    async def hold(self, key: str) -> AsyncIterator[None]:
        """Hold the lock of ``key``; it is forgotten with its last user."""
        turnstile = self._turnstiles.setdefault(key, _Turnstile())
        turnstile.users += 1
        try:
            async with turnstile.lock:
                yield
        finally:
            turnstile.users -= 1
            if not turnstile.users:
                del self._turnstiles[key]

    def __len__(self) -> int:
        return len(self._turnstiles)
