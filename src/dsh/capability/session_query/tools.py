"""The row ``tool-session-query``: five tools over past sessions of the workspace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from dsh.capability.session_query.tool_search import event_search_tool, session_search_tool
from dsh.capability.session_query.tool_trace import (
    event_read_tool,
    event_trace_tool,
    session_trace_tool,
)
from dsh.execution.prompt.service import PromptSection, SystemPrompt
from dsh.execution.tools.service import ToolRuntime
from dsh.state.query.service import SessionQuery

if TYPE_CHECKING:
    from dsh.kernel import Context

name = "tool-session-query"
inject = (ToolRuntime, SystemPrompt, SessionQuery)

PROMPT = (
    "Earlier work is kept in sessions, which you can search. Use session_search when something was "
    "said or done in another session: it covers the sessions of this workspace and leaves out "
    "yours. Use session_event_search for what happened in one session, such as parts of this "
    "conversation that are no longer in front of you. Both look for a literal text and give all "
    "their hits at once, so narrow a search that finds too much. A hit is only a snippet: go on "
    "with session_event_read for the words around it, session_event_trace for what replaced or "
    "came of an event, and session_trace for the parents and children of a session."
)
"""What the system prompt says of the tools."""


class Config(BaseModel):
    """Bounds of the searches."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    max_search_results: PositiveInt = Field(default=100, alias="maxSearchResults")
    """The most hits that a search shows."""
    search_timeout_ms: PositiveInt = Field(
        default=30_000, le=2_147_483_647, alias="searchTimeoutMs"
    )
    """Deadline of one search."""


def apply(ctx: Context, config: Config) -> None:
    """Offer the tools and say in the prompt how to use them."""
    query, tools = ctx.require(SessionQuery), ctx.require(ToolRuntime)
    most, timeout_s = config.max_search_results, config.search_timeout_ms / 1000
    tools.register(session_search_tool(query, most, timeout_s))
    tools.register(event_search_tool(query, most, timeout_s))
    tools.register(session_trace_tool(query))
    tools.register(event_trace_tool(query))
    tools.register(event_read_tool(query))
    ctx.require(SystemPrompt).section(PromptSection("tool:session-query", 113, PROMPT))
