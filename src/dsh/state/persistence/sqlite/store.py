"""Sessions in a database: what one transaction does. Every method blocks."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, TypeAlias

from dsh.base.clock import SYSTEM_CLOCK, Clock
from dsh.base.errors import DshError, message_of
from dsh.base.values import value
from dsh.state.persistence.backend import StoredEntry, StoredLog
from dsh.state.persistence.errors import (
    SessionConflict,
    SessionPersistenceCorruptionError,
)
from dsh.state.persistence.lease import DEFAULT_LEASE_S, Lease, LeaseRecord, LeaseTerms
from dsh.state.persistence.scan import Ending, RowScanner, check_vocabulary
from dsh.state.persistence.service import SessionLocation
from dsh.state.persistence.sqlite.database import Database, Work
from dsh.state.persistence.sqlite.headers import (
    COLUMNS,
    MARKS,
    header_values,
    read_header,
    text,
)
from dsh.state.persistence.sqlite.rows import (
    Row,
    decode_row,
    encode_rows,
    ends_turn,
    size_of,
    take_row,
)

if TYPE_CHECKING:
    from dsh.state.persistence.backend import Tail
    from dsh.state.session.events import SessionEvent, SessionHeader

_EVENTS = (
    "SELECT seq, type, time, data, source_event_seqs, surface_op, ignorable FROM events "
    "WHERE session_id = CAST(? AS TEXT) "
)


@value
class RowPosition:
    """Which session of which database, and how much of it, somebody knows.

    Attributes:
        revision: The opaque text of it.
        incarnation: Tells a session from another one that had its id before.
        number: Counts the writes to the session.
        count: How many events it has.
    """

    revision: str
    incarnation: bytes
    number: int
    count: int


SqliteLog: TypeAlias = StoredLog[RowPosition]


class SqliteStore:
    """The sessions of one database.

    The methods that return `Work` prepare it, for `Database.transact`.

    Args:
        database: Where they are.
        lease_s: How long a lease lasts that is not renewed.
        clock: Tells the time.
    """

    def __init__(
        self,
        database: Database,
        lease_s: float = DEFAULT_LEASE_S,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.database = database
        self.location = SessionLocation("sqlite", database.options.path)
        self._terms = LeaseTerms(lease_s, clock=clock)

    def create(self, header: SessionHeader, events: Iterable[SessionEvent]) -> Work:
        """Prepare to store a new session and to take its lease."""
        key, rows, values = text(header["id"]), encode_rows(events), header_values(header)

        def work(db: sqlite3.Connection) -> tuple[Lease, RowPosition]:
            if _state(db, key) is not None:
                raise SessionConflict(
                    header["id"], f"is stored already in {self.database.options.shown!r}"
                )
            lease = self._take(db, header["id"])
            incarnation = str(uuid.uuid4())
            db.execute(
                f"INSERT INTO sessions ({COLUMNS}, incarnation, revision) VALUES ({MARKS}, ?, 1)",
                [*values, incarnation],
            )
            return lease, self._insert(db, key, rows, incarnation.encode(), 1)

        return work

    def append(
        self,
        id: str,
        position: RowPosition,
        events: Iterable[SessionEvent],
        lease: Lease | None = None,
    ) -> Work:
        """Prepare to store the next batch of a session."""
        key, rows = text(id), encode_rows(events)

        def work(db: sqlite3.Connection) -> RowPosition:
            self._permit(db, id, lease)
            self._check(db, id, position)
            if _next_seq(db, key) != position.count:
                raise SessionConflict(id, "was written by another process; open it again")
            return self._insert(db, key, rows, position.incarnation, position.number + 1)

        return work

    def repair(
        self, stored: SqliteLog, closers: Sequence[SessionEvent], lease: Lease | None = None
    ) -> Work:
        """Prepare to cut off a damaged end and to append the closers."""
        name, position = stored.header["id"], stored.position
        key, rows, tail = text(name), encode_rows(closers), stored.tail

        def work(db: sqlite3.Connection) -> RowPosition:
            self._permit(db, name, lease)
            self._check(db, name, position)
            if tail is not None:
                db.execute(
                    "DELETE FROM events WHERE session_id = CAST(? AS TEXT) AND seq >= ?",
                    (key, tail.keep),
                )
            return self._insert(db, key, rows, position.incarnation, position.number + 1)

        return work

    def hold(self, id: str) -> Work:
        """Prepare to take the lease of a stored session; ``None`` when nothing is stored."""

        def work(db: sqlite3.Connection) -> Lease | None:
            return None if _state(db, text(id)) is None else self._take(db, id)

        return work

    def renew(self, leases: Iterable[Lease]) -> Work:
        """Prepare to prolong leases; returns those that have ended."""

        def work(db: sqlite3.Connection) -> list[Lease]:
            ended = []
            for lease in leases:
                last = self._last(db, lease.id)
                if last is not None and self._terms.is_in_force(lease, last):
                    _put(db, lease.id, self._terms.renewed(last))
                else:
                    ended.append(lease)
            return ended

        return work

    def let_go(self, lease: Lease) -> Work:
        """Prepare to give up a lease, unless it has ended."""

        def work(db: sqlite3.Connection) -> None:
            last = self._last(db, lease.id)
            if last is not None and self._terms.is_in_force(lease, last):
                _put(db, lease.id, self._terms.ended(last))

        return work

    def delete(self, id: str) -> Work:
        """Prepare to remove a session; says whether there was one."""
        key = text(id)

        def work(db: sqlite3.Connection) -> bool:
            self._permit(db, id, None)
            db.execute("DELETE FROM lease.leases WHERE session_id = CAST(? AS TEXT)", (key,))
            gone = db.execute("DELETE FROM sessions WHERE id = CAST(? AS TEXT)", (key,))
            return gone.rowcount > 0

        return work

    def load(self, id: str) -> SqliteLog | None:
        """Read a whole session.

        Raises:
            SessionPersistenceCorruptionError: what was committed is damaged.
            SessionFormatUnsupportedError: this build cannot interpret it.
            DatabaseFailed: SQLite could not read it.
        """
        with self.database.reading() as db:
            header, state = self._header(db, id)
            if db is None or header is None or state is None:
                return None
            scanner = RowScanner(header)
            tail = _scan(scanner, db, "ORDER BY seq", (text(id),))
        check_vocabulary(scanner.events)
        position = self._position(*state, scanner.expected)
        return StoredLog(
            self.database.options.path, header, scanner.events, position, tail, scanner.repeated
        )

    def load_from(self, id: str, from_seq: int) -> tuple[SessionHeader, list[SessionEvent]] | None:
        """Read the end of a session; ``None`` when it is absent, or must be read whole.

        Raises:
            SessionPersistenceCorruptionError: what was read is damaged.
            SessionFormatUnsupportedError: this build cannot interpret it.
            DatabaseFailed: SQLite could not read it.
        """
        with self.database.reading() as db:
            header, _ = self._header(db, id)
            if db is None or header is None:
                return None
            # A run of chunks may begin before the first event that is wanted.
            before = "SELECT max(seq) FROM events WHERE session_id = CAST(? AS TEXT) AND seq <= ?"
            (first,) = db.execute(before, (text(id), from_seq)).fetchone()
            scanner = RowScanner(header, first or 0)
            _scan(scanner, db, "AND seq >= ? ORDER BY seq", (text(id), first or 0))
        if scanner.is_legacy:
            return None
        check_vocabulary(scanner.events)
        return header, scanner.events[max(0, from_seq - (first or 0)) :]

    def revision(self, id: str) -> str | None:
        """Return the revision of a session; ``None`` when nothing is stored."""
        with self.database.reading() as db:
            state = None if db is None else _state(db, text(id))
            return None if state is None else self._position(*state, 0).revision

    def survey(self, cwd: str | None) -> list[StoredEntry]:
        """Return all sessions, or those of a working directory; the damaged ones too."""
        entries: list[StoredEntry] = []
        try:
            with self.database.reading() as db:
                if db is not None:
                    entries.extend(self._entry(db, key) for key in _ids(db, cwd))
        except (DshError, sqlite3.Error) as error:
            entries.append(StoredEntry(None, self.location, message_of(error)))
        return entries

    def _entry(self, db: sqlite3.Connection, key: bytes) -> StoredEntry:
        query = "SELECT time FROM events WHERE session_id = CAST(? AS TEXT) "
        query += "ORDER BY seq DESC LIMIT 1"
        try:
            header, state = self._header(db, key.decode("utf-8", "surrogatepass"))
            last = db.execute(query, (key,)).fetchone()
        except (DshError, sqlite3.Error) as error:
            return StoredEntry(None, self.location, getattr(error, "problem", message_of(error)))
        if state is None or last is None:
            return StoredEntry(header, self.location, "it has no events")
        revision = self._position(*state, 0).revision
        written = last[0] if isinstance(last[0], int) else 0
        return StoredEntry(header, self.location, None, revision, written * 1_000_000)

    def _header(
        self, db: sqlite3.Connection | None, id: str
    ) -> tuple[SessionHeader | None, tuple[bytes, int] | None]:
        if db is None:
            return None, None
        query = f"SELECT {COLUMNS}, incarnation, revision FROM sessions "
        row = db.execute(query + "WHERE id = CAST(? AS TEXT)", (text(id),)).fetchone()
        if row is None:
            return None, None
        header = read_header(row[:-2])
        if header["id"] != id:
            problem = f"the header names session {header['id']!r}, not {id!r}"
            raise SessionPersistenceCorruptionError(problem, path=self.database.options.path)
        return header, (row[-2], row[-1])

    def _take(self, db: sqlite3.Connection, id: str) -> Lease:
        record = self._terms.grant(id, self._last(db, id))
        _put(db, id, record)
        return self._terms.lease(id, record)

    def _permit(self, db: sqlite3.Connection, id: str, lease: Lease | None) -> None:
        self._terms.permit(id, lease, self._last(db, id))

    def _last(self, db: sqlite3.Connection, id: str) -> LeaseRecord | None:
        query = "SELECT record FROM lease.leases WHERE session_id = CAST(? AS TEXT)"
        row = db.execute(query, (text(id),)).fetchone()
        try:
            return None if row is None else LeaseRecord.decode(row[0])
        except ValueError:
            return self._terms.unreadable()

    def _check(self, db: sqlite3.Connection, id: str, position: RowPosition) -> None:
        state = _state(db, text(id))
        if state is None:
            raise SessionConflict(id, "was removed from storage; go on in a new session")
        if state[0] != position.incarnation:
            raise SessionConflict(id, "was replaced in storage; open it again")
        if state[1] != position.number:
            raise SessionConflict(id, "was written by another process; open it again")

    def _insert(
        self,
        db: sqlite3.Connection,
        key: bytes,
        rows: Sequence[Row],
        incarnation: bytes,
        number: int,
    ) -> RowPosition:
        db.executemany(
            "INSERT INTO events VALUES (CAST(? AS TEXT), ?, CAST(? AS TEXT), ?, ?, ?, ?, ?)",
            ((key, *row) for row in rows),
        )
        update = "UPDATE sessions SET revision = ? WHERE id = CAST(? AS TEXT)"
        db.execute(update, (number, key))
        return self._position(incarnation, number, _next_seq(db, key))

    def _position(self, incarnation: bytes, number: int, count: int) -> RowPosition:
        revision = f"{self.database.source}:incarnation:{incarnation.decode()}:revision:{number}"
        return RowPosition(revision, incarnation, number, count)


def _ids(db: sqlite3.Connection, cwd: str | None) -> list[bytes]:
    where, values = ("", ()) if cwd is None else (" WHERE cwd = CAST(? AS TEXT)", (text(cwd),))
    return [key for (key,) in db.execute(f"SELECT id FROM sessions{where}", values)]


def _state(db: sqlite3.Connection, key: bytes) -> tuple[bytes, int] | None:
    query = "SELECT incarnation, revision FROM sessions WHERE id = CAST(? AS TEXT)"
    found: tuple[bytes, int] | None = db.execute(query, (key,)).fetchone()
    return found


def _put(db: sqlite3.Connection, id: str, record: LeaseRecord) -> None:
    db.execute(
        "INSERT INTO lease.leases VALUES (CAST(? AS TEXT), ?) "
        "ON CONFLICT(session_id) DO UPDATE SET record = excluded.record",
        (text(id), record.encode().decode()),
    )


def _next_seq(db: sqlite3.Connection, key: bytes) -> int:
    """Return the number after the last stored event."""
    row = db.execute(_EVENTS + "ORDER BY seq DESC LIMIT 1", (key,)).fetchone()
    if row is None:
        return 0
    last = decode_row(row)
    members = len(last["data"]["dt"]) if "seq0" in last else 0
    return int(row[0]) + members + 1


def _scan(
    scanner: RowScanner, db: sqlite3.Connection, which: str, values: Sequence[Any]
) -> Tail | None:
    """Read rows as long as they continue the log; return what is behind them.

    Raises:
        SessionPersistenceCorruptionError: what was committed is damaged.
    """
    ending = Ending()
    # A query that is not read to its end would keep the connection at this moment for ever.
    with closing(db.execute(_EVENTS + which, values)) as rows:
        for row in rows:
            problem = take_row(scanner, row) if ending.start is None else ""
            if problem is not None:
                ending.add(row[0], problem, size_of(row), ends_turn=ends_turn(row))
    return ending.tail()
