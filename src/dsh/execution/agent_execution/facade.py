"""Executions over what the registry of agents carries: row ``agent-execution``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from dsh.execution.agent.service import AgentRegistry
from dsh.execution.agent_execution.service import (
    AgentExecution,
    AgentExecutionDisposed,
    AgentExecutionService,
    NoAgentExecution,
)

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class SharedAgentExecution(AgentExecutionService):
    """Keeps nothing itself: each call goes through a door of its own to the registry's store."""

    inject: ClassVar[Any] = (AgentRegistry,)

    def start(self) -> None:
        """Open the door until this plugin unloads, which waits for the work that it let in."""
        self._face = self.ctx.require(AgentRegistry).open_face(
            missing=NoAgentExecution, disposed=AgentExecutionDisposed
        )

    def current(self) -> AgentExecution | None:
        """See `AgentExecutionService.current`."""
        agent = self._face.current()
        return None if agent is None else AgentExecution(agent)

    def require(self) -> AgentExecution:
        """See `AgentExecutionService.require`."""
        return AgentExecution(self._face.require())

    def run(self, execution: AgentExecution | None, operation: Callable[[], T]) -> T:
        """See `AgentExecutionService.run`."""
        return self._face.run(None if execution is None else execution.agent, operation)


plugin = SharedAgentExecution
