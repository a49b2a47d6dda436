"""The lines of a session's file: the header, then rows of events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from dsh.base.errors import message_of
from dsh.base.json import dumps, equal, loads
from dsh.base.values import value
from dsh.state.persistence.errors import (
    SessionFormatUnsupportedError,
    SessionPersistenceCorruptionError,
)
from dsh.state.session.codec import decode_storage_record, pack_chunk_runs
from dsh.state.session.envelope import adopt_session_event
from dsh.state.session.errors import InvalidHeader, RefusedEvent, SessionError
from dsh.state.session.header import META_FIELDS, checked_header
from dsh.state.session.legacy import LegacyUpgrade
from dsh.state.session.vocabulary import KNOWN_SESSION_EVENT_TYPES, SESSION_FORMAT_VERSION

if TYPE_CHECKING:
    from dsh.state.session.events import SessionEvent, SessionHeader

_RETIRED_HEADER_KEYS = ("sandboxMode", "approvalPolicy")
_RETIRED_STORED_TYPES = frozenset({"mode/set"})


def encode_header(header: Mapping[str, Any]) -> bytes:
    """Return the first line of a file."""
    record: dict[str, Any] = {"type": "session", "version": header["version"], "id": header["id"]}
    record |= {key: header[key] for key in META_FIELDS if key in header}
    record.setdefault("delegationDepth", 0)
    record |= {key: value for key, value in header.items() if key not in record}
    return dumps(record) + b"\n"


def encode_events(events: Iterable[Mapping[str, Any]], *, pack: bool) -> bytes:
    """Return the lines of a batch of events."""
    rows = pack_chunk_runs(events) if pack else events
    return b"".join(dumps(row) + b"\n" for row in rows)


def decode_header(line: bytes) -> SessionHeader:
    """Read the first line of a file.

    Raises:
        SessionFormatUnsupportedError: the version is not the one of this build.
        SessionPersistenceCorruptionError: it is not a header.
    """
    try:
        record = loads(line)
    except ValueError as error:
        raise SessionPersistenceCorruptionError("the first line is not JSON") from error
    if not isinstance(record, dict):
        raise SessionPersistenceCorruptionError("the first line is not an object")
    _check_version(record.get("version"))
    if record.pop("type", None) != "session":
        raise SessionPersistenceCorruptionError("the first line is not a session header")
    for key in _RETIRED_HEADER_KEYS:
        if key in record:
            raise SessionPersistenceCorruptionError(f"the header has the retired field {key!r}")
    record.setdefault("delegationDepth", 0)
    try:
        return checked_header(record)
    except InvalidHeader as error:
        raise SessionPersistenceCorruptionError(error.message) from error


def _check_version(version: object) -> None:
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


@value
class Issue:
    """The first line that does not continue the log."""

    line: int
    seq: int
    problem: str


class RecordScanner:
    """Reads rows as long as they continue the log; then only decides what the rest means.

    Rows after the first issue are a tail that a crash left, unless one of them ends a turn: what
    ended a turn was committed, so the damage is inside the committed part.

    Args:
        header: The header of the file.
    """

    def __init__(self, header: SessionHeader) -> None:
        self.header = header
        self.events: list[SessionEvent] = []
        self.issue: Issue | None = None
        self.repeated = 0
        self._legacy = LegacyUpgrade(header["id"], self.events)
        self._line = 1

    def read(self, line: bytes) -> bool:
        """Take the next line, without its line end.

        Returns:
            Whether the log is whole up to and including this line.

        Raises:
            SessionPersistenceCorruptionError: an earlier line is damaged and this one shows that
                it had been committed.
        """
        self._line += 1
        if self.issue is None:
            self.issue = self._take(line)
        elif _ends_turn(line):
            raise SessionPersistenceCorruptionError(
                f"line {self.issue.line} is damaged ({self.issue.problem}) "
                f"and line {self._line} ends a later turn"
            )
        return self.issue is None

    def tear(self, problem: str) -> None:
        """Report that the data ends inside a line."""
        if self.issue is None:
            self.issue = Issue(self._line + 1, len(self.events), problem)

    def _take(self, line: bytes) -> Issue | None:
        if not line.strip():
            return None
        try:
            events = self._decode(line)
        except (ValueError, SessionError) as error:
            return Issue(self._line, len(self.events), message_of(error))
        expected = len(self.events)
        if not events or events[0]["seq"] == expected:
            self.events += events
            return None
        if self._repeats(events):
            self.repeated += len(events)
            return None
        found = events[0]["seq"]
        return Issue(self._line, expected, f"it holds event {found}, not event {expected}")

    def _decode(self, line: bytes) -> list[SessionEvent]:
        value = loads(line)
        if isinstance(value, dict):
            value = self._legacy.upgrade(value)
        events = decode_storage_record(value)
        if len(events) == 1:
            event = adopt_session_event(events[0])
            if event["type"] in _RETIRED_STORED_TYPES:
                raise RefusedEvent(event["type"], "the type is retired")
        return events

    def _repeats(self, events: list[SessionEvent]) -> bool:
        """Whether a row was written twice, as a retried write may do: it says nothing new."""
        first = events[0]["seq"]
        stored = self.events[first : first + len(events)]
        return len(stored) == len(events) and all(map(equal, stored, events))


def _ends_turn(line: bytes) -> bool:
    if b"turn/end" not in line:
        return False
    try:
        value = loads(line)
    except ValueError:
        return False
    return isinstance(value, dict) and value.get("type") == "turn/end"


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
