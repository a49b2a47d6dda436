"""The definition of ``ctx.session_query``: questions over all sessions, live and stored."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

from dsh.base.errors import DshError
from dsh.base.values import value
from dsh.kernel import Service

if TYPE_CHECKING:
    from dsh.state.session.events import SessionEvent, SessionHeader

Availability: TypeAlias = Literal["live", "persisted"]
"""Where a session is to be had; a session can be both."""

SurfaceClass: TypeAlias = Literal["current", "shadowed", "log-only"]
"""Whether the model sees an event, saw it before another one took its place, or never does."""

SURFACE_CLASSES: tuple[SurfaceClass, ...] = ("current", "shadowed", "log-only")

SessionQueryCode: TypeAlias = Literal[
    "SESSION_QUERY_ABORTED",
    "SESSION_QUERY_CORRUPT_SESSION",
    "SESSION_QUERY_EVENT_NOT_FOUND",
    "SESSION_QUERY_INDEX_FAILED",
    "SESSION_QUERY_INVALID_CONFIG",
    "SESSION_QUERY_INVALID_CURSOR",
    "SESSION_QUERY_INVALID_FILTER",
    "SESSION_QUERY_INVALID_LIMIT",
    "SESSION_QUERY_INVALID_LINEAGE",
    "SESSION_QUERY_INVALID_QUERY",
    "SESSION_QUERY_INVALID_SURFACE",
    "SESSION_QUERY_INVALID_WINDOW",
    "SESSION_QUERY_PERSISTENCE_FAILED",
    "SESSION_QUERY_SEARCH_DISABLED",
    "SESSION_QUERY_SESSION_NOT_FOUND",
    "SESSION_QUERY_SOURCE_CONFLICT",
    "SESSION_QUERY_STALE_CURSOR",
]
"""Every way a question fails; the set is closed."""


class SessionQueryError(DshError):
    """A question about sessions has no answer.

    Attributes:
        code: One of `SessionQueryCode`.
    """

    code: str = "SESSION_QUERY_PERSISTENCE_FAILED"

    def __init__(self, code: SessionQueryCode, message: str) -> None:
        super().__init__(message, code=code)


# Filters. Several of them hold together; the values of one are alternatives, and a filter
# without values lets nothing through. Ranges include both ends.


@value
class IdIs:
    """Sessions with one of these ids."""

    values: Sequence[str]


@value
class CwdIs:
    """Sessions of one of these working directories; ``None`` is for those without."""

    values: Sequence[str | None]


@value
class CreatedBetween:
    """Sessions created in a span, in milliseconds since the epoch."""

    start: float | None = None
    end: float | None = None


@value
class ParentIs:
    """Sessions with one of these parents; ``None`` is for those without."""

    values: Sequence[str | None]


@value
class AvailableAs:
    """Sessions that are to be had in one of these ways."""

    values: Sequence[Availability]


@value
class SeqBetween:
    """Events in a span of the log."""

    start: int | None = None
    end: int | None = None


@value
class TimeBetween:
    """Events in a span of time, in milliseconds since the epoch."""

    start: float | None = None
    end: float | None = None


@value
class TypeIs:
    """Events of one of these types."""

    values: Sequence[str]


@value
class SurfaceIs:
    """Events of one of these classes."""

    values: Sequence[SurfaceClass]


@value
class TextHas:
    """Events whose text has this in it; case and the kind of white space do not count."""

    text: str


SessionFilter: TypeAlias = IdIs | CwdIs | CreatedBetween | ParentIs | AvailableAs
EventFilter: TypeAlias = SeqBetween | TimeBetween | TypeIs | SurfaceIs | TextHas


@value
class SessionRecord:
    """A session without its events.

    Attributes:
        header: Its header.
        live: It is open in this process.
        persisted: It is stored.
    """

    header: SessionHeader
    live: bool
    persisted: bool

    @property
    def id(self) -> str:
        """The id of the session."""
        return self.header["id"]


@value
class EventRecord:
    """An event without its data."""

    session_id: str
    seq: int
    type: str
    time: int
    surface: SurfaceClass


@value
class SessionLog:
    """A session with all its events."""

    header: SessionHeader
    events: Sequence[SessionEvent]


@value
class SurfaceView:
    """What the model of a session sees.

    Attributes:
        header: The session.
        captured_through_seq: The last event of the log it was taken from; ``None`` without any.
        events: The events, in the order of the model.
    """

    header: SessionHeader
    captured_through_seq: int | None
    events: Sequence[SessionEvent]


@value
class TitleSnapshot:
    """The title of a session at some moment."""

    header: SessionHeader
    title: str | None


@value
class TitleOutcome:
    """What became of one look-up of many: the title, or why there is none."""

    session_id: str
    value: TitleSnapshot | None
    reason: SessionQueryError | None = None


@value
class SessionTree:
    """A session and those below it, oldest first."""

    session: SessionRecord
    children: tuple[SessionTree, ...]


@value
class SessionLineageTrace:
    """Where a session comes from, and what came from it.

    Attributes:
        target: The session.
        ancestors: Nearest first.
        complete: The last ancestor, or else the target, has no parent.
        unresolved_parent_id: The parent that is not to be found, when not complete.
        descendants: The sessions below the target.
    """

    target: SessionRecord
    ancestors: tuple[SessionRecord, ...]
    complete: bool
    unresolved_parent_id: str | None
    descendants: tuple[SessionTree, ...]


@value
class EventTrace:
    """How an event is connected with others of its log.

    Attributes:
        header: The session.
        target: The event.
        replaced_by: What took its place on the surface.
        replacement_chain: What took its place, what took the place of that, and so on.
        replaced_event_seqs: Whose place it took.
        source_event_seqs: What it says it was made from.
        derived_event_seqs: Later events that say they were made from it.
    """

    header: SessionHeader
    target: EventRecord
    replaced_by: int | None
    replacement_chain: tuple[int, ...]
    replaced_event_seqs: tuple[int, ...]
    source_event_seqs: tuple[int, ...]
    derived_event_seqs: tuple[int, ...]


@value
class EventWindow:
    """An event and its neighbours in the log."""

    header: SessionHeader
    target: SessionEvent
    before: Sequence[SessionEvent]
    after: Sequence[SessionEvent]


@value(kw_only=True)
class SessionSearch:
    """Which sessions have a text.

    Attributes:
        query: Taken literally; case and the kind of white space do not count.
        session_filters: Which sessions count.
        event_filters: Which of their events count.
        limit: Hits of one page; the provider's default when absent.
        cursor: Where the page before ended.
    """

    query: str
    session_filters: Sequence[SessionFilter] = ()
    event_filters: Sequence[EventFilter] = ()
    limit: int | None = None
    cursor: str | None = None


@value(kw_only=True)
class EventSearch:
    """Which events of a session have a text; see `SessionSearch`."""

    session_id: str
    query: str
    filters: Sequence[EventFilter] = ()
    limit: int | None = None
    cursor: str | None = None


@value
class EventSearchHit:
    """An event that has the text, with the words around the first place where it does."""

    event: EventRecord
    snippet: str


@value
class SessionSearchHit:
    """A session that has the text, and its best event."""

    session: SessionRecord
    best: EventSearchHit


@value
class SessionPage:
    """Some hits, best first; ``next_cursor`` leads to the next ones."""

    hits: tuple[SessionSearchHit, ...]
    next_cursor: str | None


@value
class EventPage:
    """Some hits in one session, best first; ``next_cursor`` leads to the next ones."""

    header: SessionHeader
    hits: tuple[EventSearchHit, ...]
    next_cursor: str | None


class SessionQuery(Service, ABC):
    """Reads all sessions, live and stored; changes none.

    A session that is live is read as it is in memory, and storage is not asked for it. Without
    persistence only the live ones exist. All methods raise `SessionQueryError`.
    """

    name: ClassVar[str] = "session_query"

    @property
    @abstractmethod
    def largest_page(self) -> int:
        """The most hits that a search can ask for at once."""

    @abstractmethod
    async def search_sessions(self, request: SessionSearch) -> SessionPage:
        """Find sessions by what was said in them: by the best event of each.

        An event is better than another when the text is in it more often; then the shorter, the
        later one.
        """

    @abstractmethod
    async def search_events(self, request: EventSearch) -> EventPage:
        """Find events of one session, ranked as in `search_sessions`."""

    @abstractmethod
    async def list_sessions(self) -> list[SessionRecord]:
        """Return all sessions, newest first."""

    @abstractmethod
    async def filter_sessions(self, filters: Sequence[SessionFilter]) -> list[SessionRecord]:
        """Return the sessions that all filters let through, newest first."""

    @abstractmethod
    async def filter_events(self, id: str, filters: Sequence[EventFilter]) -> list[EventRecord]:
        """Return the events that all filters let through, in the order of the log."""

    @abstractmethod
    async def read_session(self, id: str) -> SessionLog:
        """Return a session with its whole log, which is checked."""

    @abstractmethod
    async def read_title(self, id: str) -> str | None:
        """Return the title of a session."""

    @abstractmethod
    async def read_title_snapshot(self, id: str) -> TitleSnapshot:
        """Return a session with its title."""

    @abstractmethod
    async def read_title_snapshots(self, ids: Sequence[str]) -> list[TitleOutcome]:
        """Return the titles of sessions in the order of the first mention of each.

        One that fails does not fail the others.
        """

    @abstractmethod
    async def list_events(self, id: str) -> list[EventRecord]:
        """Return all events of a session without their data."""

    @abstractmethod
    async def read_surface(self, id: str) -> SurfaceView:
        """Return what the model of a session sees."""

    @abstractmethod
    async def trace_session(self, id: str) -> SessionLineageTrace:
        """Return where a session comes from, and what came from it."""

    @abstractmethod
    async def trace_event(self, id: str, seq: int) -> EventTrace:
        """Return how an event is connected with others of its log."""

    @abstractmethod
    async def read_event(
        self, id: str, seq: int, *, before: int = 0, after: int = 0
    ) -> EventWindow:
        """Return an event with as many neighbours on each side as asked for, when there are."""
