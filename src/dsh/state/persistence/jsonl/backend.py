"""Session files as a medium: their store, in threads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from dsh.state.persistence.artifact.reader import FilePosition
from dsh.state.persistence.backend import StoredEntry, StoredLog
from dsh.state.persistence.background import Workers
from dsh.state.persistence.lease import DEFAULT_LEASE_S
from dsh.state.persistence.service import SessionLocation

if TYPE_CHECKING:
    from dsh.state.persistence.artifact.catalog import CatalogEntry
    from dsh.state.persistence.artifact.store import ArtifactStore
    from dsh.state.persistence.lease import Lease
    from dsh.state.session.events import SessionEvent, SessionHeader


class JsonlBackend:
    """See `Backend`.

    Args:
        store: The files.
        lease_s: How long a lease of the store lasts.
    """

    name = "jsonl"
    shares_commits = False

    def __init__(self, store: ArtifactStore, lease_s: float = DEFAULT_LEASE_S) -> None:
        self.lease_s = lease_s
        self._store = store
        self._workers = Workers("dsh-jsonl")

    def locate(self, header: Mapping[str, Any], position: FilePosition | None) -> SessionLocation:
        """See `Backend.locate`."""
        path = self._store.locate(header) if position is None else position.path
        return SessionLocation("jsonl", path)

    async def load(self, id: str) -> StoredLog[FilePosition] | None:
        """See `Backend.load`."""
        return await self._workers.run(self._store.load, id)

    async def load_from(self, id: str, from_seq: int) -> None:
        """A file can only be read whole."""

    async def revision(self, id: str) -> str | None:
        """See `Backend.revision`."""
        return await self._workers.run(self._store.revision, id)

    async def hold(self, id: str) -> Lease | None:
        """See `Backend.hold`."""
        return await self._workers.run(self._store.hold, id)

    async def renew(self, leases: Sequence[Lease]) -> list[Lease]:
        """See `Backend.renew`."""
        return await self._workers.run(self._store.renew, leases)

    async def let_go(self, lease: Lease) -> None:
        """See `Backend.let_go`."""
        await self._workers.run(self._store.let_go, lease)

    async def create(
        self, header: SessionHeader, events: Sequence[SessionEvent]
    ) -> tuple[Lease, FilePosition]:
        """See `Backend.create`."""
        return await self._workers.run(self._store.create_held, header, events)

    async def append(
        self, id: str, position: FilePosition, events: Sequence[SessionEvent], lease: Lease | None
    ) -> FilePosition:
        """See `Backend.append`."""
        return await self._workers.run(self._store.append, id, position, events, lease)

    async def repair(
        self,
        stored: StoredLog[FilePosition],
        closers: Sequence[SessionEvent],
        lease: Lease | None,
    ) -> FilePosition:
        """See `Backend.repair`."""
        return await self._workers.run(self._store.repair, stored, closers, lease)

    async def survey(self, cwd: str | None = None) -> list[StoredEntry]:
        """See `Backend.survey`."""
        return await self._workers.run(partial(self._survey, cwd))

    async def delete(self, id: str) -> bool:
        """See `Backend.delete`."""
        return await self._workers.run(self._store.delete, id)

    async def close(self) -> None:
        """See `Backend.close`."""
        await self._workers.run(self._store.close)
        self._workers.close()

    def _survey(self, cwd: str | None) -> list[StoredEntry]:
        store = self._store
        return list(map(_stored, store.survey() if cwd is None else store.survey_cwd(cwd)))


def _stored(entry: CatalogEntry) -> StoredEntry:
    location = SessionLocation("jsonl", entry.path)
    position = entry.position
    if position is None:
        return StoredEntry(entry.header, location, entry.damage)
    return StoredEntry(entry.header, location, entry.damage, position.revision, position.mtime_ns)
