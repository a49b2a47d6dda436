"""Setups that nobody wants any more: most end by themselves, the others are cancelled.

A body or an effect's setup whose plugin is unloaded runs on to its end, which its stop signal
asks for. What it does is undone anyway, so one that never ends is cancelled when the grace for
work in flight is over; else the unload, and all that waits for it, would never end either.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from dsh.kernel.errors import SetupOverdue

if TYPE_CHECKING:
    from dsh.kernel.effect import Effect
    from dsh.kernel.fiber import Fiber


class Patience:
    """Cancels the running body of a fiber that stays unwanted for longer than the grace."""

    __slots__ = ("_cancelled", "_fiber", "_task", "_timer")

    def __init__(self, fiber: Fiber) -> None:
        self._fiber = fiber
        self._task = asyncio.current_task()
        self._timer: asyncio.TimerHandle | None = None
        self._cancelled = False

    def begin(self) -> None:
        """Count from now on, unless it counts already."""
        if self._timer is None and not self._cancelled and self._task is not None:
            grace = self._fiber.kernel.lease_grace_s
            self._timer = self._task.get_loop().call_later(grace, self._expire)

    def end(self) -> None:
        """Count no more; the body has ended."""
        if self._timer is not None:
            self._timer.cancel()
        if self._cancelled and self._task is not None:
            # the fiber's own work goes on in this task
            self._task.uncancel()

    def _expire(self) -> None:
        self._timer = None
        fiber, task = self._fiber, self._task
        wanted = fiber.uid is not None and not fiber._stale and fiber._target == fiber._loaded
        if wanted or task is None:
            return
        self._cancelled = True
        fiber.kernel.report(SetupOverdue(fiber.title, fiber.kernel.lease_grace_s), fiber, "apply")
        task.cancel()


def limit_setup(effect: Effect, task: asyncio.Task[None]) -> None:
    """Cancel the setup of an effect that is to be undone, when it outlives the grace."""
    fiber = effect._fiber
    grace = fiber.kernel.lease_grace_s

    def expire() -> None:
        if effect.setting_up:
            fiber.kernel.report(SetupOverdue(fiber.title, grace), fiber, effect.label)
            task.cancel()

    timer = task.get_loop().call_later(grace, expire)
    task.add_done_callback(lambda _: timer.cancel())
