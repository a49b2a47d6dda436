"""The log records of one program's calls."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dsh.base.json import JsonValue, NotLossless, snapshot, thaw
from dsh.execution.tools.code.events import (
    CODE_DISPATCH,
    CODE_DISPATCH_START,
    TOOLS_CODE_DISPATCH_LOG,
    CodeDispatched,
    CodeDispatchLogging,
    CodeDispatchStarted,
)
from dsh.execution.tools.results import content_of
from dsh.kernel import scope_target
from dsh.state.session.service import SessionStore

if TYPE_CHECKING:
    from dsh.execution.tools.service import ToolInput, ToolResult, ToolRunContext
    from dsh.kernel import Context
    from dsh.model.messages import ContentBlock

_log = logging.getLogger("dsh.tools")
_MAX_SAFE = 2**53 - 1


class Journal:
    """Writes the events of one run; without an agent there is no log, and nothing to do."""

    def __init__(self, ctx: Context, run: ToolRunContext) -> None:
        self._ctx, self._run = ctx, run
        if run.agent is not None and (sessions := ctx.get(SessionStore)) is not None:
            for event_type in (CODE_DISPATCH_START, CODE_DISPATCH):
                if event_type.name not in sessions.declared():
                    sessions.declare(event_type)

    def started(self, call: ToolInput) -> None:
        """Log that a call starts."""
        if self._run.agent is not None:
            self._run.agent.session.append(CODE_DISPATCH_START, self._start_of(call))

    async def settled(self, call: ToolInput, result: ToolResult) -> None:
        """Log the result of a call, as plugins want it to be kept."""
        agent = self._run.agent
        if agent is None:
            return
        content = await self._durable(call, result)
        data = CodeDispatched(**self._start_of(call), isError=result.is_error, content=content)
        try:
            agent.session.append(CODE_DISPATCH, data)
        except Exception:
            _log.exception("the result of call %s could not be logged", call.call_id)

    async def _durable(self, call: ToolInput, result: ToolResult) -> Sequence[ContentBlock]:
        assert self._run.agent is not None
        event = CodeDispatchLogging(
            execution=self._run,
            agent=self._run.agent,
            sub_call_id=call.call_id,
            name=call.name,
            is_error=result.is_error,
            content=result.content,
        )
        try:
            content = await self._ctx.waterfall(
                TOOLS_CODE_DISPATCH_LOG,
                event,
                lambda: result.content,
                scope_target(None, self._run.agent),
            )
            return content_of(content, call.name)
        except Exception as error:
            self._ctx.report(error, label=TOOLS_CODE_DISPATCH_LOG.name)
            return result.content

    def _start_of(self, call: ToolInput) -> CodeDispatchStarted:
        return CodeDispatchStarted(
            rootCallId=self._run.root_call_id,
            parentCallId=self._run.call_id,
            subCallId=call.call_id,
            name=call.name,
            arguments=loggable(call.arguments),
        )


def loggable(value: JsonValue) -> JsonValue:
    """Return a value as the log can hold it: what is only a double everywhere is one here too."""
    try:
        return snapshot(value, logged=True)  # type: ignore[no-any-return]  # it is JSON
    except NotLossless:
        pass
    plain: list[Any] = [thaw(value)]
    work: list[Any] = [plain]
    while work:
        holder = work.pop()
        for key, item in holder.items() if isinstance(holder, dict) else enumerate(holder):
            if isinstance(item, dict | list):
                work.append(item)
            elif isinstance(item, int | float) and not isinstance(item, bool):
                holder[key] = _double(item)
    return snapshot(plain[0], logged=True)  # type: ignore[no-any-return]  # it is JSON


def _double(number: float) -> float:
    if isinstance(number, int):
        return number if -_MAX_SAFE <= number <= _MAX_SAFE else float(number)
    return number + 0.0  # which makes a zero of a negative zero
