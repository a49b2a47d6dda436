"""The arguments of the tools."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from dsh.capability.session_query.timestamps import parse_instant
from dsh.state.query.service import (
    EventFilter,
    SeqBetween,
    SurfaceIs,
    TimeBetween,
    TypeIs,
)

_Name = Annotated[str, Field(min_length=1)]
_Names = Annotated[list[_Name], Field(min_length=1)]
_Seq = Annotated[int, Field(ge=0, le=2**53 - 1, strict=True)]
_Surface = Literal["current", "shadowed", "log-only"]

_QUERY = "Text to look for, literally: one run of characters. Case and line breaks do not count."
_SESSION = "Id of the session; your current one when left out."
_TIME = "Timestamp such as 2026-01-31T18:30Z or 2026-01-31T18:30:05+01:00."


class _Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid")


class SessionSearchArgs(_Arguments):
    """Which sessions."""

    query: str = Field(min_length=1, description=_QUERY)
    session_ids: _Names | None = Field(default=None, description="Only these sessions.")
    created_at_from: str | None = Field(default=None, description=f"Created then or later. {_TIME}")
    created_at_to: str | None = Field(default=None, description=f"Created then or before. {_TIME}")
    parent_session_ids: _Names | None = Field(
        default=None, description="Only sessions that were started from one of these."
    )
    include_root_sessions: bool | None = Field(
        default=None, description="Sessions without a parent, beside those of parent_session_ids."
    )
    availability: Annotated[list[Literal["live", "persisted"]], Field(min_length=1)] | None = Field(
        default=None, description="Only sessions that are open now, or that are stored."
    )
    event_seq_from: _Seq | None = Field(default=None, description="First event number that counts.")
    event_seq_to: _Seq | None = Field(default=None, description="Last event number that counts.")
    event_time_from: str | None = Field(default=None, description=f"Events from then on. {_TIME}")
    event_time_to: str | None = Field(default=None, description=f"Events up to then. {_TIME}")
    event_types: _Names | None = Field(
        default=None, description="Only events of these types, such as user/message."
    )
    event_surfaces: Annotated[list[_Surface], Field(min_length=1)] | None = Field(
        default=None,
        description=(
            "current: part of the conversation; shadowed: replaced in it; log-only: never in it."
        ),
    )

    @model_validator(mode="after")
    def _spans(self) -> Self:
        self.created_between()
        self.event_filters()
        return self

    def created_between(self) -> tuple[float | None, float | None]:
        """Return the span in which the session was created."""
        return _span("created_at", self.created_at_from, self.created_at_to)

    def event_filters(self) -> list[EventFilter]:
        """Return what an event has to be like."""
        return _event_filters(
            "event_",
            (self.event_seq_from, self.event_seq_to),
            (self.event_time_from, self.event_time_to),
            self.event_types,
            self.event_surfaces,
        )


class EventSearchArgs(_Arguments):
    """Which events."""

    session_id: _Name | None = Field(default=None, description=_SESSION)
    query: str = Field(min_length=1, description=_QUERY)
    seq_from: _Seq | None = Field(default=None, description="First event number that counts.")
    seq_to: _Seq | None = Field(default=None, description="Last event number that counts.")
    time_from: str | None = Field(default=None, description=f"From then on. {_TIME}")
    time_to: str | None = Field(default=None, description=f"Up to then. {_TIME}")
    event_types: _Names | None = Field(
        default=None, description="Only events of these types, such as tool/result."
    )
    surfaces: Annotated[list[_Surface], Field(min_length=1)] | None = Field(
        default=None,
        description=(
            "current: part of the conversation; shadowed: replaced in it; log-only: never in it."
        ),
    )

    @model_validator(mode="after")
    def _spans(self) -> Self:
        self.filters(self.seq_to)
        return self

    def filters(self, seq_to: int | None) -> list[EventFilter]:
        """Return what an event has to be like, with another last number."""
        return _event_filters(
            "",
            (self.seq_from, seq_to),
            (self.time_from, self.time_to),
            self.event_types,
            self.surfaces,
        )


class SessionTraceArgs(_Arguments):
    """Which session."""

    session_id: _Name | None = Field(default=None, description=_SESSION)


class EventTraceArgs(_Arguments):
    """Which event."""

    session_id: _Name | None = Field(default=None, description=_SESSION)
    seq: _Seq = Field(description="Number of the event in the session.")


class EventReadArgs(EventTraceArgs):
    """Which event, with how many neighbours."""

    before: _Seq | None = Field(default=None, description="Events to show before it.")
    after: _Seq | None = Field(default=None, description="Events to show after it.")


def _event_filters(
    prefix: str,
    seqs: tuple[int | None, int | None],
    times: tuple[str | None, str | None],
    types: list[str] | None,
    surfaces: list[_Surface] | None,
) -> list[EventFilter]:
    filters: list[EventFilter] = []
    first, last = seqs
    if first is not None and last is not None and first > last:
        raise ValueError(f"{prefix}seq_from is after {prefix}seq_to")
    if first is not None or last is not None:
        filters.append(SeqBetween(first, last))
    start, end = _span(f"{prefix}time", *times)
    if start is not None or end is not None:
        filters.append(TimeBetween(start, end))
    if types is not None:
        filters.append(TypeIs(tuple(types)))
    if surfaces is not None:
        filters.append(SurfaceIs(tuple(surfaces)))
    return filters


def _span(name: str, start: str | None, end: str | None) -> tuple[float | None, float | None]:
    low = None if start is None else parse_instant(start, "from")
    high = None if end is None else parse_instant(end, "to")
    if low is not None and high is not None and low > high:
        raise ValueError(f"{name}_from is after {name}_to")
    return low, high
