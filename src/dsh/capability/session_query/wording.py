"""What the tools answer, in words."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dsh.base.json import pretty
from dsh.capability.session_query.timestamps import show_instant
from dsh.state.query.text import plain, searchable_text

if TYPE_CHECKING:
    from dsh.capability.session_query.desk import Caller
    from dsh.state.query.service import (
        EventRecord,
        EventSearchHit,
        EventTrace,
        EventWindow,
        SessionLineageTrace,
        SessionRecord,
        SessionSearchHit,
        SessionTree,
    )

OUTSIDE = "(outside this workspace)"
"""Stands for a session that the caller may not see, and for one that does not exist."""

_NEIGHBOUR_CHARS = 300


def sessions_found(
    hits: Sequence[SessionSearchHit],
    titles: Mapping[str, str],
    visible: frozenset[str],
    *,
    capped: bool,
) -> str:
    """Word the hits of a search over sessions."""
    if not hits:
        return "No other session of this workspace has that text."
    parts = [
        "\n".join(
            (
                f"{number}. session {hit.session.id}: {titles[hit.session.id]}",
                f"   {_facts(hit.session, visible)}",
                f"   best match: {_event(hit.best.event)}",
                f"   {hit.best.snippet}",
            )
        )
        for number, hit in enumerate(hits, 1)
    ]
    return "\n".join([*parts, *_cap(len(hits), "sessions", capped)])


def events_found(session_id: str, hits: Sequence[EventSearchHit], *, capped: bool) -> str:
    """Word the hits of a search within a session."""
    if not hits:
        return f"No event of session {session_id} has that text there."
    parts = [f"{_event(hit.event)}\n   {hit.snippet}" for hit in hits]
    head = f"Events of session {session_id}, best first:"
    return "\n".join([head, *parts, *_cap(len(hits), "events", capped)])


def lineage(trace: SessionLineageTrace, caller: Caller) -> str:
    """Word where a session comes from, as far as the caller may see."""
    lines = [f"session {_session(trace.target)}", "ancestors, nearest first:"]
    complete = trace.complete
    for ancestor in trace.ancestors:
        if not caller.may_see(ancestor.header):
            complete = False
            break
        lines.append(f"- {_session(ancestor)}")
    if not complete:
        lines.append(f"- {OUTSIDE}: the line goes on where it cannot be followed")
    elif not trace.ancestors:
        lines.append("- none: this is a root session")
    lines.append("descendants:")
    below = _descendants(trace.descendants, caller)
    return "\n".join([*lines, *(below or ["- none"])])


def event_trace(trace: EventTrace) -> str:
    """Word how an event is connected with others."""
    by = trace.replaced_by
    return "\n".join(
        (
            f"session {trace.header['id']}, {_event(trace.target)}",
            f"replaced by: {'none' if by is None else by}",
            f"replacement chain: {_seqs(trace.replacement_chain, ' -> ')}",
            f"replaces: {_seqs(trace.replaced_event_seqs)}",
            f"cites: {_seqs(trace.source_event_seqs)}",
            f"cited by: {_seqs(trace.derived_event_seqs)}",
        )
    )


def event_window(window: EventWindow) -> str:
    """Word an event in full, and its neighbours in a line each."""
    text = pretty(window.target).decode().rstrip("\n")
    runs = re.findall(r"`+", text)
    fence = "`" * max(3, 1 + max(map(len, runs), default=0))
    lines = [f"session {window.header['id']}, event {window.target['seq']}"]
    if window.before:
        lines += ["before:", *map(_neighbour, window.before)]
    lines += [f"{fence}json", text, fence]
    if window.after:
        lines += ["after:", *map(_neighbour, window.after)]
    return "\n".join(lines)


def _descendants(trees: Sequence[SessionTree], caller: Caller) -> list[str]:
    lines = []
    stack = [(tree, 0) for tree in reversed(trees)]
    while stack:
        tree, depth = stack.pop()
        if caller.may_see(tree.session.header):
            lines.append(f"{'  ' * depth}- {_session(tree.session)}")
            stack += [(child, depth + 1) for child in reversed(tree.children)]
        else:
            lines.append(f"{'  ' * depth}- {OUTSIDE}, with what is below it")
    return lines


def _session(record: SessionRecord) -> str:
    created = show_instant(record.header["createdAt"])
    return f"{record.id} | created {created} | {_availability(record)}"


def _facts(record: SessionRecord, visible: frozenset[str]) -> str:
    created = show_instant(record.header["createdAt"])
    return f"created {created} | parent {_parent(record, visible)} | {_availability(record)}"


def _parent(record: SessionRecord, visible: frozenset[str]) -> str:
    parent = record.header.get("parentSession")
    if parent is None:
        return "root"
    return parent if parent in visible else OUTSIDE


def _availability(record: SessionRecord) -> str:
    kinds = [
        kind for kind, is_so in (("live", record.live), ("persisted", record.persisted)) if is_so
    ]
    return ", ".join(kinds)


def _event(event: EventRecord) -> str:
    return f"event {event.seq} | {event.type} | {event.surface} | {show_instant(event.time)}"


def _neighbour(event: Mapping[str, Any]) -> str:
    text = plain(searchable_text(event) or "")
    shown = text if len(text) <= _NEIGHBOUR_CHARS else text[: _NEIGHBOUR_CHARS - 3] + "..."
    return f"- {event['seq']} {event['type']}: {shown or '(no text)'}"


def _seqs(seqs: Sequence[int], between: str = ", ") -> str:
    return between.join(map(str, seqs)) or "none"


def _cap(count: int, what: str, capped: bool) -> list[str]:
    if not capped:
        return []
    return [f"These are the best {count} {what}; there are more. Narrow the search to see others."]
