"""Which agent started the work that runs now, carried by ``contextvars``.

A *frame* in the current context names an agent (or nobody) for one scope; frames nest. A *run* is
the life of one boundary: from its operation's first step until what the operation returned has
settled. Closing a scope waits for its active runs.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextvars import Context
from enum import Enum
from inspect import CO_ITERABLE_COROUTINE
from types import GeneratorType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from dsh.execution.agent.frames import FRAME, Frame, Run
from dsh.execution.agent.lazy import BoundAsyncGenerator, BoundCoroutine, BoundGenerator
from dsh.execution.agent.service import InitiatorScopeDisposed, NoInitiator

if TYPE_CHECKING:
    from dsh.execution.agent.service import Agent

T = TypeVar("T")


class ScopeState(Enum):
    """How far a scope is towards its end."""

    ACTIVE = "active"
    CLOSING = "closing"
    DISPOSED = "disposed"


class InitiatorScope:
    """Keeps the identities of one registry apart from those of any other."""

    def __init__(self) -> None:
        self.state = ScopeState.ACTIVE
        self._lock = threading.Lock()
        self._active = 0
        self._runs: weakref.WeakSet[Run] = weakref.WeakSet()
        self._idle: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None

    @property
    def active_runs(self) -> int:
        """How many runs the end of this scope would wait for."""
        return self._active

    def current(self) -> Agent | None:
        """Return the agent of the nearest frame of this scope.

        Raises:
            InitiatorScopeDisposed: the scope is gone.
        """
        if self.state is ScopeState.DISPOSED:
            raise InitiatorScopeDisposed
        frame = FRAME.get()
        while frame is not None:
            if frame.run.scope is self:
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
            raise NoInitiator
        return agent

    def run(self, agent: Agent | None, operation: Callable[[], T]) -> T:
        """Call ``operation`` as work of ``agent`` (of nobody when ``None``) and track its result.

        Raises:
            InitiatorScopeDisposed: the scope is closing or gone; nothing was called.
        """
        run = Run(self, agent)
        self.begin(run)
        frame = Frame(run, self._enclosing())
        token = FRAME.set(frame)
        try:
            result = operation()
        except BaseException:
            run.release()
            raise
        finally:
            FRAME.reset(token)
        return self._track(result, frame)

    def begin(self, run: Run) -> None:
        """Count a run in.

        Raises:
            InitiatorScopeDisposed: the scope is closing or gone.
        """
        with self._lock:
            if self.state is not ScopeState.ACTIVE:
                run.released = True
                raise InitiatorScopeDisposed
            run.active = True
            self._active += 1
            self._runs.add(run)

    def end(self, run: Run) -> None:
        """Count a run out; the last one lets the scope go."""
        with self._lock:
            if run.released:
                return
            run.released = True
            if run.active:
                run.active = False
                self._active -= 1
            waiting = self._idle if self._active == 0 else None
        if waiting is not None:
            _resolve(*waiting)

    def suspend(self, run: Run) -> None:
        """Take a run out of the count until its lazy object takes a step."""
        with self._lock:
            run.active = False
            self._active -= 1
            waiting = self._idle if self._active == 0 else None
        if waiting is not None:
            _resolve(*waiting)

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
            if frame.run.scope is self:
                frame.run.release()
            frame = frame.parent

    async def drain(self) -> None:
        """Wait until no run is active."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if self._active == 0:
                return
            if self._idle is None:
                self._idle = (loop, loop.create_future())
            idle = self._idle[1]
        await asyncio.shield(idle)

    def dispose(self) -> None:
        """Forget every agent; all reads and boundaries raise from now on."""
        self.state = ScopeState.DISPOSED
        for run in list(self._runs):
            run.forget()

    def _enclosing(self) -> Frame | None:
        """Return the current chain without this scope's ended runs.

        An ended run is shadowed and needs no draining. Kept, agents that wake each other in turn
        would lengthen the chain for ever.
        """
        chain: list[Frame] = []
        stale = False
        frame = outer = FRAME.get()
        while frame is not None:
            if frame.run.scope is self and frame.run.released:
                stale = True
            else:
                chain.append(frame)
            frame = frame.parent
        if not stale:
            return outer
        linked: Frame | None = None
        for frame in reversed(chain):
            linked = Frame(frame.run, linked)
        return linked

    def _track(self, result: T, frame: Frame) -> T:
        run = frame.run
        if asyncio.isfuture(result):
            _release_with(result, run)
        elif isinstance(result, concurrent.futures.Future):
            _release_with_thread(result, run)
        elif (bound := self._bind(result, frame)) is not None:
            return cast("T", bound)  # a lazy object stands in for itself, step by step
        else:
            run.release()
        return result

    def _bind(self, result: object, frame: Frame) -> object | None:
        bound: object
        if isinstance(result, Coroutine) or _is_generator_coroutine(result):
            bound = BoundCoroutine(cast("Coroutine[Any, Any, Any]", result), frame)
        elif isinstance(result, AsyncGenerator):
            bound = BoundAsyncGenerator(result, frame)
        elif isinstance(result, Generator):
            bound = BoundGenerator(result, frame)
        else:
            return None
        self.suspend(frame.run)
        return bound


def _is_generator_coroutine(value: object) -> bool:
    return isinstance(value, GeneratorType) and bool(value.gi_code.co_flags & CO_ITERABLE_COROUTINE)


def _release_with(future: asyncio.Future[Any], run: Run) -> None:
    try:
        if future.done():
            run.release()
            return
        home = future.get_loop()
        if home is _running_loop():
            future.add_done_callback(lambda _: run.release(), context=Context())
        else:
            home.call_soon_threadsafe(
                lambda: future.add_done_callback(lambda _: run.release(), context=Context()),
                context=Context(),
            )
    except Exception:
        run.release()


def _release_with_thread(future: concurrent.futures.Future[Any], run: Run) -> None:
    try:
        future.add_done_callback(lambda _: run.release())
    except Exception:
        run.release()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _resolve(loop: asyncio.AbstractEventLoop, idle: asyncio.Future[None]) -> None:
    def settle() -> None:
        if not idle.done():
            idle.set_result(None)

    if _running_loop() is loop:
        settle()
    elif not loop.is_closed():
        loop.call_soon_threadsafe(settle)
