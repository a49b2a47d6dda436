"""When a growing log is written: a little later, in batches, and never by the writer's caller."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from dsh.state.persistence.background import Tasks


class WriteBehind:
    """Collects what arrives in a fixed window, then writes all of it.

    The first arrival opens the window; later ones join it and do not move its end. What arrives
    during a write opens a window of its own. After a failed write nothing is tried until the
    next arrival or `flush`.

    Args:
        name: Names the tasks.
        pending: Whether anything is unwritten.
        write: Writes all that is unwritten when it begins; on failure it stays unwritten.
        window_s: The length of the window.
        tasks: Owns the writes.
        failed: Told of a failed write that nobody waited for, once until a write succeeds.
    """

    def __init__(
        self,
        name: str,
        *,
        pending: Callable[[], bool],
        write: Callable[[], Awaitable[object]],
        window_s: float,
        tasks: Tasks,
        failed: Callable[[Exception], object],
    ) -> None:
        self._name = name
        self._pending = pending
        self._write = write
        self._window_s = window_s
        self._tasks = tasks
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None
        self._barrier: asyncio.Task[None] | None = None
        self._due = False
        self._told = False

    def offer(self) -> bool:
        """Something arrived; return whether it opened a window."""
        if self._timer is not None:
            return False
        self._timer = self._loop.call_later(
            self._window_s, self._expire, context=self._tasks.context
        )
        return True

    def hasten(self) -> None:
        """End the open window now, if there is one."""
        if self._timer is not None:
            self._timer.cancel()
            self._expire()

    async def flush(self) -> None:
        """Write all there is, also what arrives meanwhile; callers at the same time share it.

        Raises:
            Exception: what the write raised; nothing is lost, and the next flush tries again.
        """
        if self._barrier is None:
            if self._writing is None and not self._pending():
                self._cancel_timer()
                return
            self._barrier = self._tasks.start(self._drain(), f"{self._name}:flush")
        await asyncio.shield(self._barrier)

    def stop(self) -> None:
        """Open no more windows."""
        self._cancel_timer()

    def _expire(self) -> None:
        self._timer = None
        if self._barrier is not None:
            return
        if self._writing is not None:
            self._due = True
        else:
            self._writing = self._tasks.start(self._write_window(), f"{self._name}:write")

    async def _write_window(self) -> None:
        try:
            self._due = True
            while self._due:
                self._due = False
                if self._pending():
                    await self._write()
                    self._told = False
        except Exception as error:
            if not self._told:
                self._told = True
                self._failed(error)
        finally:
            self._writing = None

    async def _drain(self) -> None:
        try:
            self._cancel_timer()
            if self._writing is not None:
                await asyncio.wait({self._writing})
            while self._pending():
                await self._write()
                self._told = False
            self._cancel_timer()
        finally:
            self._barrier = None

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
