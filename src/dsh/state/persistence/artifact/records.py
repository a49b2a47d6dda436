"""The lines of a session's file: the header, then rows of events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from dsh.base.errors import message_of
from dsh.base.json import dumps, loads
from dsh.base.values import value
from dsh.state.persistence.errors import SessionPersistenceCorruptionError
from dsh.state.persistence.scan import RowScanner, check_version, read_header_fields
from dsh.state.session.codec import pack_chunk_runs
from dsh.state.session.header import META_FIELDS

if TYPE_CHECKING:
    from dsh.state.session.events import SessionEvent, SessionHeader

_RETIRED_HEADER_KEYS = ("sandboxMode", "approvalPolicy")


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
    check_version(record.get("version"))
    if record.pop("type", None) != "session":
        raise SessionPersistenceCorruptionError("the first line is not a session header")
    for key in _RETIRED_HEADER_KEYS:
        if key in record:
            raise SessionPersistenceCorruptionError(f"the header has the retired field {key!r}")
    return read_header_fields(record)


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
        self.issue: Issue | None = None
        self._rows = RowScanner(header)
        self._line = 1

    @property
    def events(self) -> list[SessionEvent]:
        """What was read before the first issue."""
        return self._rows.events

    @property
    def repeated(self) -> int:
        """How many events came twice."""
        return self._rows.repeated

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
            problem = self._rows.take(loads(line))
        except ValueError as error:
            problem = message_of(error)
        return None if problem is None else Issue(self._line, len(self.events), problem)


def _ends_turn(line: bytes) -> bool:
    if b"turn/end" not in line:
        return False
    try:
        value = loads(line)
    except ValueError:
        return False
    return isinstance(value, dict) and value.get("type") == "turn/end"
