"""The tools ``session_trace``, ``session_event_trace`` and ``session_event_read``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsh.capability.session_query import wording
from dsh.capability.session_query.arguments import (
    EventReadArgs,
    EventTraceArgs,
    SessionTraceArgs,
)
from dsh.capability.session_query.desk import admitted, caller_of
from dsh.capability.session_query.failures import told_safely
from dsh.execution.tools.author import define_tool
from dsh.execution.tools.service import ToolDefinition, ToolRunContext

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsh.base.json import JsonObject
    from dsh.state.query.service import SessionQuery


def session_trace_tool(query: SessionQuery) -> ToolDefinition:
    """Return the tool that shows where a session comes from."""

    async def session_trace(args: SessionTraceArgs, run: ToolRunContext) -> str:
        with told_safely("session_trace", run.signal):
            caller = caller_of(run)
            session_id = await admitted(query, caller, args.session_id)
            trace = await query.trace_session(session_id)
            caller.check(trace.target.header)
            return wording.lineage(trace, caller)

    return define_tool(
        session_trace,
        description=(
            "Show where a session comes from and what was started from it: its parents, forks and "
            "subagents, as far as they belong to this workspace."
        ),
        parallel=True,
        present_call=_presenter("Trace session"),
    )


def event_trace_tool(query: SessionQuery) -> ToolDefinition:
    """Return the tool that shows how an event is connected with others."""

    async def session_event_trace(args: EventTraceArgs, run: ToolRunContext) -> str:
        with told_safely("session_event_trace", run.signal):
            caller = caller_of(run)
            session_id = await admitted(query, caller, args.session_id)
            trace = await query.trace_event(session_id, args.seq)
            caller.check(trace.header)
            return wording.event_trace(trace)

    return define_tool(
        session_event_trace,
        description=(
            "Show how an event of a session is connected: what replaced it and what it replaced, "
            "what it was made from and what was made from it."
        ),
        parallel=True,
        present_call=_presenter("Trace event"),
    )


def event_read_tool(query: SessionQuery) -> ToolDefinition:
    """Return the tool that shows an event."""

    async def session_event_read(args: EventReadArgs, run: ToolRunContext) -> str:
        with told_safely("session_event_read", run.signal):
            caller = caller_of(run)
            session_id = await admitted(query, caller, args.session_id)
            window = await query.read_event(
                session_id, args.seq, before=args.before or 0, after=args.after or 0
            )
            caller.check(window.header)
            return wording.event_window(window)

    return define_tool(
        session_event_read,
        description=(
            "Show one event of a session in full, and the text of some events before and after it."
        ),
        parallel=True,
        present_call=_presenter("Read event"),
    )


def _presenter(what: str) -> Callable[[Any], JsonObject]:
    def present(args: Any) -> JsonObject:
        seq = getattr(args, "seq", None)
        title = what if seq is None else f"{what} {seq}"
        shown: JsonObject = {} if seq is None else {"seq": seq}
        if args.session_id is not None:
            title = f"{title} of {args.session_id}"
            shown = {"session_id": args.session_id, **shown}
        return {"card": "generic", "title": title, "kind": "read", "rawInput": shown}

    return present
