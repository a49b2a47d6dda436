"""What one loop works with, resolved once and shared by its agents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsh.base.values import value

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsh.execution.agent.service import AgentRegistry
    from dsh.execution.prompt.service import SystemPrompt
    from dsh.execution.tools.service import ToolRuntime
    from dsh.kernel import Context
    from dsh.model.llm.service import LlmRuntime
    from dsh.state.session.service import SessionStore


@value
class LoopServices:
    """The services that the loop injects, and its live limit."""

    ctx: Context
    """The loop's own context; scopes of agents are minted under it."""
    agents: AgentRegistry
    sessions: SessionStore
    llm: LlmRuntime
    tools: ToolRuntime
    system_prompt: SystemPrompt
    max_parallel_tool_calls: Callable[[], int]
    grace_s: float
    """Seconds that listeners and the model may take to stop after an abort."""
