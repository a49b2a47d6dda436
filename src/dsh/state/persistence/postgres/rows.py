"""Sessions as rows of PostgreSQL: what the columns hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dsh.base.errors import message_of
from dsh.base.json import dumps, loads
from dsh.base.values import value
from dsh.state.persistence.artifact.layout import encode_segment
from dsh.state.persistence.artifact.records import decode_header, encode_header
from dsh.state.persistence.backend import StoredLog
from dsh.state.persistence.scan import Ending, RowScanner, check_vocabulary
from dsh.state.session.codec import pack_chunk_runs

if TYPE_CHECKING:
    from dsh.state.persistence.backend import Tail
    from dsh.state.session.events import SessionEvent, SessionHeader


@value
class TablePosition:
    """Which session of which server, and how much of it, somebody knows.

    Attributes:
        revision: The opaque text of it.
        incarnation: Tells a session from another one that had its id before.
        number: Counts the writes to the session.
        count: How many events it has.
    """

    revision: str
    incarnation: str
    number: int
    count: int


def key_of(id: str) -> str:
    """Return the key of a session: any id is a text that the server accepts."""
    return encode_segment(id)


def cwd_column(cwd: str | None) -> str:
    """Return what stands for a working directory."""
    return dumps(cwd).decode()


def header_column(header: Mapping[str, Any]) -> str:
    """Return what stands for a header."""
    return encode_header(header).decode().rstrip("\n")


def read_header(column: str) -> SessionHeader:
    """Return the header that a column holds.

    Raises:
        SessionFormatUnsupportedError: the version is not the one of this build.
        SessionPersistenceCorruptionError: it is not a header.
    """
    return decode_header(column.encode())


def encode_rows(events: Iterable[Mapping[str, Any]]) -> tuple[list[int], list[str]]:
    """Return the numbers and the records of a batch of events."""
    rows = pack_chunk_runs(events)
    seqs = [row["seq0"] if "seq0" in row else row["seq"] for row in rows]
    return seqs, [dumps(row).decode() for row in rows]


def decode_log(
    header: SessionHeader, rows: Sequence[tuple[int, str]], position: TablePosition
) -> StoredLog[TablePosition]:
    """Return the log that the rows of a session hold.

    Raises:
        SessionPersistenceCorruptionError: what was committed is damaged.
        SessionFormatUnsupportedError: this build cannot interpret it.
    """
    scanner = RowScanner(header)
    tail = _scan(scanner, rows)
    check_vocabulary(scanner.events)
    return StoredLog(None, header, scanner.events, position, tail, scanner.repeated)


def decode_end(
    header: SessionHeader, rows: Sequence[tuple[int, str]], from_seq: int
) -> list[SessionEvent] | None:
    """Return the events from a number on; ``None`` when the log must be read whole.

    Raises:
        SessionPersistenceCorruptionError: what was read is damaged.
        SessionFormatUnsupportedError: this build cannot interpret it.
    """
    first = rows[0][0] if rows else 0
    scanner = RowScanner(header, first)
    _scan(scanner, rows)
    if scanner.is_legacy:
        return None
    check_vocabulary(scanner.events)
    return scanner.events[max(0, from_seq - first) :]


def _scan(scanner: RowScanner, rows: Sequence[tuple[int, str]]) -> Tail | None:
    ending = Ending()
    for seq, record in rows:
        row = _decode(record)
        problem = "" if ending.start is not None else _take(scanner, seq, row)
        if problem is not None:
            is_end = isinstance(row, dict) and row.get("type") == "turn/end"
            ending.add(seq, problem, len(record), ends_turn=is_end)
    return ending.tail()


def _take(scanner: RowScanner, seq: int, row: Any) -> str | None:
    if isinstance(row, ValueError):
        return message_of(row)
    if seq != scanner.expected:
        return f"it holds event {seq}, not event {scanner.expected}"
    return scanner.take(row)


def _decode(record: str) -> Any:
    try:
        return loads(record)
    except ValueError as error:
        return error
