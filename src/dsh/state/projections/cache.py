"""The row ``session-projection-cache``: checkpoints of sessions, kept in a storage domain."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from dsh.base.errors import error_chain
from dsh.base.json import FrozenDict, equal
from dsh.base.serial import SerialQueue
from dsh.base.values import record
from dsh.kernel.timer import Timer
from dsh.state.persistence.service import SessionPersistence
from dsh.state.projections.errors import ProjectionError
from dsh.state.projections.service import (
    Checkpoint,
    ProjectionCache,
    ProjectionRegistry,
    ProjectionSnapshot,
    Restored,
)
from dsh.state.session.events import (
    SESSION_DISPOSED,
    SESSION_EVENT,
    TURN_END,
    SessionDisposed,
    SessionEventAppended,
)
from dsh.state.session.service import SessionStore
from dsh.state.storage.domain.service import Domain, DomainFacility, DomainSpec

if TYPE_CHECKING:
    from dsh.kernel import Context, Effect
    from dsh.state.session.events import SessionEvent, SessionHeader
    from dsh.state.session.session import Session

_log = logging.getLogger("dsh.session_projection_cache")
_TABLE: Final = "sessions"


class Config(BaseModel):
    """When the states of a live session are kept, besides at the end of each turn."""

    model_config = ConfigDict(extra="forbid", alias_generator=to_camel, populate_by_name=True)

    write_every_events: Annotated[int, Field(ge=1, strict=True)]
    """After so many events."""
    write_interval_ms: Annotated[int, Field(ge=1, strict=True)]
    """So long after the first event that is not in them, in milliseconds."""


def _check_record(found: Any) -> None:
    known = isinstance(found, dict)
    identity = found.get("identity") if known else None
    if not (isinstance(identity, dict) and type(identity.get("createdAt")) is int):
        raise ValueError("it does not say of which session it is")
    if not (isinstance(identity.get("cwd", ""), str) and isinstance(found.get("rows"), dict)):
        raise ValueError("it has no rows")  # noqa: TRY004 - that is how a schema refuses


DOMAIN: Final = DomainSpec(
    "session_projcache", version=3, tables={_TABLE: _check_record}, recovery="reset"
)
"""The domain; all of it can be made again from the logs."""


@record
class _Dirty:
    """A live session whose kept states are old."""

    events: int = 0
    timer: Effect | None = None


class StoredProjectionCache(ProjectionCache):
    """Keeps checkpoints beside the logs; see `ProjectionCache`.

    A checkpoint is stored after the events that are in it: what it says is in the log, whatever
    happens to the process.
    """

    inject = (ProjectionRegistry, SessionStore, SessionPersistence, DomainFacility, Timer)
    Config: ClassVar[Any] = Config
    _domain: Domain

    def __init__(self, ctx: Context, config: Config) -> None:
        self._dirty: dict[Session, _Dirty] = {}
        self._queue = SerialQueue("session-projection-cache")
        super().__init__(ctx, config)

    async def start(self) -> None:
        """Open the domain and begin to follow the live sessions."""
        self._domain = await self.ctx.require(DomainFacility).open(DOMAIN)
        self.ctx.defer(self._queue.join, "session_projection_cache.writes")
        self.ctx.on(SESSION_EVENT, self._appended)
        self.ctx.on(SESSION_DISPOSED, self._disposed)

    def cached_snapshot(self, header: SessionHeader) -> ProjectionSnapshot | None:
        """See `ProjectionCache.cached_snapshot`."""
        rows = self._rows(header)
        views = self._registry.view_checkpoint(rows)
        if not views:
            return None
        oldest = min(rows[key]["seq"] for key in views)
        return ProjectionSnapshot(asOfSeq=oldest, values=FrozenDict(views))

    async def write(self, session: Session) -> None:
        """See `ProjectionCache.write`."""
        await self._queue.run(partial(self._write, session), key=session.id)

    async def cold_snapshot(self, id: str) -> ProjectionSnapshot:
        """See `ProjectionCache.cold_snapshot`."""
        if (live := self._sessions.get(id)) is not None:
            return self._registry.snapshot(live)
        header, rows, restored = await self._restored(id)
        if not equal(dict(rows), dict(restored.checkpoint)):
            self._in_background(partial(self._put, header, restored.checkpoint), id)
        return restored.snapshot

    @property
    def _registry(self) -> ProjectionRegistry:
        return self.ctx.require(ProjectionRegistry)

    @property
    def _sessions(self) -> SessionStore:
        return self.ctx.require(SessionStore)

    def _rows(self, header: SessionHeader) -> Mapping[str, Any]:
        kept = self._domain.table(_TABLE).get(header["id"])
        if kept is None or not equal(kept["identity"], _identity(header)):
            return {}
        rows: Mapping[str, Any] = kept["rows"]
        return rows

    async def _restored(self, id: str) -> tuple[SessionHeader, Mapping[str, Any], Restored]:
        kept = self._domain.table(_TABLE).get(id)
        floor = self._registry.restore_floor({} if kept is None else kept["rows"]) or 0
        header, events = await self._read_from(id, floor)
        rows = self._rows(header)
        if rows or floor == 0:
            try:
                return header, rows, self._registry.restore(rows, events, floor)
            except ProjectionError:
                if not rows and floor == 0:
                    raise
        header, events = await self._read_from(id, 0)
        return header, rows, self._registry.restore({}, events, 0)

    async def _read_from(self, id: str, seq: int) -> tuple[SessionHeader, list[SessionEvent]]:
        return await self.ctx.require(SessionPersistence).read_from(id, seq)

    # What follows keeps the states of live sessions.

    def _appended(self, appended: SessionEventAppended) -> None:
        session, config = appended.session, self.config
        dirty = self._dirty.get(session)
        if dirty is None:
            dirty = self._dirty[session] = _Dirty()
            due = partial(self._keep, session)
            delay_s = config.write_interval_ms / 1000
            dirty.timer = self.ctx.require(Timer).timeout(delay_s, due)
        dirty.events += 1
        if appended.event["type"] == TURN_END.name or dirty.events >= config.write_every_events:
            self._keep(session)

    def _keep(self, session: Session) -> None:
        if self._clean(session):
            self._in_background(partial(self._write, session), session.id)

    def _disposed(self, disposed: SessionDisposed) -> None:
        session = disposed.session
        if self._clean(session):
            self._in_background(partial(self._write_last, session), session.id)

    def _clean(self, session: Session) -> bool:
        """Forget that a session is dirty; say whether it was."""
        dirty = self._dirty.pop(session, None)
        if dirty is None:
            return False
        if dirty.timer is not None:
            dirty.timer.dispose()
        return True

    def _in_background(self, write: Callable[[], Awaitable[None]], id: str) -> None:
        async def soft() -> None:
            try:
                await write()
            except Exception as error:
                _log.warning("the states of session %r are not kept: %s", id, error_chain(error))

        self._queue.start(soft, key=id)

    async def _write(self, session: Session) -> None:
        checkpoint = self._registry.checkpoint(session)
        if self._sessions.get(session.id) is session:
            await self._sessions.flush(session)
        else:
            await self._check_stored(session)
        await self._put(session.header, checkpoint)

    async def _write_last(self, session: Session) -> None:
        checkpoint = self._registry.checkpoint(session)
        await self._check_stored(session)
        await self._put(session.header, checkpoint)

    async def _check_stored(self, session: Session) -> None:
        """Wait until the log of a session that left is stored.

        Raises:
            ValueError: it is not stored as far as it went.
        """
        stored = await self.ctx.require(SessionPersistence).inspect(session.id)
        last = session.seq - 1
        if last >= len(stored.events) or not equal(stored.events[last], session.events[last]):
            raise ValueError("its log was not stored to the end")

    async def _put(self, header: SessionHeader, checkpoint: Checkpoint) -> None:
        if checkpoint:
            kept = {"identity": _identity(header), "rows": dict(checkpoint)}
            await self._domain.table(_TABLE).put(header["id"], kept)


def _identity(header: SessionHeader) -> dict[str, Any]:
    identity: dict[str, Any] = {"createdAt": header["createdAt"]}
    if "cwd" in header:
        identity["cwd"] = header["cwd"]
    return identity


plugin = StoredProjectionCache
