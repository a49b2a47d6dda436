"""Deadlines of tool calls: row ``timeout-policy``.

A tool that declares ``timeout_s`` is told to stop when that time is over, and the model reads that
it timed out. Tools that declare none run as long as they want.
"""

from __future__ import annotations

from dsh.base.errors import DshError
from dsh.base.json import snapshot
from dsh.base.signal import deadline
from dsh.execution.tools.events import TOOLS_EXECUTE, ToolDispatch
from dsh.execution.tools.service import (
    TOOL_TIMEOUT,
    ToolError,
    ToolErrorInfo,
    ToolFailure,
    ToolResult,
    ToolRuntime,
)
from dsh.kernel import Context, Next

name = "timeout-policy"
inject = (ToolRuntime,)


class ToolTimeout(DshError, TimeoutError):
    """A tool call was told to stop because its time was over."""

    code = TOOL_TIMEOUT

    def __init__(self, timeout_s: float) -> None:
        super().__init__(f"tool call timed out after {timeout_s * 1000:.0f}ms")
        self.timeout_s = timeout_s


def apply(ctx: Context) -> None:
    """Put a deadline around every call of a tool that has one."""
    tools = ctx.require(ToolRuntime)

    async def limit(request: ToolDispatch, next: Next[ToolResult]) -> ToolResult:
        execution = request.execution
        definition = tools.get(execution.name, execution.agent)
        if definition is None or definition.timeout_s is None:
            return await next()
        outer = request.signal
        error = ToolTimeout(definition.timeout_s)
        with deadline(outer, definition.timeout_s, error) as limited:
            request.signal = limited.signal
            try:
                result = await next()
            except Exception:
                if not limited.expired:
                    raise
                return _timed_out(error)
            finally:
                request.signal = outer
        # A body's value is a success only if it was there in time.
        return _timed_out(error, result) if limited.expired and result.is_error else result

    ctx.on(TOOLS_EXECUTE, limit)


def _timed_out(error: ToolTimeout, result: ToolResult | None = None) -> ToolFailure:
    return ToolFailure(
        error=ToolError(error.message, ToolErrorInfo("ToolTimeoutError", TOOL_TIMEOUT)),
        content=snapshot([{"type": "text", "text": f"Error: {error.message}"}]),
        additional_contexts=result.additional_contexts if result is not None else (),
    )
