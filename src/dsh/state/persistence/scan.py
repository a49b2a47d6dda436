"""Rows of a stored log, whatever the medium: what they hold, and where the log ends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from dsh.base.errors import DshError, message_of
from dsh.base.json import equal, snapshot
from dsh.state.persistence.backend import Tail
from dsh.state.persistence.errors import (
    SessionFormatUnsupportedError,
    SessionPersistenceCorruptionError,
)
from dsh.state.session.codec import decode_storage_record
from dsh.state.session.envelope import adopt_session_event
from dsh.state.session.errors import InvalidHeader, RefusedEvent
from dsh.state.session.header import checked_header
from dsh.state.session.legacy import LegacyUpgrade
from dsh.state.session.vocabulary import KNOWN_SESSION_EVENT_TYPES, SESSION_FORMAT_VERSION

if TYPE_CHECKING:
    from dsh.state.session.events import SessionEvent, SessionHeader

_RETIRED_STORED_TYPES = frozenset({"mode/set"})


def read_header_fields(record: Mapping[str, Any]) -> SessionHeader:
    """Return the header that a medium has stored field by field.

    Raises:
        SessionFormatUnsupportedError: the version is not the one of this build.
        SessionPersistenceCorruptionError: it is not a header.
    """
    check_version(record.get("version"))
    try:
        return checked_header({"delegationDepth": 0, **record})
    except InvalidHeader as error:
        raise SessionPersistenceCorruptionError(error.message) from error


def check_version(version: object) -> None:
    """Refuse a log of another format version.

    Raises:
        SessionFormatUnsupportedError: says whether it is newer or older.
    """
    if isinstance(version, bool) or not isinstance(version, (int, float)):
        return
    if version == SESSION_FORMAT_VERSION:
        return
    remedy = (
        "it was written by a newer dsh: upgrade this one to read it"
        if version > SESSION_FORMAT_VERSION
        else "this build has no upgrade for a format that old"
    )
    raise SessionFormatUnsupportedError(
        f"the log has format version {version}, this build reads {SESSION_FORMAT_VERSION}; {remedy}"
    )


def check_vocabulary(events: Iterable[Mapping[str, Any]]) -> None:
    """Refuse a log that means more than this build understands.

    Raises:
        SessionFormatUnsupportedError: an event that must be understood has an unknown type.
    """
    for event in events:
        if event["type"] not in KNOWN_SESSION_EVENT_TYPES and "ignorable" not in event:
            raise SessionFormatUnsupportedError(
                f"event {event['seq']} has the type {event['type']!r}, which this build does not "
                "know and may not skip; use the dsh that wrote it, or a newer one"
            )


class Ending:
    """Decides what the rows mean from the first on that does not continue a log.

    They are a tail that a crash left, unless one of them ends a turn: what ended a turn was
    committed, so the damage is inside the committed part.

    Attributes:
        start: The number of the first event that is not kept; ``None`` while all is whole.
    """

    def __init__(self) -> None:
        self.start: int | None = None
        self._reason = ""
        self._lost_bytes = 0

    def add(self, seq: int, problem: str, size: int, *, ends_turn: bool) -> None:
        """Take the next row.

        Args:
            seq: The number that the row says it has.
            problem: Why it does not continue the log; only that of the first row counts.
            size: How many bytes it has.
            ends_turn: Whether it is a whole end of a turn.

        Raises:
            SessionPersistenceCorruptionError: it shows that the first one had been committed.
        """
        if self.start is None:
            self.start, self._reason = seq, problem
        if ends_turn:
            raise SessionPersistenceCorruptionError(
                f"the row of event {self.start} is damaged ({self._reason}) and that of event "
                f"{seq} ends a later turn"
            )
        self._lost_bytes += size

    def tail(self) -> Tail | None:
        """Return what a repair has to cut off."""
        if self.start is None:
            return None
        return Tail(self.start, (), self._reason, self._lost_bytes)


class RowScanner:
    """Takes rows in order, as long as each continues the log.

    Args:
        header: The header of the session.
        first: The number of the first event; others than 0 when only an end is read.

    Attributes:
        events: What was taken.
        repeated: How many events came twice.
        is_legacy: Whether a row had the shape of an early writer.
    """

    def __init__(self, header: SessionHeader, first: int = 0) -> None:
        self.header = header
        self.events: list[SessionEvent] = []
        self.repeated = 0
        self.is_legacy = False
        self._first = first
        self._legacy = LegacyUpgrade(header["id"], self.events)

    @property
    def expected(self) -> int:
        """The number of the event that continues the log."""
        return self._first + len(self.events)

    def take(self, value: object, *, packed: bool | None = None) -> str | None:
        """Take the next row, or say why it does not continue the log.

        Args:
            value: The row.
            packed: Whether it is a run of chunks; ``None`` lets its type decide.
        """
        try:
            events = self._decode(value, packed)
        except (ValueError, DshError) as error:
            return message_of(error)
        if not events or events[0]["seq"] == self.expected:
            self.events += events
            return None
        if self._repeats(events):
            self.repeated += len(events)
            return None
        return f"it holds event {events[0]['seq']}, not event {self.expected}"

    def _decode(self, value: object, packed: bool | None) -> list[SessionEvent]:
        if isinstance(value, dict):
            upgraded = self._legacy.upgrade(value)
            self.is_legacy = self.is_legacy or upgraded is not value
            value = upgraded
        if packed is False and isinstance(value, dict):
            return [adopt_session_event(snapshot(value))]
        events = decode_storage_record(value)
        if len(events) == 1:
            event = adopt_session_event(events[0])
            if event["type"] in _RETIRED_STORED_TYPES:
                raise RefusedEvent(event["type"], "the type is retired")
        return events

    def _repeats(self, events: list[SessionEvent]) -> bool:
        """Whether a row was written twice, as a retried write may do: it says nothing new."""
        at = events[0]["seq"] - self._first
        stored = self.events[at : at + len(events)] if at >= 0 else []
        return len(stored) == len(events) and all(map(equal, stored, events))
