"""What all contexts of one root share: loop, counters, listeners, services, plugins."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from dsh.kernel._hub import Hub
from dsh.kernel._lease import LEASE_GRACE_S
from dsh.kernel._services import ServiceTable
from dsh.kernel._stray import guarded
from dsh.kernel.errors import WrongLoop
from dsh.kernel.registry import Registry

if TYPE_CHECKING:
    from dsh.kernel._stack import Join
    from dsh.kernel.events import Event
    from dsh.kernel.fiber import Fiber

_HERE = os.path.dirname(__file__) + os.sep  # noqa: PTH120  # pathlib would cost the import
_log = logging.getLogger("dsh.kernel")

Reporter: TypeAlias = "Callable[[BaseException, Fiber | None, str], None]"
"""Gets each contained error: the error, the fiber it happened in, and the effect's label."""


class Census(NamedTuple):
    """How much is alive under a root; equal before and after means that nothing leaked."""

    fibers: int
    effects: int
    listeners: int
    services: int
    dependants: int
    runtimes: int
    tasks: int


class RootState:
    """The state of one root context."""

    __slots__ = (
        "_base_context",
        "_loop",
        "_rechecking",
        "draining",
        "hub",
        "joins",
        "lease_grace_s",
        "owned",
        "registry",
        "reporter",
        "root_fiber",
        "serial",
        "services",
        "tasks",
        "uids",
    )

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._base_context = contextvars.copy_context()
        self._rechecking = False
        self.serial = 0
        self.uids = 0
        self.hub = Hub(self)
        self.services = ServiceTable(self)
        self.registry = Registry()
        self.tasks: set[asyncio.Task[Any]] = set()
        self.owned: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()
        self.draining: dict[Fiber, None] = {}
        self.joins: dict[Join, None] = {}
        self.lease_grace_s = LEASE_GRACE_S
        self.reporter: Reporter = log_report
        self.root_fiber: Fiber

    def bind_loop(self, what: str) -> asyncio.AbstractEventLoop:
        """Return the running loop and bind the root to it.

        Raises:
            WrongLoop: no loop runs here, or the root belongs to another one.
        """
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise WrongLoop(what, "needs a running event loop") from None
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise WrongLoop(what, "belongs to another event loop")
        return loop

    def check_loop(self, what: str) -> None:
        """Refuse use from another thread or loop than the bound one.

        Raises:
            WrongLoop: the root is bound, and its loop is not the one that runs here.
        """
        if self._loop is not None and asyncio._get_running_loop() is not self._loop:
            raise WrongLoop(what, "belongs to another event loop or thread")

    def check_dispatch(self, event: Event[Any]) -> None:
        """Refuse to dispatch from another thread or loop than the bound one.

        Raises:
            WrongLoop: its listeners would run there, beside the loop they belong to.
        """
        if self._loop is not None and asyncio._get_running_loop() is not self._loop:
            raise WrongLoop(
                f"event {event.name!r}",
                "belongs to another event loop or thread; dispatch it there, for example by "
                "loop.call_soon_threadsafe()",
            )

    def start(
        self,
        coro: Coroutine[Any, Any, None],
        name: str,
        *,
        inherit: bool = False,
        forgets: bool = False,
    ) -> asyncio.Task[None]:
        """Run kernel work in a task that is kept until it ends.

        Args:
            coro: Reports its own errors; never raises but for cancellation. It awaits ``begin``
                first, which is passed here: a cancelled task must not skip what has to be undone.
            name: The task's name.
            inherit: Run in a copy of the caller's context variables, not of the root's.
            forgets: The work itself takes its task out of ``tasks``, which is cheaper.
        """
        try:
            loop = self.bind_loop(name)
        except WrongLoop:
            coro.close()
            raise
        context = contextvars.copy_context() if inherit else self._base_context.copy()
        context.run(coro.send, None)
        task = loop.create_task(coro, name=name, context=context)
        self.tasks.add(task)
        if not forgets:
            task.add_done_callback(self.tasks.discard)
        return task

    def start_work(self, work: Awaitable[Any], name: str) -> asyncio.Task[Any]:
        """Run a caller's work to its end; whoever joins gets its error, nobody must."""
        task = self.bind_loop(name).create_task(guarded(work, None, name), name=name)
        self.tasks.add(task)
        task.add_done_callback(self._work_ended)
        return task

    def _work_ended(self, task: asyncio.Task[Any]) -> None:
        self.tasks.discard(task)
        if not task.cancelled():
            task.exception()

    def report(self, error: BaseException, owner: Fiber | None, label: str) -> None:
        """Hand a contained error to the reporter, whose own failure ends in the log."""
        try:
            self.reporter(error, owner, label)
        except BaseException:
            _log.exception("the error reporter of a root context failed")
            log_report(error, owner, label)

    def note_release(self, owner: Fiber, holder: Fiber) -> None:
        """Log that an unload does not wait for a dependant, because that one waits for it."""
        _log.warning(
            "plugin %r unloads without waiting for its dependant %r, which waits for this unload",
            owner.title,
            holder.title,
        )

    def recheck_waits(self) -> None:
        """Let those who wait look again, soon and once, whether they can.

        Called whenever one fiber starts to wait for another: that may have closed a circle.
        """
        if (self.draining or self.joins) and not self._rechecking:
            self._rechecking = True
            asyncio.get_running_loop().call_soon(self._recheck_waits)

    def _recheck_waits(self) -> None:
        self._rechecking = False
        for join in reversed(tuple(self.joins)):
            join.give_up_if_circular()
        for fiber in tuple(self.draining):
            fiber.wake_drain()


def log_report(error: BaseException, owner: Fiber | None, label: str) -> None:
    """Write a contained error to the standard log, with its owner and label."""
    name = owner.title if owner is not None else "root"
    shown = (type(error), error, trimmed(error.__traceback__))
    _log.error("plugin %r: %s failed", name, label, exc_info=shown)


def trimmed(traceback: TracebackType | None) -> TracebackType | None:
    """Drop the kernel's own frames above a plugin's; all stay when there are no others."""
    frame = traceback
    while frame is not None and frame.tb_frame.f_code.co_filename.startswith(_HERE):
        frame = frame.tb_next
    return frame or traceback
