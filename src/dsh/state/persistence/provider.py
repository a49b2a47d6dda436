"""The service over any medium: what all providers have in common."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any

from dsh.state.persistence.coordinator import PersistenceCoordinator
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
    from dsh.state.persistence.backend import Backend, StoredEntry
    from dsh.state.persistence.config import StoreConfig
    from dsh.state.session.events import SessionEvent, SessionHeader


class KeptSessions(SessionPersistence):
    """Keeps sessions on a backend. A provider adds its config and makes the backend.

    Args:
        ctx: The plugin's context.
        config: What the providers' configs have in common.
        backend: The medium; closed when the plugin unloads.
    """

    inject = (SessionStore,)

    def __init__(self, ctx: Context, config: StoreConfig, backend: Backend[Any]) -> None:
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

    def locate(self, meta: Mapping[str, Any]) -> SessionLocation | None:
        """See `SessionPersistence.locate`."""
        return self._coordinator.locate(meta)

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

    async def delete(self, id: str) -> None:
        """See `SessionPersistence.delete`."""
        await self._coordinator.delete(id)

    async def all(self) -> list[SessionHeader]:
        """See `SessionPersistence.all`."""
        usable = [header for header, _ in await self._usable()]
        return sorted(usable, key=lambda header: (-header["createdAt"], header["id"]))

    async def list_snapshots(self) -> list[SessionSnapshot]:
        """See `SessionPersistence.list_snapshots`."""
        return [SessionSnapshot(header, entry.revision) for header, entry in await self._usable()]

    async def survey(self) -> list[StoredSession]:
        """See `SessionPersistence.survey`."""
        return [
            StoredSession(entry.header, entry.location.path, entry.damage)
            for entry in await self._coordinator.backend.survey()
        ]

    async def newest(self, cwd: str) -> SessionHeader | None:
        """See `SessionPersistence.newest`."""
        top = [
            (entry.written_ns, header["createdAt"], header)
            for header, entry in await self._usable(cwd)
            if header.get("origin") != "subagent"
        ]
        return max(top, key=lambda item: item[:2])[2] if top else None

    async def _usable(self, cwd: str | None = None) -> list[tuple[SessionHeader, StoredEntry]]:
        entries = await self._coordinator.backend.survey(cwd)
        return [
            (entry.header, entry)
            for entry in entries
            if entry.header is not None and entry.damage is None
        ]
