"""Waiting for the next change of something, for a bounded time of the loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dsh.base.signal import AbortSignal


def loop_time() -> float:
    """Return the running loop's time; 0 where none runs, and so nobody can wait either."""
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:
        return 0.0


class Changes:
    """Wakes whoever waits when something changed; what, they look up themselves."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def announce(self) -> None:
        """Wake all that wait now."""
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)

    async def next(self, within_s: float, signal: AbortSignal | None = None) -> None:
        """Return at the next change, when the time is over, or when the signal aborts."""
        if signal is not None and signal.aborted:
            return
        loop = asyncio.get_running_loop()
        change: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not change.done():
                change.set_result(None)

        timer = loop.call_later(within_s, wake)
        remove = signal.add_listener(wake) if signal is not None else None
        self._waiting.add(change)
        try:
            await change
        finally:
            self._waiting.discard(change)
            timer.cancel()
            if remove is not None:
                remove()
