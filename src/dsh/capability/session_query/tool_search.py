"""The tools ``session_search`` and ``session_event_search``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsh.capability.session_query import wording
from dsh.capability.session_query.arguments import EventSearchArgs, SessionSearchArgs
from dsh.capability.session_query.desk import Caller, admitted, caller_of
from dsh.capability.session_query.failures import refusal, safe_code, told_safely
from dsh.capability.session_query.searching import drained, last_seq_before_step
from dsh.execution.tools.author import define_tool
from dsh.execution.tools.service import ToolDefinition, ToolRunContext
from dsh.state.query.service import (
    AvailableAs,
    CreatedBetween,
    CwdIs,
    EventPage,
    EventSearch,
    EventSearchHit,
    IdIs,
    ParentIs,
    SessionFilter,
    SessionPage,
    SessionQuery,
    SessionQueryError,
    SessionSearch,
    SessionSearchHit,
)
from dsh.state.query.text import plain

if TYPE_CHECKING:
    from dsh.base.json import JsonObject


def session_search_tool(query: SessionQuery, most: int, timeout_s: float) -> ToolDefinition:
    """Return the tool that searches over sessions."""

    async def session_search(args: SessionSearchArgs, run: ToolRunContext) -> str:
        with told_safely("session_search", run.signal):
            caller = caller_of(run)
            if caller.cwd is None:
                raise refusal("SESSION_QUERY_TOOL_UNAUTHORIZED")
            return await _search_sessions(query, caller, args, most)

    return define_tool(
        session_search,
        description=(
            "Find other sessions of this workspace by a text in them. Lists the sessions with "
            "their best matching event; read around it with session_event_read."
        ),
        timeout_s=timeout_s,
        present_call=_present_search,
    )


def event_search_tool(query: SessionQuery, most: int, timeout_s: float) -> ToolDefinition:
    """Return the tool that searches within a session."""

    async def session_event_search(args: EventSearchArgs, run: ToolRunContext) -> str:
        with told_safely("session_event_search", run.signal):
            caller = caller_of(run)
            session_id = await admitted(query, caller, args.session_id)
            return await _search_events(query, caller, session_id, args, most)

    return define_tool(
        session_event_search,
        description=(
            "Find events of one session by a text in them: of the current one before this step, "
            "also what is no longer part of the conversation, or of another one of this workspace."
        ),
        timeout_s=timeout_s,
        present_call=_present_search,
    )


async def _search_sessions(
    query: SessionQuery, caller: Caller, args: SessionSearchArgs, most: int
) -> str:
    workspace = await query.filter_sessions([CwdIs((caller.cwd,))])
    visible = frozenset(record.id for record in workspace)
    filters = _session_filters(caller, args, visible)
    if filters is None:
        return wording.sessions_found((), {}, visible, capped=False)
    event_filters = args.event_filters()

    async def page(cursor: str | None) -> SessionPage:
        return await query.search_sessions(
            SessionSearch(
                query=args.query,
                session_filters=filters,
                event_filters=event_filters,
                limit=min(most + 2, query.largest_page),
                cursor=cursor,
            )
        )

    def accepts(hit: SessionSearchHit) -> bool:
        return hit.session.id != caller.id and caller.may_see(hit.session.header)

    hits, capped = await drained(page, accepts, most)
    titles = await _titles(query, caller, [hit.session.id for hit in hits])
    return wording.sessions_found(hits, titles, visible, capped=capped)


def _session_filters(
    caller: Caller, args: SessionSearchArgs, visible: frozenset[str]
) -> list[SessionFilter] | None:
    """Return what a session has to be like; ``None`` when no session can be."""
    filters: list[SessionFilter] = [CwdIs((caller.cwd,))]
    if args.session_ids is not None:
        filters.append(IdIs(tuple(args.session_ids)))
    start, end = args.created_between()
    if start is not None or end is not None:
        filters.append(CreatedBetween(start, end))
    if args.availability is not None:
        filters.append(AvailableAs(tuple(args.availability)))
    if args.parent_session_ids is not None or args.include_root_sessions:
        # A parent that may not be seen is treated as one that does not exist.
        parents: list[str | None] = [
            each for each in args.parent_session_ids or () if each in visible
        ]
        if args.include_root_sessions:
            parents.append(None)
        if not parents:
            return None
        filters.append(ParentIs(tuple(parents)))
    return filters


async def _titles(query: SessionQuery, caller: Caller, ids: list[str]) -> dict[str, str]:
    """Return a title for each session; one that cannot be had costs only itself."""
    if not ids:
        return {}
    try:
        outcomes = await query.read_title_snapshots(ids)
    except SessionQueryError as error:
        return dict.fromkeys(ids, f"untitled ({safe_code(error)})")
    titles = {}
    for outcome in outcomes:
        if outcome.value is not None:
            caller.check(outcome.value.header)
            # The title of a log that others wrote may hold lines that look like more hits.
            titles[outcome.session_id] = plain(outcome.value.title or "") or "untitled"
        elif outcome.reason is not None:
            titles[outcome.session_id] = f"untitled ({safe_code(outcome.reason)})"
    return titles


async def _search_events(
    query: SessionQuery, caller: Caller, session_id: str, args: EventSearchArgs, most: int
) -> str:
    last = args.seq_to
    if session_id == caller.id:
        bound = last_seq_before_step(caller)
        last = bound if last is None else min(last, bound)
        if last < (args.seq_from or 0):
            return wording.events_found(session_id, (), capped=False)
    filters = args.filters(last)

    async def page(cursor: str | None) -> EventPage:
        found = await query.search_events(
            EventSearch(
                session_id=session_id,
                query=args.query,
                filters=filters,
                limit=min(most + 1, query.largest_page),
                cursor=cursor,
            )
        )
        caller.check(found.header)
        return found

    def accepts(hit: EventSearchHit) -> bool:
        return True

    hits, capped = await drained(page, accepts, most)
    return wording.events_found(session_id, hits, capped=capped)


def _present_search(args: Any) -> JsonObject:
    where = "sessions" if isinstance(args, SessionSearchArgs) else "session events"
    title = f"Search {where}: {args.query}"
    return {"card": "generic", "title": title, "kind": "search", "rawInput": {"query": args.query}}
