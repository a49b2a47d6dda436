"""The row ``session``: the store of live sessions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

from dsh.base.clock import SYSTEM_CLOCK
from dsh.kernel import scope_of, scope_target
from dsh.state.session.errors import (
    DuplicateEventType,
    DuplicateSession,
    SessionForkError,
    SessionNotLive,
)
from dsh.state.session.events import (
    CORE_EVENT_TYPES,
    SESSION_CREATED,
    SESSION_DISPOSED,
    SESSION_EVENT,
    SESSION_FLUSH,
    EventType,
    SessionCreated,
    SessionDisposed,
    SessionEventAppended,
    SessionFlush,
)
from dsh.state.session.fork import child_meta, prefix_at
from dsh.state.session.header import new_header
from dsh.state.session.service import SessionStore
from dsh.state.session.session import Session

if TYPE_CHECKING:
    from dsh.kernel import Context, Effect
    from dsh.state.session.events import SessionEvent, SessionMeta


@dataclass(slots=True, eq=False)
class _Entry:
    """A live session and what the store knows of it."""

    session: Session
    carrier: object
    announced: bool = False
    announcing: bool = False
    leaving: bool = False


class LocalSessionStore(SessionStore):
    """The live sessions of this process."""

    def __init__(self, ctx: Context, config: None = None) -> None:
        self._entries: dict[str, _Entry] = {}
        self._types: dict[str, EventType[Any]] = dict(CORE_EVENT_TYPES)
        self._declarations: dict[str, int] = {}
        self._minted = 0
        super().__init__(ctx, config)

    def start(self) -> Callable[[], None]:
        """Let go of the sessions that are left when the store unloads."""
        return self._release_all

    def create(
        self,
        id: str | None = None,
        *,
        seed: Iterable[Mapping[str, Any]] | None = None,
        meta: SessionMeta | None = None,
    ) -> Session:
        """See `SessionStore.create`."""
        return self._published(self.prepare(id, seed=seed, meta=meta))

    def fork(
        self,
        source: Session | str,
        boundary: int | None = None,
        child_session_id: str | None = None,
    ) -> Session:
        """See `SessionStore.fork`."""
        if child_session_id is not None and child_session_id in self._entries:
            raise SessionForkError("SESSION_ALREADY_EXISTS", child_session_id, "already exists")
        parent = self._fork_source(source)
        prefix = prefix_at(parent.id, parent.events, boundary)
        meta = child_meta(parent.header, prefix)
        own_id = self._mint() if child_session_id is None else child_session_id
        header = new_header(own_id, meta, SYSTEM_CLOCK.now_ms())
        return self._published(Session(header, seed=prefix, owned=True, types=self._types))

    def _fork_source(self, source: Session | str) -> Session:
        if isinstance(source, str):
            if (found := self.get(source)) is None:
                raise SessionForkError("SESSION_NOT_FOUND", source, "not found")
            return found
        if self.get(source.id) is not source:
            raise SessionForkError("SESSION_NOT_LIVE", source.id, "is not live in this store")
        return source

    def _published(self, session: Session) -> Session:
        def publish() -> Callable[[], None]:
            detach = self.enter(session)
            try:
                self.announce(session)
            except BaseException:
                detach()
                raise
            return detach

        self.caller.effect(publish, f"sessions.create({session.id!r})")
        return session

    def prepare(
        self,
        id: str | None = None,
        *,
        seed: Iterable[Mapping[str, Any]] | None = None,
        meta: SessionMeta | None = None,
    ) -> Session:
        """See `SessionStore.prepare`."""
        own_id = self._mint() if id is None else id
        self._refuse_taken(own_id)
        header = new_header(own_id, meta, SYSTEM_CLOCK.now_ms())
        return Session(header, seed=seed, types=self._types)

    def restore(self, header: Mapping[str, Any], events: Iterable[Mapping[str, Any]]) -> Session:
        """See `SessionStore.restore`."""
        return Session(header, seed=events, owned=True, types=self._types)

    def enter(self, session: Session, owner: Context | None = None) -> Callable[[], None]:
        """See `SessionStore.enter`."""
        self._refuse_taken(session.id)
        if session.attached:
            raise SessionNotLive(session.id, "is attached to a store already")
        key = scope_of(self.caller if owner is None else owner)
        # A key of its own lets no scoped listener hear of a session without a scope.
        carrier = scope_target(self, object() if key is None else key)
        entry = self._entries[session.id] = _Entry(session, carrier)
        session.attach(self._publisher(carrier))
        return partial(self._leave, entry)

    def announce(self, session: Session) -> None:
        """See `SessionStore.announce`."""
        entry = self._entry(session)
        if entry.announced:
            raise SessionNotLive(session.id, "was announced before")
        entry.announced = entry.announcing = True
        try:
            self.ctx.emit(SESSION_CREATED, SessionCreated(session), target=entry.carrier)
        finally:
            entry.announcing = False
            if entry.leaving:
                self._remove(entry)

    async def flush(self, session: Session) -> bool:
        """See `SessionStore.flush`."""
        entry = self._entry(session)
        try:
            await self.ctx.parallel(SESSION_FLUSH, SessionFlush(session), target=entry.carrier)
        except BaseExceptionGroup as group:
            _raise_first(group)
        return self.ctx.listener_count(SESSION_FLUSH.name) > 0

    def get(self, id: str) -> Session | None:
        """See `SessionStore.get`."""
        entry = self._entries.get(id)
        return None if entry is None else entry.session

    def all(self) -> list[Session]:
        """See `SessionStore.all`."""
        return [entry.session for entry in self._entries.values()]

    def declare(self, event_type: EventType[Any]) -> Effect:
        """See `SessionStore.declare`."""
        name = event_type.name
        if self._types.get(name, event_type) is not event_type or name in CORE_EVENT_TYPES:
            raise DuplicateEventType(name)
        return self.caller.effect(partial(self._insert, event_type), f"sessions.declare({name!r})")

    def declared(self) -> Mapping[str, EventType[Any]]:
        """See `SessionStore.declared`."""
        return MappingProxyType(self._types)

    def _insert(self, event_type: EventType[Any]) -> Callable[[], None]:
        name = event_type.name
        self._types[name] = event_type
        self._declarations[name] = self._declarations.get(name, 0) + 1
        return partial(self._withdraw, name)

    def _withdraw(self, name: str) -> None:
        self._declarations[name] -= 1
        if not self._declarations[name]:
            del self._declarations[name], self._types[name]

    def _mint(self) -> str:
        while True:
            self._minted += 1
            if (free := f"session-{self._minted}") not in self._entries:
                return free

    def _refuse_taken(self, id: str) -> None:
        if id in self._entries:
            raise DuplicateSession(id)

    def _entry(self, session: Session) -> _Entry:
        entry = self._entries.get(session.id)
        if entry is None or entry.session is not session:
            raise SessionNotLive(session.id)
        return entry

    def _publisher(
        self, carrier: object
    ) -> Callable[[Session, SessionEvent], Callable[[], object]]:
        prepare = self.ctx.prepare

        def publish(session: Session, event: SessionEvent) -> Callable[[], object]:
            return prepare(SESSION_EVENT, SessionEventAppended(session, event), carrier)

        return publish

    def _leave(self, entry: _Entry) -> None:
        entry.session.when_published(partial(self._remove_after_announcement, entry))

    def _remove_after_announcement(self, entry: _Entry) -> None:
        if entry.announcing:
            entry.leaving = True
        else:
            self._remove(entry)

    def _remove(self, entry: _Entry) -> None:
        session = entry.session
        if self._entries.get(session.id) is not entry:
            return
        del self._entries[session.id]
        session.detach()
        if entry.announced:
            self.ctx.emit(SESSION_DISPOSED, SessionDisposed(session), target=entry.carrier)

    def _release_all(self) -> None:
        for entry in list(self._entries.values()):
            self._leave(entry)


plugin = LocalSessionStore


def _raise_first(group: BaseExceptionGroup[BaseException]) -> NoReturn:
    """Raise the first failure; the others stay visible as its cause."""
    first = group.exceptions[0]
    if len(group.exceptions) == 1:
        raise first
    raise first from group
