"""A database of sessions as a medium: one thread that writes, one that reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from dsh.state.persistence.background import Tasks, Workers
from dsh.state.persistence.lease import DEFAULT_LEASE_S
from dsh.state.persistence.sqlite.commit import GroupCommit

if TYPE_CHECKING:
    from dsh.state.persistence.backend import StoredEntry, StoredLog
    from dsh.state.persistence.lease import Lease
    from dsh.state.persistence.service import SessionLocation
    from dsh.state.persistence.sqlite.store import RowPosition, SqliteStore
    from dsh.state.session.events import SessionEvent, SessionHeader


class SqliteBackend:
    """See `Backend`.

    Args:
        store: The database.
        lease_s: How long a lease of the store lasts.
    """

    name = "sqlite"
    shares_commits = True

    def __init__(self, store: SqliteStore, lease_s: float = DEFAULT_LEASE_S) -> None:
        self.lease_s = lease_s
        self._store = store
        self._tasks = Tasks()
        self._writer = Workers("dsh-sqlite-write", 1)
        self._reader = Workers("dsh-sqlite-read", 1) if store.database.has_reader else self._writer
        self._commits = GroupCommit(store.database.transact, self._writer, self._tasks)

    def locate(self, header: Mapping[str, Any], position: RowPosition | None) -> SessionLocation:
        """See `Backend.locate`."""
        return self._store.location

    async def load(self, id: str) -> StoredLog[RowPosition] | None:
        """See `Backend.load`."""
        return await self._reader.run(self._store.load, id)

    async def load_from(
        self, id: str, from_seq: int
    ) -> tuple[SessionHeader, list[SessionEvent]] | None:
        """See `Backend.load_from`."""
        return await self._reader.run(self._store.load_from, id, from_seq)

    async def revision(self, id: str) -> str | None:
        """See `Backend.revision`."""
        return await self._reader.run(self._store.revision, id)

    async def hold(self, id: str) -> Lease | None:
        """See `Backend.hold`."""
        if await self.revision(id) is None:
            return None  # nothing to hold, and no reason to make a database
        lease: Lease | None = await self._commits.run(partial(self._store.hold, id))
        return lease

    async def renew(self, leases: Sequence[Lease]) -> list[Lease]:
        """See `Backend.renew`."""
        ended: list[Lease] = await self._commits.run(partial(self._store.renew, leases))
        return ended

    async def let_go(self, lease: Lease) -> None:
        """See `Backend.let_go`."""
        await self._commits.run(partial(self._store.let_go, lease))

    async def create(
        self, header: SessionHeader, events: Sequence[SessionEvent]
    ) -> tuple[Lease, RowPosition]:
        """See `Backend.create`."""
        made = await self._commits.run(partial(self._store.create, header, events))
        return cast("tuple[Lease, RowPosition]", made)

    async def append(
        self, id: str, position: RowPosition, events: Sequence[SessionEvent], lease: Lease | None
    ) -> RowPosition:
        """See `Backend.append`."""
        grown = await self._commits.run(partial(self._store.append, id, position, events, lease))
        return cast("RowPosition", grown)

    async def repair(
        self,
        stored: StoredLog[RowPosition],
        closers: Sequence[SessionEvent],
        lease: Lease | None,
    ) -> RowPosition:
        """See `Backend.repair`."""
        whole = await self._commits.run(partial(self._store.repair, stored, closers, lease))
        return cast("RowPosition", whole)

    async def survey(self, cwd: str | None = None) -> list[StoredEntry]:
        """See `Backend.survey`."""
        return await self._reader.run(self._store.survey, cwd)

    async def delete(self, id: str) -> bool:
        """See `Backend.delete`."""
        if await self.revision(id) is None:
            return False
        return bool(await self._commits.run(partial(self._store.delete, id)))

    async def close(self) -> None:
        """See `Backend.close`."""
        await self._tasks.join()
        await self._writer.run(self._store.database.close)
        for workers in (self._reader, self._writer):
            workers.close()
