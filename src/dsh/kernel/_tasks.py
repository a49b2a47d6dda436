"""Tasks that a fiber owns: its unload ends or awaits them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, TypeVar

from dsh.kernel._shapes import discard
from dsh.kernel._stack import enter_frame, leave_frames, wait_task
from dsh.kernel.effect import Effect
from dsh.kernel.errors import WrongLoop
from dsh.kernel.states import DISPOSED

if TYPE_CHECKING:
    from dsh.kernel.fiber import Fiber

T = TypeVar("T")


def own_task(
    fiber: Fiber, work: Awaitable[T], label: str, cancel: bool, critical: bool
) -> asyncio.Task[T]:
    """See ``Fiber.own_task``; the root owns it when the fiber is gone already."""
    kernel = fiber.kernel
    owner = fiber if fiber.state is not DISPOSED else kernel.root_fiber
    try:
        loop = kernel.bind_loop(label)
    except WrongLoop:
        discard(work)
        raise
    # a task that is only awaited may not wait for the unload that awaits it; a cancelled one may
    task = loop.create_task(_run(work, None if cancel else owner), name=label)
    effect = Effect(owner, label, _TaskUndo(task, cancel))
    kernel.owned.add(task)
    kernel.tasks.add(task)

    def ended(_: object) -> None:
        kernel.tasks.discard(task)
        effect.forget()
        error = None if task.cancelled() else task.exception()
        if error is not None:
            kernel.report(error, owner, label)
            if critical:
                owner.fail(error)

    task.add_done_callback(ended)
    return task


class _TaskUndo:
    """Undoes a task: asks it to stop, or only waits for it."""

    __slots__ = ("cancel", "task")

    def __init__(self, task: asyncio.Task[Any], cancel: bool) -> None:
        self.task = task
        self.cancel = cancel

    def __call__(self) -> Awaitable[None] | None:
        task = self.task
        if task.done():
            return None
        if self.cancel:
            task.cancel()
            if task is asyncio.current_task():
                return None
        return wait_task(task)


async def _run(work: Awaitable[T], fiber: Fiber | None) -> T:
    if fiber is None:
        leave_frames()
        return await work
    frame = enter_frame(fiber)
    try:
        return await work
    finally:
        frame.alive = False
