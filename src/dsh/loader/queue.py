"""One line for all changes of a tree: each waits for its turn, none waits for itself."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any, TypeVar

from dsh.base.signal import AbortSignal
from dsh.kernel import Context, Fiber, leave_frames, live_frames, standing_aside

T = TypeVar("T")


class ChangeQueue:
    """Runs changes one after the other, in the order they were asked for.

    A change runs in a task of its own: whoever asked may be cancelled, the change goes on to its
    end or its rollback. One that fails does not stop the next. Code that a running change waits
    for, such as the body of a plugin that it mounts, is not queued behind it: its changes run
    inside the running one.

    Args:
        ctx: Its plugin owns the tasks; when that unloads, waiting changes are refused.
    """

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._waiting: deque[_Change] = deque()
        self._running: _Change | None = None
        self._members: set[asyncio.Task[Any]] = set()

    async def run(
        self, what: str, work: Callable[[], Awaitable[T]], *, stop: AbortSignal | None = None
    ) -> T:
        """Run a change when its turn comes, and return what it returns.

        Args:
            what: Names the task.
            work: The change.
            stop: Gives up a change whose turn has not come when it aborts. Such a change is
                always queued: nothing waits for it that this signal does not end.

        Raises:
            InactiveEffect: the loader is unloading or gone.
            AbortedError: given up by ``stop``.
        """
        inside = self._running is not None and stop is None and self.is_inside()
        if inside or asyncio.current_task() in self._members:
            return await work()
        self._ctx.fiber.check_active()
        change = _Change(what, work)
        if stop is not None:
            change.context.run(leave_frames, self._ctx.fiber)
        remove = stop.add_listener(lambda: change.give_up(stop.error()), now=True) if stop else None
        self._waiting.append(change)
        self._next()
        try:
            with standing_aside():
                return await asyncio.shield(change.outcome)
        except asyncio.CancelledError:
            change.give_up(None)
            change.awaited = False
            raise
        finally:
            if remove is not None:
                remove()

    @property
    def busy(self) -> bool:
        """Whether a change runs or waits for its turn."""
        return self._running is not None or bool(self._waiting)

    async def idle(self) -> None:
        """Wait until no change runs, whatever came of them."""
        while self._running is not None:
            await asyncio.wait([self._running.outcome])

    def is_inside(self) -> bool:
        """Whether the running code is part of a transition of a plugin in the tree."""
        return any(_is_below(frame.fiber, self._ctx.fiber) for frame in live_frames())

    @contextmanager
    def joined(self) -> Iterator[None]:
        """Let what the current task does inside count as part of the running change."""
        task = asyncio.current_task()
        if task is None or task in self._members:
            yield
            return
        self._members.add(task)
        try:
            yield
        finally:
            self._members.discard(task)

    def _next(self) -> None:
        """Start the change whose turn it is, unless one runs."""
        while self._running is None and self._waiting:
            change = self._waiting.popleft()
            if change.outcome.done():
                continue
            fiber = self._ctx.fiber
            try:
                fiber.check_active()
            except Exception as error:
                change.give_up(error)
                continue
            self._running = change
            change.started = True
            change.context.run(
                fiber.own_task, self._perform(change), f"loader: {change.what}", cancel=False
            )

    async def _perform(self, change: _Change) -> None:
        try:
            with self.joined():
                result = await change.work()
        except asyncio.CancelledError:
            change.outcome.cancel()
            raise
        except BaseException as error:
            change.fail(error)
            if not change.awaited:
                self._ctx.report(error, label=f"loader: {change.what}")
        else:
            if not change.outcome.done():
                change.outcome.set_result(result)
        finally:
            self._running = None
            self._next()


class _Change:
    """One change that was asked for."""

    def __init__(self, what: str, work: Callable[[], Awaitable[Any]]) -> None:
        self.what = what
        self.work = work
        self.started = False
        self.awaited = True
        self.context = copy_context()
        self.outcome: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def give_up(self, error: BaseException | None) -> None:
        """End a change that has not started; without an error, nobody waits for it any more."""
        if self.started or self.outcome.done():
            return
        if error is None:
            self.outcome.cancel()
        else:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Tell whoever waits."""
        if not self.outcome.done():
            self.outcome.set_exception(error)
            self.outcome.exception()  # looked at: its waiter may be gone


def _is_below(fiber: Fiber | None, above: Fiber) -> bool:
    while fiber is not None:
        fiber = fiber.parent_fiber
        if fiber is above:
            return True
    return False
