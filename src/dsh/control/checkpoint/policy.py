"""The row ``session-checkpoint-policy``: the log is durable before the world may change.

Checkpoints stand before each model request, before the body of each tool that the model called,
and before each step. Where the log cannot be written, neither the request nor the tool happens.
Between checkpoints, and after a turn, the log is written behind.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from dsh.base.errors import DshError, error_chain
from dsh.base.json import freeze
from dsh.execution.agent.events import AGENT_PRE_STEP, AgentPreStep, PreStepDecision
from dsh.execution.tools.events import TOOLS_EXECUTE, ToolDispatch
from dsh.execution.tools.service import (
    ABORTED_BEFORE_DISPATCH,
    ABORTED_BEFORE_DISPATCH_TEXT,
    ToolError,
    ToolErrorInfo,
    ToolFailure,
    ToolResult,
)
from dsh.model.llm.events import LLM_STREAM, LlmStream
from dsh.state.session.service import SessionStore

if TYPE_CHECKING:
    from dsh.kernel import Context
    from dsh.model.llm.service import ChunkStream
    from dsh.state.session.session import Session

name = "session-checkpoint-policy"
inject = (SessionStore,)

NOT_DURABLE = "SESSION_NOT_DURABLE"
"""Code of a call that was not run because the log could not be written before it."""


def apply(ctx: Context) -> None:
    """Put a checkpoint before each request, each tool of the model, and each step."""
    policy = _Checkpoints(ctx.require(SessionStore))
    ctx.on(LLM_STREAM, policy.before_request)
    ctx.on(TOOLS_EXECUTE, policy.before_tool)
    ctx.on(AGENT_PRE_STEP, policy.before_step)


class _Checkpoints:
    def __init__(self, sessions: SessionStore) -> None:
        self._sessions = sessions

    async def before_request(
        self, event: LlmStream, next: Callable[[], Awaitable[ChunkStream]]
    ) -> ChunkStream:
        session_id = event.options.session_id
        session = None if session_id is None else self._sessions.get(session_id)
        if session is not None:
            await self._sessions.flush(session)
        return await next()

    async def before_tool(
        self, event: ToolDispatch, next: Callable[[], Awaitable[ToolResult]]
    ) -> ToolResult:
        call = event.execution
        if call.agent is None or call.parent is not None:
            return await next()  # a nested call happens behind the checkpoint of its outer one
        try:
            await self._make_durable(call.agent.session)
        except Exception as error:
            return _not_durable(error)
        if call.signal.aborted or event.signal.aborted:
            info = ToolErrorInfo("AbortError", ABORTED_BEFORE_DISPATCH)
            return _failure(ABORTED_BEFORE_DISPATCH_TEXT, info)
        return await next()

    async def before_step(
        self, event: AgentPreStep, next: Callable[[], Awaitable[PreStepDecision]]
    ) -> PreStepDecision:
        await self._make_durable(event.agent.session)
        return await next()

    async def _make_durable(self, session: Session) -> None:
        if self._sessions.get(session.id) is session:
            await self._sessions.flush(session)


def _not_durable(error: Exception) -> ToolFailure:
    code = error.code if isinstance(error, DshError) else NOT_DURABLE
    return _failure(
        f"the tool was not run, because the session log could not be written: {error_chain(error)}",
        ToolErrorInfo(type(error).__name__, code),
    )


def _failure(message: str, info: ToolErrorInfo) -> ToolFailure:
    content = freeze([{"type": "text", "text": f"Error: {message}"}])
    return ToolFailure(error=ToolError(message, info), content=content)
