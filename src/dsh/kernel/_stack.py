"""Which transitions the running code is part of, and who waits for whom.

Every kernel task that runs plugin code pushes a frame on a context variable; tasks started
from there inherit it. A frame counts only while its transition runs. Joining a transition
consults the frames, so that code which waits for itself gets an error and not a hang.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterator
from contextvars import ContextVar
from types import coroutine
from typing import TYPE_CHECKING, Any

from dsh.kernel.errors import ReentrantAwait

if TYPE_CHECKING:
    from dsh.kernel._lease import Lease
    from dsh.kernel.effect import Effect
    from dsh.kernel.fiber import Fiber


class Frame:
    """A running transition of a fiber, or a setup or undo of one of its effects."""

    __slots__ = ("alive", "effect", "fiber", "outer")

    def __init__(self, fiber: Fiber, effect: Effect | None, outer: Frame | None) -> None:
        self.fiber = fiber
        self.effect = effect
        self.outer = outer
        self.alive = True


_current: ContextVar[Frame | None] = ContextVar("dsh_kernel_transition", default=None)
_owner: ContextVar[Fiber | None] = ContextVar("dsh_kernel_task_owner", default=None)
_lease: ContextVar[Lease | None] = ContextVar("dsh_kernel_lease", default=None)


def enter_frame(fiber: Fiber, effect: Effect | None = None) -> Frame:
    """Push a frame in a task of its own; the task's end drops it, ``alive`` ends it earlier."""
    outer = _current.get()
    while outer is not None and not outer.alive:
        outer = outer.outer
    frame = Frame(fiber, effect, outer)
    _current.set(frame)
    return frame


def leave_frames(owner: Fiber) -> None:
    """Stop counting as part of a transition, in a task that its owner's unload cancels."""
    _current.set(None)
    _owner.set(owner)


def current_owner() -> Fiber | None:
    """Return whose unload ends the current code: of the transition or the task that it is in."""
    for frame in live_frames():
        return frame.fiber
    return _owner.get()


def current_lease() -> Lease | None:
    """Return the innermost lease that the current code is inside of; others are its outer ones."""
    lease = _lease.get()
    while lease is not None and lease.fiber is None:
        lease = lease.outer
    return lease


def set_lease(lease: Lease | None) -> None:
    """Set the innermost lease of the current code."""
    _lease.set(lease)


def held_leases() -> list[Lease]:
    """Return the leases that the current code is inside of, innermost first."""
    found: list[Lease] = []
    lease = _lease.get()
    while lease is not None:
        if lease.fiber is not None:
            found.append(lease)
        lease = lease.outer
    return found


def live_frames() -> Iterator[Frame]:
    """Yield the running transitions that the current code is part of, innermost first."""
    frame = _current.get()
    while frame is not None:
        if frame.alive:
            yield frame
        frame = frame.outer


@coroutine
def begin() -> Generator[None, None, None]:
    """Where kernel work stands when its task is made.

    A task that is cancelled before its first step would else skip its work altogether; so the
    work itself gets that cancellation, here.
    """
    yield


async def begin_anyway() -> None:
    """Begin work that has to run; a cancellation before its first step reaches it later."""
    try:
        await begin()
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None:
            task.cancel()


async def wait_task(task: asyncio.Future[Any], join: Join | None = None) -> None:
    """Wait for a task's end; its result is not looked at, and cancelling us leaves it alone."""
    if task.done():
        return
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake(_: object) -> None:
        if not done.done():
            done.set_result(None)

    task.add_done_callback(wake)
    if join is not None:
        join.done = done
    try:
        await done
    finally:
        task.remove_done_callback(wake)


def check_effect_join(effect: Effect) -> None:
    """Refuse to wait for an effect from inside its own setup or undo.

    Raises:
        ReentrantAwait: the current code is that setup or undo.
    """
    for frame in live_frames():
        if frame.effect is effect:
            raise ReentrantAwait(f"effect {effect.label!r}", "its own setup or undo")


class Join:
    """One wait for a fiber from inside transitions or leases, which cannot end before it."""

    __slots__ = ("done", "frames", "leases", "target")

    def __init__(self, target: Fiber, frames: list[Frame], leases: list[Lease]) -> None:
        self.target = target
        self.frames = frames
        self.leases = leases
        self.done: asyncio.Future[None] | None = None
        for frame in frames:
            waits = frame.fiber._waits
            if waits is None:
                waits = frame.fiber._waits = {}
            waits[self] = None

    def begin(self) -> None:
        """Be known, also to those who wait already."""
        self.target.kernel.joins[self] = None
        self.target.kernel.recheck_waits()

    def holds(self, fiber: Fiber) -> bool:
        """Whether the fiber's transition still runs, and with it what waits here."""
        return any(frame.alive and frame.fiber is fiber for frame in self.frames)

    def check(self) -> None:
        """Refuse to wait for what waits for us.

        Raises:
            ReentrantAwait: the current code is part of what would have to end first.
        """
        target = self.target
        for frame in self.frames:
            fiber = frame.fiber
            if not frame.alive:
                continue
            if (
                fiber is target
                or is_ancestor(target, fiber)
                or reaches(target, fiber, drains=False)
            ):
                raise ReentrantAwait(f"the transition of plugin {target.title!r}", _where(frame))

    def give_up_if_circular(self) -> None:
        """Raise in whoever waits when others started to wait for it meanwhile."""
        try:
            self.check()
        except ReentrantAwait as error:
            self.end()
            if self.done is not None and not self.done.done():
                self.done.set_exception(error)

    def end(self) -> None:
        """Wait no more."""
        self.target.kernel.joins.pop(self, None)
        for frame in self.frames:
            waits = frame.fiber._waits
            if waits is not None:
                waits.pop(self, None)
                if not waits:
                    frame.fiber._waits = None


async def join_fiber(fiber: Fiber, work: asyncio.Future[Any] | None = None) -> None:
    """Wait for ``work``, then follow a fiber's transitions until none is in flight.

    Raises:
        ReentrantAwait: the current code is part of what would have to end first.
    """
    if fiber._driver is None and work is None:
        return
    frames, leases = list(live_frames()), held_leases()
    if not frames and not leases:
        await _follow(fiber, work, None)
        return
    join = Join(fiber, frames, leases)
    try:
        join.check()
        join.begin()
        await _follow(fiber, work, join)
    finally:
        join.end()


async def join_undo(effect: Effect, task: asyncio.Future[Any]) -> None:
    """Wait for the undo of an effect, of which the waits of its owner may be part.

    Raises:
        ReentrantAwait: the current code is that undo.
    """
    check_effect_join(effect)
    leases = held_leases()
    if not leases:
        await wait_task(task)
        return
    join = Join(effect._fiber, [], leases)
    join.begin()
    try:
        await wait_task(task, join)
    finally:
        join.end()


async def _follow(fiber: Fiber, work: asyncio.Future[Any] | None, join: Join | None) -> None:
    if work is not None:
        await wait_task(work, join)
    while (driver := fiber._driver) is not None and not driver.done():
        await wait_task(driver, join)


def _where(frame: Frame) -> str:
    inside = f"plugin {frame.fiber.title!r}"
    return f"effect {frame.effect.label!r} of {inside}" if frame.effect is not None else inside


def is_ancestor(above: Fiber, below: Fiber) -> bool:
    """Tell whether ``below`` was mounted, at any depth, from ``above``."""
    parent = below.parent_fiber
    while parent is not None:
        if parent is above:
            return True
        parent = parent.parent_fiber
    return False


def rests_on(start: Fiber, goal: Fiber) -> bool:
    """Tell whether ``start`` would unload with ``goal``: by mount, or by services it holds."""
    seen = {start}
    stack = [start]
    while stack:
        fiber = stack.pop()
        if fiber is goal:
            return True
        below = [binding.owner for binding in (fiber._store or {}).values()]
        if fiber.parent_fiber is not None:
            below.append(fiber.parent_fiber)
        for other in below:
            if other not in seen:
                seen.add(other)
                stack.append(other)
    return False


def reaches(start: Fiber, goal: Fiber, *, drains: bool = True) -> bool:
    """Tell whether ``start`` waits for ``goal``, directly or through others.

    Args:
        start: Where the walk begins.
        goal: What it looks for.
        drains: Follow waits for dependants too; those can be given up, the others cannot.
    """
    seen = {start}
    stack = [start]
    while stack:
        fiber = stack.pop()
        following = [join.target for join in fiber._waits or () if join.holds(fiber)]
        following += fiber._group or ()
        if drains:
            following += [holder for drain in fiber._drains or () for holder in drain.left]
        for other in following:
            if other is goal:
                return True
            if other not in seen:
                seen.add(other)
                stack.append(other)
    return False
