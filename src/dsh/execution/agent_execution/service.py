"""The seam ``ctx.agent_execution``: for which agent the code here is executed.

It speaks of executions where ``ctx.agents`` speaks of initiators, and knows the same: boundaries of
both nest in one another.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, TypeVar

from dsh.base.values import value
from dsh.execution.agent.service import AgentError
from dsh.kernel import Service

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsh.execution.agent.service import Agent

T = TypeVar("T")


@value
class AgentExecution:
    """Work of one agent. It says who, not whether that agent still lives or what it may do."""

    agent: Agent


class AgentExecutionService(Service, ABC):
    """Tells the execution that the calling code is part of, and runs code as part of another."""

    name: ClassVar[str] = "agent_execution"

    @abstractmethod
    def current(self) -> AgentExecution | None:
        """The execution that the running code is part of, in whatever task it runs.

        Raises:
            AgentExecutionDisposed: this service is gone.
        """

    @abstractmethod
    def require(self) -> AgentExecution:
        """As ``current``, for code that only agents execute.

        Raises:
            NoAgentExecution: it is part of none.
            AgentExecutionDisposed: this service is gone.
        """

    @abstractmethod
    def run(self, execution: AgentExecution | None, operation: Callable[[], T]) -> T:
        """Call an operation as part of an execution; as part of none for None.

        What it returns comes back as from ``AgentRegistry.with_initiator``: unchanged, but for
        lazy objects, which are wrapped.

        Raises:
            AgentExecutionDisposed: this service is closing or gone; nothing was called.
        """


class NoAgentExecution(AgentError, LookupError):
    """Code that only agents execute runs outside of any execution."""

    code = "NO_AGENT_EXECUTION"

    def __init__(self) -> None:
        super().__init__("no agent execution context is active")


class AgentExecutionDisposed(AgentError, RuntimeError):
    """The service, or the registry of agents behind it, is closing or gone."""

    code = "AGENT_EXECUTION_DISPOSED"

    def __init__(self) -> None:
        super().__init__("agent execution service is disposed")
