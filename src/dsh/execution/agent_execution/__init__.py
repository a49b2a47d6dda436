"""For which agent code is executed: the definition, and the plugin of row ``agent-execution``."""

from __future__ import annotations

from dsh.execution.agent_execution.facade import plugin
from dsh.execution.agent_execution.service import (
    AgentExecution,
    AgentExecutionDisposed,
    AgentExecutionService,
    NoAgentExecution,
)

__all__ = [
    "AgentExecution",
    "AgentExecutionDisposed",
    "AgentExecutionService",
    "NoAgentExecution",
    "plugin",
]
