"""The live registry of agents, and the door to whatever loop makes them (row ``agent``)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from dsh.execution.agent.dispatch import agent_events
from dsh.execution.agent.events import (
    AGENT_CREATED,
    AGENT_DISPOSED,
    AgentCreated,
    AgentDisposed,
)
from dsh.execution.agent.initiator import InitiatorScope, close_with
from dsh.execution.agent.service import (
    Agent,
    AgentFactory,
    AgentHandle,
    AgentRegistry,
    AgentRegistryError,
    CreateAgent,
    InitiatorFace,
    NoAgentFactory,
    ResumeAgent,
)

if TYPE_CHECKING:
    from dsh.kernel import Context, Effect
    from dsh.model.messages import SessionId

__all__ = ["LiveAgents", "plugin"]

T = TypeVar("T")


class _Entry:
    """One agent's place in the registry."""

    __slots__ = ("agent", "announced", "announcing", "detach_asked", "live", "owner")

    def __init__(self, agent: Agent, owner: Agent | None) -> None:
        self.agent = agent
        self.owner = owner
        self.live = True
        self.announced = False
        self.announcing = False
        self.detach_asked = False


class LiveAgents(AgentRegistry):
    """The agents of this process."""

    def __init__(self, ctx: Context, config: object = None) -> None:
        super().__init__(ctx, config)
        self._entries: dict[SessionId, _Entry] = {}
        self._factory: AgentFactory | None = None
        self._initiators = InitiatorScope()
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self) -> None:
        """Keep the initiator scope open until this plugin unloads, then drain it."""
        close_with(self.ctx, self._initiators)

    def register(self, agent: Agent) -> Effect:
        """See `AgentRegistry.register`."""
        owner = self.caller.agent

        def setup() -> Callable[[], None]:
            detach = self.enter(agent, owner)
            try:
                self.announce(agent)
            except BaseException:
                detach()
                raise
            return detach

        return self.caller.effect(setup, f"agents.register({agent.id!r})")

    def enter(self, agent: Agent, owner: Agent | None) -> Callable[[], None]:
        """See `AgentRegistry.enter`."""
        if agent.id != agent.session.id:
            raise AgentRegistryError(
                f"agent {agent.id!r} works on session {agent.session.id!r}; both must have one id"
            )
        if agent.id in self._entries:
            raise AgentRegistryError(f"agent {agent.id!r} is already registered")
        entry = self._entries[agent.id] = _Entry(agent, owner)
        return lambda: self._detach(entry)

    def announce(self, agent: Agent) -> None:
        """See `AgentRegistry.announce`."""
        entry = self._entries.get(agent.id)
        if entry is None or entry.agent is not agent:
            raise AgentRegistryError(f"agent {agent.id!r} is not live; enter it first")
        if entry.announced:
            raise AgentRegistryError(f"agent {agent.id!r} was already announced")
        entry.announced = entry.announcing = True
        try:
            agent_events(self.ctx, agent).emit(AGENT_CREATED, AgentCreated(agent))
        finally:
            entry.announcing = False
            if entry.detach_asked:
                self._detach(entry)

    def get(self, id: SessionId) -> Agent | None:
        """See `AgentRegistry.get`."""
        entry = self._entries.get(id)
        return None if entry is None else entry.agent

    def is_owned_by(self, id: SessionId, owner: Agent) -> bool:
        """See `AgentRegistry.is_owned_by`."""
        entry = self._entries.get(id)
        return entry is not None and entry.owner is owner

    def owner_of(self, id: SessionId) -> Agent | None:
        """See `AgentRegistry.owner_of`."""
        entry = self._entries.get(id)
        return None if entry is None else entry.owner

    def all(self) -> list[Agent]:
        """See `AgentRegistry.all`."""
        return [entry.agent for entry in self._entries.values()]

    def roots(self) -> list[Agent]:
        """See `AgentRegistry.roots`."""
        return [entry.agent for entry in self._entries.values() if entry.owner is None]

    def _detach(self, entry: _Entry) -> None:
        if not entry.live:
            return
        if entry.announcing:
            # Every listener of the announcement still sees a live agent.
            entry.detach_asked = True
            return
        entry.live = False
        del self._entries[entry.agent.id]
        if entry.announced:
            agent_events(self.ctx, entry.agent).emit(AGENT_DISPOSED, AgentDisposed(entry.agent))

    def set_factory(self, factory: AgentFactory) -> Effect:
        """See `AgentRegistry.set_factory`."""

        def setup() -> Callable[[], None]:
            if self._factory is not None:
                raise AgentRegistryError("an agent factory is registered already; unload it first")
            self._factory = factory
            return withdraw

        def withdraw() -> None:
            if self._factory is factory:
                self._factory = None

        return self.caller.effect(setup, "agents.set_factory()")

    async def create(self, options: CreateAgent) -> AgentHandle:
        """See `AgentRegistry.create`."""
        return await self._require_factory().create_agent(self.caller, options)

    async def resume(self, options: ResumeAgent) -> AgentHandle:
        """See `AgentRegistry.resume`."""
        return await self._require_factory().resume_agent(self.caller, options)

    def _require_factory(self) -> AgentFactory:
        if self._factory is None:
            raise NoAgentFactory
        return self._factory

    def current_initiator(self) -> Agent | None:
        """See `AgentRegistry.current_initiator`."""
        return self._initiators.current()

    def require_initiator(self) -> Agent:
        """See `AgentRegistry.require_initiator`."""
        return self._initiators.require()

    def with_initiator(self, agent: Agent, operation: Callable[[], T]) -> T:
        """See `AgentRegistry.with_initiator`."""
        return self._initiators.run(agent, operation)

    def without_initiator(self, operation: Callable[[], T]) -> T:
        """See `AgentRegistry.without_initiator`."""
        return self._initiators.run(None, operation)

    def spawn_with_initiator(
        self, agent: Agent, body: Callable[[], Coroutine[Any, Any, T]], *, name: str
    ) -> asyncio.Task[T]:
        """See `AgentRegistry.spawn_with_initiator`."""
        task = self.with_initiator(agent, lambda: asyncio.create_task(body(), name=name))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def open_face(
        self, *, missing: Callable[[], Exception], disposed: Callable[[], Exception]
    ) -> InitiatorFace:
        """See `AgentRegistry.open_face`."""
        face = InitiatorScope(self._initiators, missing=missing, disposed=disposed)
        close_with(self.caller, face)
        return face


plugin = LiveAgents
