"""Tasks that a fiber owns: its unload ends or awaits them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, TypeVar

from dsh.kernel._shapes import close_coroutine, discard
from dsh.kernel._stack import Frame, enter_frame, leave_frames, wait_task
from dsh.kernel._stray import as_failure, told_to_stop
from dsh.kernel.effect import Effect
from dsh.kernel.errors import LeaseExpired, WrongLoop
from dsh.kernel.states import DISPOSED, UNLOADING

if TYPE_CHECKING:
    from dsh.kernel.fiber import Fiber

T = TypeVar("T")


def own_task(
    fiber: Fiber, work: Awaitable[T], label: str, cancel: bool, critical: bool, bounded: bool
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
    task = loop.create_task(_run(work, owner, label, cancel), name=label)
    effect = Effect(owner, label, _TaskUndo(task, cancel, bounded, owner, label))
    kernel.owned.add(task)
    kernel.tasks.add(task)

    def ended(_: object) -> None:
        kernel.tasks.discard(task)
        effect.forget()
        if task.cancelled():
            close_coroutine(work)  # of a task that was cancelled before its first step
        error = None if task.cancelled() else task.exception()
        if error is not None:
            kernel.report(error, owner, label)
            if critical:
                owner.fail(error)

    task.add_done_callback(ended)
    return task


class _TaskUndo:
    """Undoes a task: asks it to stop, or waits for it, with patience as for leases or without end.

    Attributes:
        bounded: Cancel it when it has not ended within the grace of leases.
    """

    __slots__ = ("bounded", "cancel", "label", "owner", "task")

    def __init__(
        self, task: asyncio.Task[Any], cancel: bool, bounded: bool, owner: Fiber, label: str
    ) -> None:
        self.task = task
        self.cancel = cancel
        self.bounded = bounded
        self.owner = owner
        self.label = label

    def __call__(self) -> Awaitable[None] | None:
        task = self.task
        if task.done():
            return None
        if self.cancel:
            task.cancel()
            if task is asyncio.current_task():
                return None
        return self._wait() if self.bounded and not self.cancel else wait_task(task)

    async def _wait(self) -> None:
        kernel = self.owner.kernel
        timer = asyncio.get_running_loop().call_later(kernel.lease_grace_s, self._expire)
        try:
            await wait_task(self.task)
        finally:
            timer.cancel()

    def _expire(self) -> None:
        kernel = self.owner.kernel
        error = LeaseExpired(self.owner.title, [self.label], kernel.lease_grace_s)
        kernel.report(error, self.owner, self.label)
        self.task.cancel()


async def _run(work: Awaitable[T], owner: Fiber, label: str, cancel: bool) -> T:
    frame: Frame | None = None
    if cancel:
        leave_frames(owner)
    else:
        frame = enter_frame(owner)
    try:
        return await work
    except Exception:
        raise
    except BaseException as error:
        if told_to_stop(error) or _is_expected(error, owner):
            raise
        raise as_failure(error, owner, label) from error
    finally:
        if frame is not None:
            frame.alive = False


def _is_expected(error: BaseException, owner: Fiber) -> bool:
    """Whether it passes on the cancellation of a task that goes with the same unload."""
    return isinstance(error, asyncio.CancelledError) and (
        owner.uid is None or owner.state is UNLOADING
    )
