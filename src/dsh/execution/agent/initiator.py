"""Which agent started the work that runs now, carried by ``contextvars``.

A *frame* in the current context names an agent (or nobody) for one store; frames nest. A *run* is
the life of one boundary: from its operation's first step until what the operation returned has
settled. Closing a scope waits for its active runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from enum import Enum
from types import CoroutineType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from dsh.execution.agent.frames import FRAME, Frame, Run
from dsh.execution.agent.lazy import BoundCoroutine
from dsh.execution.agent.results import follow
from dsh.execution.agent.service import InitiatorScopeDisposed, NoInitiator
from dsh.kernel import INTERNAL_JOIN, INTERNAL_STATUS, FiberState

if TYPE_CHECKING:
    from dsh.execution.agent.service import Agent
    from dsh.kernel import Context, DisposalJoined, Fiber, StatusChanged

T = TypeVar("T")
_Waiter = tuple[asyncio.AbstractEventLoop, "asyncio.Future[None]"]


class ScopeState(Enum):
    """How far a scope is towards its end."""

    ACTIVE = "active"
    CLOSING = "closing"
    DISPOSED = "disposed"


_ACTIVE = ScopeState.ACTIVE


class InitiatorScope:
    """Keeps the identities of one registry apart from those of any other.

    Another door to the same identities has an end of its own: what is begun through it counts
    there and in the scope behind it.

    Args:
        behind: Be a door to that scope's identities; a store of its own when None.
        missing: Makes the error of ``require`` where nobody is current.
        disposed: Makes the error of what comes too late.
    """

    def __init__(
        self,
        behind: InitiatorScope | None = None,
        *,
        missing: Callable[[], Exception] = NoInitiator,
        disposed: Callable[[], Exception] = InitiatorScopeDisposed,
    ) -> None:
        self.state = ScopeState.ACTIVE
        self.store: InitiatorScope = self if behind is None else behind.store
        self._behind = behind
        self._missing = missing
        self._disposed = disposed
        self._active: set[Run] = set()
        self._pending: set[Run] = set()
        self._waiters: list[_Waiter] = []

    @property
    def active_runs(self) -> int:
        """How many runs the end of this scope would wait for."""
        return len(self._active)

    def current(self) -> Agent | None:
        """Return the agent of the nearest frame of this scope's store.

        Raises:
            InitiatorScopeDisposed: the scope is gone.
        """
        store = self.store
        if self.state is ScopeState.DISPOSED or store.state is ScopeState.DISPOSED:
            raise self._disposed()
        frame = FRAME.get()
        while frame is not None:
            if frame.run.store is store:
                return frame.run.agent
            frame = frame.parent
        return None

    def require(self) -> Agent:
        """Return the current agent.

        Raises:
            NoInitiator: there is none.
            InitiatorScopeDisposed: the scope is gone.
        """
        agent = self.current()
        if agent is None:
            raise self._missing()
        return agent

    def run(self, agent: Agent | None, operation: Callable[[], T]) -> T:
        """Call ``operation`` as work of ``agent`` (of nobody when ``None``) and track its result.

        Raises:
            InitiatorScopeDisposed: the scope is closing or gone; nothing was called.
        """
        run = Run(self, agent)
        self.begin(run)
        outer = FRAME.get()
        frame = Frame(run, outer if outer is None else _without_ended(outer, self.store))
        token = FRAME.set(frame)
        try:
            result = operation()
        except BaseException:
            run.release()
            raise
        finally:
            FRAME.reset(token)
        if type(result) is CoroutineType:  # what most operations are
            self.suspend(run)
            return cast("T", BoundCoroutine(cast("Coroutine[Any, Any, Any]", result), frame))
        return follow(result, frame, self.suspend)

    def begin(self, run: Run) -> None:
        """Count a run in.

        Raises:
            InitiatorScopeDisposed: the scope is closing or gone.
        """
        behind = self._behind
        run.active = True
        self._active.add(run)
        if behind is not None:
            behind._active.add(run)
        self.store._pending.discard(run)
        # Runs may begin in threads. Counted first and checked then: who closes the scope meanwhile
        # either finds the run here or is found by it.
        if self.state is not _ACTIVE or (behind is not None and behind.state is not _ACTIVE):
            run.release()
            raise self._disposed()

    def end(self, run: Run) -> None:
        """Count a run out; the last one lets the scope go."""
        if run.active:
            run.active = False
            run.scope.leave(run)
        else:
            self.store._pending.discard(run)

    def suspend(self, run: Run) -> None:
        """Take a run out of the count until its lazy object takes a step."""
        self.store._pending.add(run)
        run.active = False
        self.leave(run)

    def leave(self, run: Run) -> None:
        """Stop waiting for a run, here and in the scope behind."""
        self._let_go(run)
        if self._behind is not None:
            self._behind._let_go(run)

    def close(self) -> None:
        """Refuse new boundaries; reads go on."""
        if self.state is ScopeState.ACTIVE:
            self.state = ScopeState.CLOSING

    def release_chain(self) -> None:
        """Stop waiting for the runs that the caller itself is part of.

        Whoever waits for the end of this scope from inside a boundary would wait for itself.
        """
        frame = FRAME.get()
        while frame is not None:
            run = frame.run
            if run.store is self:
                run.release()
            elif run.scope is self and self._behind is not None:
                # Whoever waits for the registry waits for it still.
                run.scope = self._behind
                self._let_go(run)
            frame = frame.parent

    async def drain(self) -> None:
        """Wait until no run is active."""
        loop = asyncio.get_running_loop()
        idle: asyncio.Future[None] = loop.create_future()
        self._waiters.append((loop, idle))
        if self._active:
            await idle

    def dispose(self) -> None:
        """Refuse all reads and boundaries from now on; a store forgets every agent.

        A door whose store is closing can be read until that is gone, too: the drivers that end
        meanwhile may ask through any door who they are.
        """
        if self.store is not self:
            if self.store.state is _ACTIVE:
                self.state = ScopeState.DISPOSED
            return
        self.state = ScopeState.DISPOSED
        for run in (*self._active, *self._pending):
            run.forget()

    def _let_go(self, run: Run) -> None:
        self._active.discard(run)
        if self._waiters and not self._active:
            waiters, self._waiters = self._waiters, []
            for loop, idle in waiters:
                _resolve(loop, idle)


def close_with(ctx: Context, scope: InitiatorScope) -> None:
    """Keep a scope open until a plugin unloads, whose end then waits for the active runs.

    It closes as soon as anything around the plugin begins to unload.
    """
    around = _with_ancestors(ctx.fiber)

    def leave(event: StatusChanged) -> None:
        if event.fiber.state is FiberState.UNLOADING and event.fiber in around:
            scope.close()

    def let_go(event: DisposalJoined) -> None:
        if event.fiber in around:
            scope.release_chain()

    async def drain() -> None:
        scope.close()
        await scope.drain()
        scope.dispose()

    # Undone last in, first out: whoever joins during the drain must still be heard.
    ctx.on(INTERNAL_STATUS, leave, everywhere=True)
    ctx.on(INTERNAL_JOIN, let_go, everywhere=True)
    ctx.defer(drain, "initiators.drain")


def _with_ancestors(fiber: Fiber) -> frozenset[Fiber]:
    found: set[Fiber] = set()
    current: Fiber | None = fiber
    while current is not None:
        found.add(current)
        current = current.parent_fiber
    return frozenset(found)


def _without_ended(outer: Frame, store: InitiatorScope) -> Frame | None:
    """Return a chain without the ended runs of a store.

    In a new boundary such a run is shadowed, and it needs no draining. Kept, agents that wake
    each other in turn would lengthen the chain for ever.
    """
    frame: Frame | None = outer
    while frame is not None:
        if frame.run.released and frame.run.store is store:
            break
        frame = frame.parent
    else:
        return outer
    kept: list[Run] = []
    frame = outer
    while frame is not None:
        if not (frame.run.released and frame.run.store is store):
            kept.append(frame.run)
        frame = frame.parent
    linked: Frame | None = None
    for run in reversed(kept):
        linked = Frame(run, linked)
    return linked


def _resolve(loop: asyncio.AbstractEventLoop, idle: asyncio.Future[None]) -> None:
    def settle() -> None:
        if not idle.done():
            idle.set_result(None)

    try:
        here = asyncio.get_running_loop() is loop
    except RuntimeError:
        here = False
    if here:
        settle()
    elif not loop.is_closed():
        loop.call_soon_threadsafe(settle)
