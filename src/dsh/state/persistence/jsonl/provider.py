"""The service that keeps sessions in files."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from dsh.state.persistence.artifact.layout import Encoding
from dsh.state.persistence.artifact.reader import Position
from dsh.state.persistence.artifact.store import ArtifactStore
from dsh.state.persistence.coordinator import PersistenceCoordinator
from dsh.state.persistence.jsonl.config import Config as JsonlConfig
from dsh.state.persistence.service import (
    SessionInspection,
    SessionLocation,
    SessionPersistence,
    SessionPreparation,
    SessionSnapshot,
    StoredSession,
)
from dsh.state.session.events import (
    SESSION_CREATED,
    SESSION_DISPOSED,
    SESSION_EVENT,
    SESSION_FLUSH,
    SessionFlush,
)
from dsh.state.session.service import SessionStore

if TYPE_CHECKING:
    from dsh.kernel import Context
    from dsh.state.persistence.artifact.catalog import CatalogEntry
    from dsh.state.session.events import SessionEvent, SessionHeader


class JsonlPersistence(SessionPersistence):
    """Sessions as JSON lines below one folder."""

    inject = (SessionStore,)
    Config: ClassVar[type[JsonlConfig]] = JsonlConfig

    def __init__(self, ctx: Context, config: JsonlConfig) -> None:
        encoding = Encoding.ZSTD if config.compression == "zstd" else Encoding.PLAIN
        backend = ArtifactStore(Path(config.root), encoding, pack=config.pack_chunks)
        self._coordinator = PersistenceCoordinator(
            backend,
            ctx.require(SessionStore),
            window_s=config.write_batch_max_delay_ms / 1000,
            cache_size=config.prepared_session_cache_size,
        )
        super().__init__(ctx, config)

    def start(self) -> AbstractAsyncContextManager[None]:
        """Keep the live sessions, and those to come, until unloaded."""
        return self._kept()

    @asynccontextmanager
    async def _kept(self) -> AsyncIterator[None]:
        ctx, coordinator = self.ctx, self._coordinator
        ctx.on(SESSION_CREATED, lambda event: coordinator.attach(event.session))
        ctx.on(SESSION_EVENT, coordinator.live.appended)
        ctx.on(SESSION_DISPOSED, lambda event: coordinator.live.detach(event.session))
        ctx.on(SESSION_FLUSH, self._flush)
        for session in ctx.require(SessionStore).all():
            coordinator.attach(session)
        try:
            yield
        finally:
            # The listeners are gone by now: they were registered later than this effect.
            await coordinator.close()

    async def _flush(self, event: SessionFlush) -> None:
        await self._coordinator.live.flush(event.session)

    def locate(self, meta: Mapping[str, Any]) -> SessionLocation:
        """See `SessionPersistence.locate`."""
        return SessionLocation("jsonl", self._coordinator.locate(meta))

    async def create(self, meta: Mapping[str, Any]) -> None:
        """See `SessionPersistence.create`."""
        await self._coordinator.create(meta)

    async def append(self, id: str, events: Sequence[Mapping[str, Any]]) -> None:
        """See `SessionPersistence.append`."""
        await self._coordinator.append(id, events)

    async def prepare(self, id: str) -> SessionPreparation:
        """See `SessionPersistence.prepare`."""
        return await self._coordinator.prepare(id)

    async def load(self, id: str) -> SessionInspection:
        """See `SessionPersistence.load`."""
        return await self._coordinator.load(id)

    async def inspect(self, id: str) -> SessionInspection:
        """See `SessionPersistence.inspect`."""
        return await self._coordinator.inspect(id)

    async def read_from(self, id: str, from_seq: int) -> tuple[SessionHeader, list[SessionEvent]]:
        """See `SessionPersistence.read_from`."""
        return await self._coordinator.read_from(id, from_seq)

    async def all(self) -> list[SessionHeader]:
        """See `SessionPersistence.all`."""
        headers = [entry.header for entry in await self._entries() if _is_usable(entry)]
        usable = cast("list[SessionHeader]", headers)
        return sorted(usable, key=lambda header: (-header["createdAt"], header["id"]))

    async def list_snapshots(self) -> list[SessionSnapshot]:
        """See `SessionPersistence.list_snapshots`."""
        return await self._coordinator.work(self._snapshots)

    async def survey(self) -> list[StoredSession]:
        """See `SessionPersistence.survey`."""
        return [
            StoredSession(entry.header, entry.path, entry.damage) for entry in await self._entries()
        ]

    async def newest(self, cwd: str) -> SessionHeader | None:
        """See `SessionPersistence.newest`."""
        return await self._coordinator.work(lambda: self._newest(cwd))

    async def _entries(self) -> list[CatalogEntry]:
        backend = self._coordinator.backend
        return await self._coordinator.work(lambda: list(backend.survey()))

    def _snapshots(self) -> list[SessionSnapshot]:
        snapshots = []
        for entry in self._coordinator.backend.survey():
            if _is_usable(entry) and entry.header is not None:
                revision = Position.of(entry.path, entry.path.stat()).revision
                snapshots.append(SessionSnapshot(entry.header, revision))
        return snapshots

    def _newest(self, cwd: str) -> SessionHeader | None:
        usable = [entry for entry in self._coordinator.backend.survey_cwd(cwd) if _is_usable(entry)]
        written = [(entry.path.stat().st_mtime_ns, entry.header) for entry in usable]
        top = [
            (mtime, header["createdAt"], header)
            for mtime, header in written
            if header is not None and header.get("origin") != "subagent"
        ]
        return max(top, key=lambda item: item[:2])[2] if top else None


def _is_usable(entry: CatalogEntry) -> bool:
    return entry.header is not None and entry.damage is None
