"""How agents come to life and end: set up in private, published in one go, ended once."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from dsh.base.signal import AbortController, AbortedError
from dsh.execution.agent.events import AGENT_SESSION_START, AgentSessionStarted
from dsh.execution.loop.agent import LoopAgent
from dsh.execution.loop.phase import is_outer_cancel
from dsh.execution.loop.service import CreationAborted, DisposalFromWithin

if TYPE_CHECKING:
    from dsh.base.signal import AbortSignal
    from dsh.execution.agent.service import AgentOptions, AgentSetup, SessionStartSource
    from dsh.execution.loop.services import LoopServices
    from dsh.kernel import Context, Effect
    from dsh.model.messages import SessionId
    from dsh.state.persistence.service import SessionPreparation
    from dsh.state.session.session import Session

T = TypeVar("T")
_log = logging.getLogger("dsh.agent")
_MAX_SAFE_INTEGER = 2**53 - 1


class Lifetimes:
    """Every agent of one loop, the unpublished ones included."""

    def __init__(self, services: LoopServices) -> None:
        self._services = services
        self._live: dict[AgentLifetime, None] = {}
        self._closed = False
        services.ctx.stop.add_listener(self.end_all)

    def begin(
        self, owner: Context, id: SessionId, signal: AbortSignal | None = None
    ) -> AgentLifetime:
        """Start the life of an agent that dies with ``owner`` or with the loop.

        Raises:
            CreationAborted: the loop is going.
            InactiveEffect: the owner is going.
        """
        if self._closed or self._services.ctx.stop.aborted:
            raise CreationAborted(id, "the loop is unloading")
        lifetime = AgentLifetime(self._services, owner, id, signal, self._live)
        self._live[lifetime] = None
        return lifetime

    def end_all(self) -> None:
        """Request the end of every agent."""
        for lifetime in list(self._live):
            lifetime.end()

    async def close(self) -> None:
        """End every agent and wait for all of them; none begins after that."""
        self._closed = True
        while self._live:
            await asyncio.wait([lifetime.end() for lifetime in self._live])


class AgentLifetime:
    """One agent from its first resource to its last. Implements ``AgentHandle``.

    Ends once, whoever asks for it: the holder of the handle, the owner's unload, the loop's unload
    or a failed creation. All of them wait for the same quiescence.
    """

    def __init__(
        self,
        services: LoopServices,
        owner: Context,
        id: SessionId,
        signal: AbortSignal | None,
        register: dict[AgentLifetime, None],
    ) -> None:
        self._services = services
        self._owner = owner
        self._id = id
        self._register = register
        self._agent: LoopAgent | None = None
        self._ending: asyncio.Task[None] | None = None
        self._ended = False
        self._detach_session: Callable[[], None] | None = None
        self._detach_agent: Callable[[], None] | None = None
        self._preparation: SessionPreparation | None = None
        self._creation = AbortController()
        self._unlink: list[Callable[[], None]] = []
        self._effects: list[Effect] = [self._own(owner)]
        if signal is not None:
            self._follow(signal)
        self._follow(owner.stop)

    @property
    def agent(self) -> LoopAgent:
        """The agent; there is one once ``construct`` ran."""
        assert self._agent is not None  # handles are given out after that
        return self._agent

    async def dispose(self) -> None:
        """End the agent and wait until nothing of it runs.

        Raises:
            DisposalFromWithin: the agent's own turn waits for the caller. The end is requested.
        """
        ending = self.end()
        current = asyncio.current_task()
        if current is not None and self._agent is not None and self._agent.waits_for(current):
            raise DisposalFromWithin(self._id)
        await asyncio.wait([ending])

    def end(self) -> asyncio.Task[None]:
        """Request the end; the task is done when it is reached."""
        if self._ending is None:
            # First of all: what follows calls listeners, who may request the end again.
            self._ending = asyncio.create_task(self._end(), name=f"end of agent {self._id}")
            self._creation.abort(CreationAborted(self._id, "disposed"))
            if self._agent is not None:
                self._agent.begin_ending()
        return self._ending

    async def guard(self, work: Awaitable[T], undo: Callable[[T], object] | None = None) -> T:
        """Await a part of the creation; an abort of the creation cancels it and awaits its end.

        Args:
            work: The part.
            undo: Gives up what the part made after all, when nobody gets it.
        """
        caller = asyncio.current_task()
        assert caller is not None  # nothing can be awaited without
        asked = caller.cancelling()
        part = asyncio.ensure_future(work)
        try:
            made = await self._creation.signal.run(part)
        except BaseException:
            _give_up(part, undo)  # it may have ended well in this very tick
            raise
        if caller.cancelling() > asked:  # the part swallowed it
            _give_up(part, undo)
            raise asyncio.CancelledError
        return made

    def hold(self, preparation: SessionPreparation) -> Session:
        """Keep a stored session reserved for as long as this agent lives."""
        self._preparation = preparation
        return preparation.session

    def construct(self, session: Session, options: AgentOptions) -> LoopAgent:
        """Make the agent and its scope.

        Raises:
            TypeError: the options are unusable.
        """
        _check_options(options)
        self.check()
        self._agent = LoopAgent(self._services, session, options)
        # Undone before the scope, which is older: tools must stay while the driver drains.
        self._effects.append(self._own(self._services.ctx))
        return self._agent

    async def compose(self, setup: AgentSetup | None) -> None:
        """Let the creator furnish the agent's context before anybody sees it."""
        if setup is None:
            return
        outcome: Any = setup(self.agent.ctx)
        if inspect.isawaitable(outcome):
            outcome = await self.guard(outcome)
        self.check()
        if outcome is not None:
            outcome.commit()
        self.check()

    def publish(self, source: SessionStartSource) -> None:
        """Make session and agent live and tell everybody; raises if the life ends meanwhile."""
        services, agent = self._services, self.agent
        self.check()
        self._detach_session = services.sessions.enter(agent.session, agent.ctx)
        self._detach_agent = services.agents.enter(agent, self._owner.agent)
        services.sessions.announce(agent.session)
        self.check()
        services.agents.announce(agent)
        self.check()
        agent.events.emit(AGENT_SESSION_START, AgentSessionStarted(agent, source))
        self.check()
        self._stop_following()

    def check(self) -> None:
        """Raise if the creation was given up."""
        self._creation.signal.throw_if_aborted()

    def failure(self, error: BaseException) -> BaseException:
        """Return what the creator gets for an error: reasons that are no exception are wrapped."""
        if isinstance(error, AbortedError) and self._creation.signal.aborted:
            wrapped = CreationAborted(self._id, error.reason)
            wrapped.__cause__ = error
            return wrapped
        if isinstance(error, asyncio.CancelledError) and not is_outer_cancel(error):
            # What a listener or set-up raised must not pass for a cancellation of the creator.
            wrapped = CreationAborted(self._id, "a participant cancelled itself")
            wrapped.__cause__ = error
            return wrapped
        return error

    async def _end(self) -> None:
        self._stop_following()
        try:
            if (agent := self._agent) is not None:
                await agent.when_idle()
                agent.withdraw_waiting()
                await agent.scope.dispose()
        finally:
            self._leave()

    def _leave(self) -> None:
        for leave in (self._detach_agent, self._detach_session):
            if leave is not None:
                _contained(leave, self._id)
        if self._preparation is not None:
            _contained(self._preparation.release, self._id)
        self._ended = True
        self._register.pop(self, None)
        for effect in self._effects:
            effect.dispose()

    def _own(self, ctx: Context) -> Effect:
        return ctx.defer(self._undo, f"agent({self._id!r})")

    def _undo(self) -> asyncio.Task[None] | None:
        return None if self._ended else self.end()

    def _follow(self, signal: AbortSignal) -> None:
        remove = signal.add_listener(lambda: self._creation.abort(signal.reason), now=True)
        self._unlink.append(remove)

    def _stop_following(self) -> None:
        while self._unlink:
            self._unlink.pop()()


def _give_up(part: asyncio.Future[T], undo: Callable[[T], object] | None) -> None:
    made = part.done() and not part.cancelled() and part.exception() is None
    if made and undo is not None:
        undo(part.result())


def _check_options(options: AgentOptions) -> None:
    limit = options.max_tokens
    if limit is not None and not (type(limit) is int and 0 < limit <= _MAX_SAFE_INTEGER):
        raise TypeError(f"max_tokens must be a positive integer, got {limit!r}")


def _contained(action: Callable[[], object], id: SessionId) -> None:
    try:
        action()
    except Exception:
        _log.exception("agent %s left something behind", id)
