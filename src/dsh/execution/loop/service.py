"""The definition of the turn loop, ``ctx.agent_loop``: the usual factory of agents."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from dsh.base.errors import DshError
from dsh.base.values import value
from dsh.execution.agent.service import AgentOptions
from dsh.kernel import ContextKey, Service

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dsh.base.json import JsonValue
    from dsh.execution.agent.service import Agent, AgentHandle, CreateAgent, ResumeAgent
    from dsh.kernel import Context
    from dsh.model.messages import SessionId


@value
class AgentIdentity:
    """The session that a configured agent is to work on."""

    id: SessionId
    resume: bool = False
    """The session must be stored; otherwise it is made where it is not."""


CONFIGURED_AGENT_IDENTITIES: ContextKey[Mapping[str, AgentIdentity]] = ContextKey(
    "configuredAgentIdentities"
)
"""Identities by the ``id`` of the configured agent, from a launcher that mounts the rows below a
context with this data. They replace ``sessionId`` and ``resumeSessionId`` of the row."""


class AgentLoop(Service, ABC):
    """Makes agents and drives them in turns and steps."""

    name: ClassVar[str] = "agent_loop"

    @property
    @abstractmethod
    def max_parallel_tool_calls(self) -> int:
        """How many tool bodies of one step may run at once; read anew for each group of calls."""

    @abstractmethod
    def create(
        self,
        id: SessionId,
        options: AgentOptions | None = None,
        meta: Mapping[str, JsonValue] | None = None,
    ) -> Agent:
        """Make and publish an agent at once, without set-up; it dies with the calling plugin.

        Raises:
            DshError: as ``create_agent``.
        """

    @abstractmethod
    async def create_agent(self, owner: Context, options: CreateAgent) -> AgentHandle:
        """Make an agent; see ``AgentRegistry.create``."""

    @abstractmethod
    async def resume_agent(self, owner: Context, options: ResumeAgent) -> AgentHandle:
        """Bring a stored agent back; see ``AgentRegistry.resume``."""


class LoopError(DshError):
    """Base of what the loop refuses."""

    code = "AGENT_LOOP"


class NoModel(LoopError, LookupError):
    """A request has no route to go."""

    code = "NO_MODEL"

    def __init__(self, agent: str) -> None:
        super().__init__(
            f"agent {agent!r} has no model to ask: give it provider and model in its options, or "
            "mount a plugin that chooses them (agent-default-model, or a listener of agent/request)"
        )
        self.agent = agent


class NoLoop(LoopError, RuntimeError):
    """An agent was woken where nothing can run."""

    code = "NO_EVENT_LOOP"

    def __init__(self, agent: str) -> None:
        super().__init__(
            f"agent {agent!r} cannot be woken outside its event loop; from another thread use "
            "loop.call_soon_threadsafe"
        )
        self.agent = agent


class CreationAborted(LoopError):
    """An agent was given up before it was published; nothing of it is left."""

    code = "CREATION_ABORTED"

    def __init__(self, agent: str, reason: object = None) -> None:
        super().__init__(f"agent {agent!r} creation aborted")
        self.agent, self.reason = agent, reason


class NoPersistence(LoopError, LookupError):
    """There is no store to resume from."""

    code = "NO_PERSISTENCE"

    def __init__(self, session: str) -> None:
        super().__init__(
            f"session {session!r} cannot be resumed: no session persistence is mounted; add a "
            "row such as session-persistence-jsonl"
        )
        self.session = session


class DisposalFromWithin(LoopError, RuntimeError):
    """Work that an agent's turn waits for tried to wait for the end of that agent."""

    code = "DISPOSAL_FROM_WITHIN"

    def __init__(self, agent: str) -> None:
        super().__init__(
            f"agent {agent!r} is being disposed, but its own turn cannot wait for that: the "
            "disposal waits for the turn to end"
        )
        self.agent = agent


class IdleFromWithin(LoopError, RuntimeError):
    """Work that keeps an agent busy tried to wait until that agent is idle."""

    code = "IDLE_FROM_WITHIN"

    def __init__(self, agent: str) -> None:
        super().__init__(
            f"what keeps agent {agent!r} busy cannot wait until it is idle; wait in a task of your "
            "own, or listen to agent/status"
        )
        self.agent = agent
