"""A PostgreSQL server as a medium."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dsh.base.errors import DshError, message_of
from dsh.base.values import value
from dsh.state.persistence.backend import StoredEntry, StoredLog
from dsh.state.persistence.background import Workers
from dsh.state.persistence.errors import SessionConflict
from dsh.state.persistence.lease import DEFAULT_LEASE_S, Lease, LeaseRecord, LeaseTerms
from dsh.state.persistence.postgres.errors import ServerFailed
from dsh.state.persistence.postgres.rows import (
    TablePosition,
    cwd_column,
    decode_end,
    decode_log,
    encode_rows,
    header_column,
    key_of,
    read_header,
)
from dsh.state.persistence.service import SessionLocation

if TYPE_CHECKING:
    from dsh.state.persistence.postgres.pool import Connections, Cursor
    from dsh.state.session.events import SessionEvent, SessionHeader

_NOW_MS = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
_LOCATION = SessionLocation("postgres", None)


class _ServerClock:
    """The time of the server when it was last asked: all hosts agree on it."""

    def __init__(self) -> None:
        self.at_ms = 0

    def now_ms(self) -> int:
        return self.at_ms

    def monotonic(self) -> float:
        return self.at_ms / 1000


@value
class _State:
    """What the server says of a session, while nobody else can write to it."""

    incarnation: str
    number: int
    count: int
    last_write: str


@value
class _Doubt:
    """A write whose commit was not answered: it may have happened."""

    mark: str
    position: TablePosition


class PostgresBackend:
    """See `Backend`.

    Every write locks the row of its session first, so that leases, positions and events of a
    session change in one order.

    Args:
        connections: The server.
        lease_s: How long a lease lasts that is not renewed.
    """

    name = "postgres"
    shares_commits = False

    def __init__(self, connections: Connections, lease_s: float = DEFAULT_LEASE_S) -> None:
        self.lease_s = lease_s
        self._server = connections
        self._workers = Workers("dsh-postgres")
        self._clock = _ServerClock()
        self._terms = LeaseTerms(lease_s, clock=self._clock)
        self._doubts: dict[TablePosition, _Doubt] = {}

    def locate(self, header: Mapping[str, Any], position: TablePosition | None) -> SessionLocation:
        """See `Backend.locate`."""
        return _LOCATION

    async def load(self, id: str) -> StoredLog[TablePosition] | None:
        """See `Backend.load`."""
        async with self._server.transaction() as db:
            await _see_one_moment(db)
            await self._run(db, "SELECT header FROM {s}.sessions WHERE id = %s", key_of(id))
            found = await db.fetchone()
            state = await self._state(db, id)
            if found is None or state is None:
                return None
            query = "SELECT seq, record FROM {s}.events WHERE session_id = %s ORDER BY seq"
            await self._run(db, query, key_of(id))
            rows: Any = await db.fetchall()
        position = self._position(state.incarnation, state.number, state.count)
        return await self._workers.run(decode_log, read_header(found[0]), rows, position)

    async def load_from(
        self, id: str, from_seq: int
    ) -> tuple[SessionHeader, list[SessionEvent]] | None:
        """See `Backend.load_from`."""
        key = key_of(id)
        async with self._server.transaction() as db:
            await _see_one_moment(db)
            await self._run(db, "SELECT header FROM {s}.sessions WHERE id = %s", key)
            found = await db.fetchone()
            if found is None:
                return None
            # A run of chunks may begin before the first event that is wanted.
            first = "SELECT max(seq) FROM {s}.events WHERE session_id = %s AND seq <= %s"
            query = (
                "SELECT seq, record FROM {s}.events WHERE session_id = %s "
                f"AND seq >= coalesce(({first}), 0) ORDER BY seq"
            )
            await self._run(db, query, key, key, min(from_seq, 2**62))
            rows: Any = await db.fetchall()
        header = read_header(found[0])
        events = await self._workers.run(decode_end, header, rows, from_seq)
        return None if events is None else (header, events)

    async def revision(self, id: str) -> str | None:
        """See `Backend.revision`."""
        async with self._server.transaction() as db:
            state = await self._state(db, id)
        return (
            None if state is None else self._position(state.incarnation, state.number, 0).revision
        )

    async def hold(self, id: str) -> Lease | None:
        """See `Backend.hold`."""
        async with self._server.transaction() as db:
            if await self._state(db, id, lock=True) is None:
                return None
            return await self._take(db, id)

    async def renew(self, leases: Sequence[Lease]) -> list[Lease]:
        """See `Backend.renew`."""
        ended: list[Lease] = []
        kept: dict[str, str] = {}
        async with self._server.transaction() as db:
            # One order for all, so that two hosts never wait for each other.
            query = (
                f"SELECT session_id, record, {_NOW_MS} FROM {{s}}.leases "
                "WHERE session_id = ANY(%s) ORDER BY session_id FOR UPDATE"
            )
            await self._run(db, query, [key_of(lease.id) for lease in leases])
            found = {key: self._read_lease(*row) for key, *row in await db.fetchall()}
            for lease in leases:
                last = found.get(key_of(lease.id))
                if last is not None and self._terms.is_in_force(lease, last):
                    kept[key_of(lease.id)] = self._terms.renewed(last).encode().decode()
                else:
                    ended.append(lease)
            update = (
                "UPDATE {s}.leases SET record = new.record "
                "FROM unnest(%s::text[], %s::text[]) AS new(id, record) WHERE session_id = new.id"
            )
            await self._run(db, update, list(kept), list(kept.values()))
        return ended

    async def let_go(self, lease: Lease) -> None:
        """See `Backend.let_go`."""
        async with self._server.transaction() as db:
            last = await self._last(db, lease.id, lock=True)
            if last is not None and self._terms.is_in_force(lease, last):
                await self._put(db, lease.id, self._terms.ended(last))

    async def create(
        self, header: SessionHeader, events: Sequence[SessionEvent]
    ) -> tuple[Lease, TablePosition]:
        """See `Backend.create`."""
        name, rows = header["id"], await self._workers.run(encode_rows, events)
        position = self._position(str(uuid.uuid4()), 1, len(events))
        async with self._server.transaction() as db:
            query = (
                f"INSERT INTO {{s}}.sessions VALUES (%s, %s, %s, %s, 1, %s, '', {_NOW_MS}) "
                "ON CONFLICT DO NOTHING"
            )
            await self._run(
                db,
                query,
                key_of(name),
                header_column(header),
                cwd_column(header.get("cwd")),
                position.incarnation,
                position.count,
            )
            if db.rowcount == 0:
                raise SessionConflict(name, "is stored already on the server")
            lease = await self._take(db, name)
            await self._insert(db, name, rows)
        # The source is known only after the server was reached.
        return lease, self._position(position.incarnation, 1, position.count)

    async def append(
        self,
        id: str,
        position: TablePosition,
        events: Sequence[SessionEvent],
        lease: Lease | None,
    ) -> TablePosition:
        """See `Backend.append`."""
        if (doubt := self._doubts.get(position)) is not None:
            happened = await self._has_happened(id, doubt)
            del self._doubts[position]
            if happened:
                events = events[doubt.position.count - position.count :]
                position = doubt.position
        if not events:
            return position
        rows = await self._workers.run(encode_rows, events)
        return await self._grow(id, position, rows, len(events), lease)

    async def repair(
        self,
        stored: StoredLog[TablePosition],
        closers: Sequence[SessionEvent],
        lease: Lease | None,
    ) -> TablePosition:
        """See `Backend.repair`."""
        rows = await self._workers.run(encode_rows, closers)
        count, position = len(stored.events), stored.position
        cut = None if stored.tail is None else stored.tail.keep
        known = self._position(position.incarnation, position.number, count)
        return await self._grow(stored.header["id"], known, rows, len(closers), lease, cut=cut)

    async def survey(self, cwd: str | None = None) -> list[StoredEntry]:
        """See `Backend.survey`."""
        query = "SELECT header, incarnation, revision, written_ms FROM {s}.sessions"
        async with self._server.transaction() as db:
            if cwd is None:
                await self._run(db, query)
            else:
                await self._run(db, query + " WHERE cwd = %s", cwd_column(cwd))
            rows = await db.fetchall()
        return [self._entry(*row) for row in rows]

    async def delete(self, id: str) -> bool:
        """See `Backend.delete`."""
        async with self._server.transaction() as db:
            if await self._state(db, id, lock=True) is None:
                return False
            await self._permit(db, id, None)
            await self._run(db, "DELETE FROM {s}.leases WHERE session_id = %s", key_of(id))
            await self._run(db, "DELETE FROM {s}.sessions WHERE id = %s", key_of(id))
        return True

    async def close(self) -> None:
        """See `Backend.close`."""
        await self._server.close()
        self._workers.close()

    async def _grow(
        self,
        id: str,
        position: TablePosition,
        rows: tuple[list[int], list[str]],
        added: int,
        lease: Lease | None,
        *,
        cut: int | None = None,
    ) -> TablePosition:
        mark = uuid.uuid4().hex
        number, count = position.number + 1, position.count + added
        grown = self._position(position.incarnation, number, count)
        try:
            async with self._server.transaction() as db:
                state = await self._state(db, id, lock=True)
                await self._permit(db, id, lease)
                _check(id, position, state)
                if cut is not None:
                    query = "DELETE FROM {s}.events WHERE session_id = %s AND seq >= %s"
                    await self._run(db, query, key_of(id), cut)
                await self._insert(db, id, rows)
                query = (
                    "UPDATE {s}.sessions SET revision = %s, count = %s, last_write = %s, "
                    f"written_ms = {_NOW_MS} WHERE id = %s"
                )
                await self._run(db, query, number, count, mark, key_of(id))
        except ServerFailed:
            self._doubts[position] = _Doubt(mark, grown)
            raise
        return grown

    async def _has_happened(self, id: str, doubt: _Doubt) -> bool:
        async with self._server.transaction() as db:
            state = await self._state(db, id)
        return state is not None and state.last_write == doubt.mark

    async def _insert(self, db: Cursor, id: str, rows: tuple[list[int], list[str]]) -> None:
        query = "INSERT INTO {s}.events SELECT %s, * FROM unnest(%s::bigint[], %s::text[])"
        await self._run(db, query, key_of(id), *rows)

    async def _state(self, db: Cursor, id: str, *, lock: bool = False) -> _State | None:
        query = "SELECT incarnation, revision, count, last_write FROM {s}.sessions WHERE id = %s"
        await self._run(db, query + (" FOR UPDATE" if lock else ""), key_of(id))
        found = await db.fetchone()
        return None if found is None else _State(*found)

    async def _last(self, db: Cursor, id: str, *, lock: bool = False) -> LeaseRecord | None:
        """Return the last lease, and set the clock."""
        query = f"SELECT record, {_NOW_MS} FROM {{s}}.leases WHERE session_id = %s"
        await self._run(db, query + (" FOR UPDATE" if lock else ""), key_of(id))
        found = await db.fetchone()
        if found is None:
            await self._run(db, f"SELECT {_NOW_MS}")
            (self._clock.at_ms,) = await db.fetchone() or (0,)
            return None
        return self._read_lease(*found)

    def _read_lease(self, record: str, now_ms: int) -> LeaseRecord:
        self._clock.at_ms = now_ms
        try:
            return LeaseRecord.decode(record)
        except ValueError:
            return self._terms.unreadable()

    async def _take(self, db: Cursor, id: str) -> Lease:
        record = self._terms.grant(id, await self._last(db, id, lock=True))
        await self._put(db, id, record)
        return self._terms.lease(id, record)

    async def _permit(self, db: Cursor, id: str, lease: Lease | None) -> None:
        self._terms.permit(id, lease, await self._last(db, id))

    async def _put(self, db: Cursor, id: str, record: LeaseRecord) -> None:
        query = (
            "INSERT INTO {s}.leases VALUES (%s, %s) "
            "ON CONFLICT (session_id) DO UPDATE SET record = excluded.record"
        )
        await self._run(db, query, key_of(id), record.encode().decode())

    async def _run(self, db: Cursor, query: str, *values: Any) -> None:
        # The schema is a plain name, as the config makes sure.
        statement: Any = query.replace("{s}", self._server.schema)
        await db.execute(statement, values)

    def _entry(self, header: str, incarnation: str, number: int, written_ms: int) -> StoredEntry:
        try:
            read = read_header(header)
        except DshError as error:
            return StoredEntry(None, _LOCATION, getattr(error, "problem", message_of(error)))
        revision = self._position(incarnation, number, 0).revision
        return StoredEntry(read, _LOCATION, None, revision, written_ms * 1_000_000)

    def _position(self, incarnation: str, number: int, count: int) -> TablePosition:
        revision = f"{self._server.source}:incarnation:{incarnation}:revision:{number}"
        return TablePosition(revision, incarnation, number, count)


async def _see_one_moment(db: Cursor) -> None:
    await db.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")


def _check(id: str, position: TablePosition, state: _State | None) -> None:
    if state is None:
        raise SessionConflict(id, "was removed from storage; go on in a new session")
    if state.incarnation != position.incarnation:
        raise SessionConflict(id, "was replaced in storage; open it again")
    if state.number != position.number:
        raise SessionConflict(id, "was written by another process; open it again")
