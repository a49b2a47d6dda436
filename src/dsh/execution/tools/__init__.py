"""Tools: the seam that everybody depends on, its events, and how a tool is written."""

from __future__ import annotations

from dsh.execution.tools.author import define_tool, tool
from dsh.execution.tools.service import (
    ExecutionMode,
    Staged,
    Stray,
    ToolArgsError,
    ToolDefinition,
    ToolError,
    ToolErrorInfo,
    ToolExecution,
    ToolFailure,
    ToolInput,
    ToolNotFound,
    ToolOutput,
    ToolOutputError,
    ToolRegistrationError,
    ToolResult,
    ToolResultFacts,
    ToolRunContext,
    ToolRuntime,
    ToolSuccess,
    ToolUnloaded,
    parse_call,
)

__all__ = [
    "ExecutionMode",
    "Staged",
    "Stray",
    "ToolArgsError",
    "ToolDefinition",
    "ToolError",
    "ToolErrorInfo",
    "ToolExecution",
    "ToolFailure",
    "ToolInput",
    "ToolNotFound",
    "ToolOutput",
    "ToolOutputError",
    "ToolRegistrationError",
    "ToolResult",
    "ToolResultFacts",
    "ToolRunContext",
    "ToolRuntime",
    "ToolSuccess",
    "ToolUnloaded",
    "define_tool",
    "parse_call",
    "tool",
]
