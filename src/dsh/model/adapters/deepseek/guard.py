"""Bounds reads of a stream by an idle timeout and by the caller's signal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from dsh.base.signal import AbortedError, AbortSignal

_T = TypeVar("_T")

__all__ = ["ReadGuard"]


class ReadGuard:
    """Cancels the read that is outstanding when the signal aborts or the time is up.

    The clock runs only inside `run`: time that the consumer takes between reads is not silence
    of the provider. Nor is the time
    in which a long request still goes out. Enter it around all reads of one call. One timer
    serves all of them, so that a read costs next to nothing.
    """

    __slots__ = (
        "_fired",
        "_idle_s",
        "_left",
        "_loop",
        "_signal",
        "_since",
        "_task",
        "_timer",
        "_unlink",
        "_unsent",
    )

    def __init__(self, signal: AbortSignal | None, idle_s: float) -> None:
        self._signal = signal
        self._idle_s = idle_s
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[Any] | None = None  # who reads; None between reads
        self._since = 0.0
        self._fired = False
        self._unsent: Callable[[], int] | None = None
        self._left = 0
        self._timer: asyncio.TimerHandle | None = None
        self._unlink: Callable[[], None] | None = None

    def __enter__(self) -> Self:
        if self._signal is not None:
            self._unlink = self._signal.add_listener(self._interrupt)
        self._timer = self._loop.call_later(self._idle_s, self._check)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._unlink is not None:
            self._unlink()
        if self._timer is not None:
            self._timer.cancel()

    async def run(self, read: Coroutine[Any, Any, _T]) -> _T:
        """Await ``read`` in the calling task.

        Raises:
            AbortedError: the signal aborted before the read was done.
            TimeoutError: the read took longer than the idle time.
        """
        if self._signal is not None and self._signal.aborted:
            # Not by cancelling: a read that need not wait would leave the cancellation pending.
            read.close()
            self.throw_if_aborted()
        task = asyncio.current_task()
        assert task is not None  # we are in a coroutine
        before = task.cancelling()
        self._since = self._loop.time()
        self._task = task
        try:
            return await read
        except asyncio.CancelledError:
            if self._fired and task.uncancel() <= before:
                if self._signal is not None and self._signal.aborted:
                    raise AbortedError(self._signal.reason) from None
                raise TimeoutError from None
            raise
        finally:
            self._task = None

    def watch_sending(self, unsent: Callable[[], int]) -> None:
        """Count each byte that leaves as a sign of life.

        Args:
            unsent: Returns how many bytes of the request are still to be sent.
        """
        self._unsent = unsent
        self._left = unsent()

    def throw_if_aborted(self) -> None:
        """Raise `AbortedError` when the signal aborted."""
        if self._signal is not None and self._signal.aborted:
            raise AbortedError(self._signal.reason)

    def _check(self) -> None:
        """Look whether the read under way is too old, and when to look again."""
        now = self._loop.time()
        if self._unsent is not None and self._left:
            left, self._left = self._left, self._unsent()
            if self._left < left:
                self._since = now
        due = (now if self._task is None else self._since) + self._idle_s
        if due <= now:
            self._interrupt()
        else:
            self._timer = self._loop.call_at(due, self._check)

    def _interrupt(self) -> None:
        # A task that reads is suspended in the read, so the cancellation lands there.
        if self._task is not None and not self._fired:
            self._fired = True
            self._task.cancel()
