"""Filters: checked once, then asked of each session or event."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from dsh.state.query.service import (
    SURFACE_CLASSES,
    AvailableAs,
    CreatedBetween,
    CwdIs,
    EventFilter,
    IdIs,
    ParentIs,
    SeqBetween,
    SessionFilter,
    SessionQueryError,
    SurfaceIs,
    TextHas,
    TimeBetween,
    TypeIs,
)
from dsh.state.query.text import folded, plain, searchable_text

if TYPE_CHECKING:
    from dsh.state.query.service import SessionRecord, SurfaceClass

SessionTest: TypeAlias = "Callable[[SessionRecord], bool]"
EventTest: TypeAlias = "Callable[[Mapping[str, Any], SurfaceClass], bool]"

F = TypeVar("F")

_FARTHEST = 2**63 - 1


def checked_session_filters(filters: Sequence[SessionFilter]) -> tuple[SessionFilter, ...]:
    """Return detached copies of filters on sessions.

    Raises:
        SessionQueryError: ``INVALID_FILTER``; names the filter.
    """
    return tuple(_checked(each, _SESSION_KINDS) for each in _listed(filters))


def checked_event_filters(filters: Sequence[EventFilter]) -> tuple[EventFilter, ...]:
    """Return detached copies of filters on events; see `checked_session_filters`."""
    return tuple(_checked(each, _EVENT_KINDS) for each in _listed(filters))


def session_test(filters: Sequence[SessionFilter]) -> SessionTest:
    """Return what tells whether all checked filters let a session through."""
    tests = [_session_test(each) for each in filters]
    return lambda record: all(test(record) for test in tests)


def event_test(filters: Sequence[EventFilter]) -> EventTest:
    """Return what tells whether all checked filters let an event through."""
    # Reading the text is the dear part, so it comes last.
    ordered = sorted(filters, key=lambda each: isinstance(each, TextHas))
    tests = [_event_test(each) for each in ordered]
    return lambda event, surface: all(test(event, surface) for test in tests)


def checked_text(text: object, refuse: Callable[[str], SessionQueryError]) -> str:
    """Return a text to look for as it is compared.

    Raises:
        SessionQueryError: what ``refuse`` makes of the problem.
    """
    if not isinstance(text, str):
        raise refuse("is not text")
    if "\0" in text:
        raise refuse("holds a NUL character")
    if not (needle := folded(plain(text))):
        raise refuse("is blank; give at least one visible character")
    return needle


def _session_test(filter: SessionFilter) -> SessionTest:
    match filter:
        case IdIs(values):
            return lambda record: record.header["id"] in values
        case CwdIs(values):
            return lambda record: record.header.get("cwd") in values
        case ParentIs(values):
            return lambda record: record.header.get("parentSession") in values
        case CreatedBetween(start, end):
            return lambda record: _within(record.header["createdAt"], start, end)
        case AvailableAs(values):
            return lambda record: (
                (record.live and "live" in values) or (record.persisted and "persisted" in values)
            )


def _event_test(filter: EventFilter) -> EventTest:
    match filter:
        case SeqBetween(start, end):
            return lambda event, _: _within(event["seq"], start, end)
        case TimeBetween(start, end):
            return lambda event, _: _within(event["time"], start, end)
        case TypeIs(values):
            return lambda event, _: event["type"] in values
        case SurfaceIs(values):
            return lambda _, surface: surface in values
        case TextHas(text):
            needle = folded(plain(text))
            return lambda event, _: _has(event, needle)


def _has(event: Mapping[str, Any], needle: str) -> bool:
    text = searchable_text(event)
    return text is not None and needle in folded(plain(text))


def _within(number: float, start: float | None, end: float | None) -> bool:
    return (start is None or number >= start) and (end is None or number <= end)


def _listed(filters: object) -> Sequence[Any]:
    if not isinstance(filters, (list, tuple)):
        raise _refusal(f"filters must be a list, not {type(filters).__name__}")
    return filters


def _checked(filter: F, kinds: Mapping[type, Any]) -> F:
    kind = type(filter)
    check = kinds.get(kind)
    if check is None:
        known = ", ".join(sorted(each.__name__ for each in kinds))
        raise _refusal(f"{kind.__name__} is no filter that can be used here; use one of {known}")
    try:
        made: F = check(filter)
    except ValueError as error:
        raise _refusal(f"{kind.__name__} {error}") from None
    return made


def _values_of(*allowed: type, choices: Sequence[str] | None = None) -> Callable[[Any], Any]:
    def check(filter: Any) -> Any:
        values = filter.values
        if isinstance(values, str) or not isinstance(values, Sequence):
            raise ValueError("takes a list of values")  # noqa: TRY004  # caught right above
        for entry in (copied := tuple(values)):
            if type(entry) not in allowed or (choices is not None and entry not in choices):
                wanted = "" if choices is None else f"; use {', '.join(choices)}"
                raise ValueError(f"cannot have the value {entry!r}{wanted}")
        return type(filter)(copied)

    return check


def _span_of(*allowed: type) -> Callable[[Any], Any]:
    def check(filter: Any) -> Any:
        for edge in (filter.start, filter.end):
            if edge is None:
                continue
            if type(edge) not in allowed:
                raise ValueError(f"cannot begin or end at {edge!r}")
            if not abs(edge) <= _FARTHEST:  # also true of what is no number
                raise ValueError("cannot be so far away; leave an end out that is open")
        if None not in (filter.start, filter.end) and filter.start > filter.end:
            raise ValueError(f"begins at {filter.start}, after its end at {filter.end}")
        return filter

    return check


def _text(filter: TextHas) -> TextHas:
    checked_text(filter.text, lambda problem: _refusal(f"TextHas {problem}"))
    return filter


def _refusal(message: str) -> SessionQueryError:
    return SessionQueryError("SESSION_QUERY_INVALID_FILTER", message)


_SESSION_KINDS: Mapping[type, Any] = {
    IdIs: _values_of(str),
    CwdIs: _values_of(str, type(None)),
    ParentIs: _values_of(str, type(None)),
    CreatedBetween: _span_of(int, float),
    AvailableAs: _values_of(str, choices=("live", "persisted")),
}
_EVENT_KINDS: Mapping[type, Any] = {
    SeqBetween: _span_of(int),
    TimeBetween: _span_of(int, float),
    TypeIs: _values_of(str),
    SurfaceIs: _values_of(str, choices=SURFACE_CLASSES),
    TextHas: _text,
}
