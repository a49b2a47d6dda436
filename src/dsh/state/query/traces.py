"""What one log says of its own events: classes, traces, windows. Pure, and safe in a thread."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dsh.base.errors import message_of
from dsh.state.query.service import EventRecord, EventTrace, EventWindow, SessionQueryError
from dsh.state.session.errors import RefusedEvent
from dsh.state.session.surface import FoldedSurface, fold_surface
from dsh.state.session.vocabulary import SURFACE_EVENT_TYPES

if TYPE_CHECKING:
    from dsh.state.query.filters import EventTest
    from dsh.state.query.service import SurfaceClass
    from dsh.state.session.events import SessionEvent, SessionHeader


def folded_surface(events: Sequence[SessionEvent]) -> FoldedSurface:
    """Replay a log.

    Raises:
        SessionQueryError: ``INVALID_SURFACE``; the cause names the event.
    """
    try:
        return fold_surface(events)
    except (RefusedEvent, LookupError, TypeError, AttributeError) as error:
        raise SessionQueryError(
            "SESSION_QUERY_INVALID_SURFACE", f"the log cannot be replayed: {message_of(error)}"
        ) from error


def surface_class(event: Mapping[str, Any], nodes: Collection[int]) -> SurfaceClass:
    """Return the class of an event, given the nodes of the surface."""
    if event["type"] not in SURFACE_EVENT_TYPES:
        return "log-only"
    return "current" if event["seq"] in nodes else "shadowed"


def records_of(
    id: str, events: Sequence[SessionEvent], wanted: EventTest | None = None
) -> list[EventRecord]:
    """Return the events of a log without their data, those that pass a test."""
    nodes = frozenset(folded_surface(events).nodes)
    found = []
    for event in events:
        surface = surface_class(event, nodes)
        if wanted is None or wanted(event, surface):
            found.append(_record(id, event, surface))
    return found


def trace_of(header: SessionHeader, events: Sequence[SessionEvent], seq: int) -> EventTrace:
    """Return how an event is connected with others.

    Raises:
        SessionQueryError: ``EVENT_NOT_FOUND``, before anything else is looked at.
    """
    target = event_at(header["id"], events, seq)
    surface = folded_surface(events)
    by_target = {
        old: replacement.seq for replacement in surface.replacements for old in replacement.shadowed
    }
    chain = []
    following = by_target.get(seq)
    while following is not None:
        chain.append(following)
        following = by_target.get(following)
    replaced = [each.shadowed for each in surface.replacements if each.seq == seq]
    return EventTrace(
        header=header,
        target=_record(header["id"], target, surface_class(target, surface.nodes)),
        replaced_by=by_target.get(seq),
        replacement_chain=tuple(chain),
        replaced_event_seqs=replaced[0] if replaced else (),
        source_event_seqs=tuple(target.get("sourceEventSeqs", ())),
        derived_event_seqs=tuple(
            event["seq"] for event in events[seq + 1 :] if seq in event.get("sourceEventSeqs", ())
        ),
    )


def window_of(
    header: SessionHeader, events: Sequence[SessionEvent], seq: int, before: int, after: int
) -> EventWindow:
    """Return an event and its neighbours.

    Raises:
        SessionQueryError: ``EVENT_NOT_FOUND``.
    """
    target = event_at(header["id"], events, seq)
    return EventWindow(
        header, target, tuple(events[max(0, seq - before) : seq]), events[seq + 1 : seq + 1 + after]
    )


def event_at(id: str, events: Sequence[SessionEvent], seq: int) -> SessionEvent:
    """Return an event by its number.

    Raises:
        SessionQueryError: ``EVENT_NOT_FOUND``.
    """
    if type(seq) is int and 0 <= seq < len(events):
        return events[seq]
    span = f"from 0 to {len(events) - 1}" if events else "none at all"
    raise SessionQueryError(
        "SESSION_QUERY_EVENT_NOT_FOUND", f"session {id!r} has no event {seq!r}, but {span}"
    )


def _record(id: str, event: SessionEvent, surface: SurfaceClass) -> EventRecord:
    return EventRecord(id, event["seq"], event["type"], event["time"], surface)
