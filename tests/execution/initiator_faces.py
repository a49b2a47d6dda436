"""The two faces of the initiator store, ``ctx.agents`` and ``ctx.agent_execution``, used alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from dsh.execution.agent.frames import FRAME
from dsh.execution.agent.registry import LiveAgents
from dsh.execution.agent.service import (
    Agent,
    AgentRegistry,
    InitiatorScopeDisposed,
    NoInitiator,
)
from dsh.execution.agent_execution import plugin as agent_execution
from dsh.execution.agent_execution.service import (
    AgentExecution,
    AgentExecutionDisposed,
    AgentExecutionService,
    NoAgentExecution,
)
from dsh.kernel import Context, Fiber

T = TypeVar("T")
FACES = ["agents", "agent_execution"]


class Someone:
    """Stands for an agent where only its identity counts."""

    def __init__(self, id: str) -> None:
        self.id = id


def someone(id: str) -> Agent:
    return cast("Agent", Someone(id))


class RegistryFace:
    """``ctx.agents``."""

    key = AgentRegistry
    missing: type[Exception] = NoInitiator
    disposed: type[Exception] = InitiatorScopeDisposed
    missing_text = "^no initiating agent is active$"
    disposed_text = "^agent initiator scope is disposed$"

    def __init__(self, root: Context) -> None:
        self.root = root
        self.service: Any = root.require(self.key)

    @property
    def fiber(self) -> Fiber:
        """The plugin whose end is the end of this face."""
        fiber: Fiber = self.service.ctx.fiber
        return fiber

    @property
    def active_runs(self) -> int:
        count: int = self.service._initiators.active_runs
        return count

    def current(self) -> Agent | None:
        found: Agent | None = self.service.current_initiator()
        return found

    def require(self) -> Agent:
        found: Agent = self.service.require_initiator()
        return found

    def run(self, agent: Agent | None, operation: Callable[[], T]) -> T:
        made: T = (
            self.service.without_initiator(operation)
            if agent is None
            else self.service.with_initiator(agent, operation)
        )
        return made

    def calls(self) -> list[Callable[[], object]]:
        """Each way in: the reads, then the boundaries."""
        nobody = someone("late")
        return [
            self.current,
            self.require,
            lambda: self.run(nobody, lambda: None),
            lambda: self.run(None, lambda: None),
        ]


class ExecutionFace(RegistryFace):
    """``ctx.agent_execution``."""

    key = AgentExecutionService  # type: ignore[assignment]
    missing = NoAgentExecution
    disposed = AgentExecutionDisposed
    missing_text = "^no agent execution context is active$"
    disposed_text = "^agent execution service is disposed$"

    @property
    def active_runs(self) -> int:
        count: int = self.service._face.active_runs
        return count

    def current(self) -> Agent | None:
        found = self.service.current()
        return None if found is None else found.agent

    def require(self) -> Agent:
        found: Agent = self.service.require().agent
        return found

    def run(self, agent: Agent | None, operation: Callable[[], T]) -> T:
        made: T = self.service.run(None if agent is None else AgentExecution(agent), operation)
        return made


def face_of(root: Context, label: str) -> RegistryFace:
    """Return a face of what is mounted."""
    return RegistryFace(root) if label == "agents" else ExecutionFace(root)


async def mount_face(ctx: Context, label: str) -> RegistryFace:
    """Mount the registry and the façade over it; return one of the two."""
    await ctx.plugin(LiveAgents)
    await ctx.plugin(agent_execution)
    return face_of(ctx.root, label)


def depth() -> int:
    """How many frames the current context has."""
    length, frame = 0, FRAME.get()
    while frame is not None:
        length, frame = length + 1, frame.parent
    return length
