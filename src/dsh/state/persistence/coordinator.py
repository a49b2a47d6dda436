"""Keeps sessions and storage in step: who may write what, when, and in which order."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from dsh.base.values import value
from dsh.state.persistence.background import Chains, Tasks, Workers
from dsh.state.persistence.errors import (
    PersistenceError,
    SessionConflict,
    SessionLeaseLost,
    SessionNotFound,
    SessionPersistenceCorruptionError,
)
from dsh.state.persistence.keeper import LeaseKeeper
from dsh.state.persistence.live import LiveSessions, StoredPrefix
from dsh.state.persistence.service import SessionDamage, SessionInspection, SessionPreparation
from dsh.state.session.envelope import snapshot_session_event
from dsh.state.session.errors import InvalidSeed
from dsh.state.session.header import checked_header
from dsh.state.session.repair import interrupted_turn_closers

if TYPE_CHECKING:
    from dsh.state.persistence.backend import Backend, StoredLog
    from dsh.state.persistence.lease import Lease
    from dsh.state.persistence.service import SessionLocation
    from dsh.state.session.events import SessionEvent, SessionHeader
    from dsh.state.session.session import Session

_log = logging.getLogger("dsh.session_persistence")
_REPAIR_ATTEMPTS = 4

T = TypeVar("T")


class Sessions(Protocol):
    """What the coordinator needs of the session store."""

    def get(self, id: str) -> Session | None:
        """Return a live session."""
        ...

    def restore(self, header: Mapping[str, Any], events: Iterable[Mapping[str, Any]]) -> Session:
        """Build a session from a stored log."""
        ...


@value
class _Held:
    """A stored session that is held for one resumption."""

    session: Session
    prefix: StoredPrefix
    stored: StoredLog[Any]


class PersistenceCoordinator:
    """All orchestration around one backend; lives on the loop.

    Whatever touches the stored copy of one session happens in the order it was asked for.

    Args:
        backend: Where sessions are kept.
        sessions: The live sessions.
        window_s: How long a live session collects events before they are written.
        cache_size: How many stored logs that were read are remembered.

    Raises:
        ValueError: the cache size is not positive.

    Attributes:
        backend: Where sessions are kept.
        live: The live sessions that are kept.
    """

    def __init__(
        self,
        backend: Backend[Any],
        sessions: Sessions,
        *,
        window_s: float = 0.2,
        cache_size: int = 5,
    ) -> None:
        if cache_size < 1:
            raise ValueError("at least one stored session must be remembered")
        self.backend = backend
        self._sessions = sessions
        self._workers = Workers(f"dsh-{backend.name}")
        self._tasks = Tasks()
        self._chains = Chains(self._tasks)
        self._leases = LeaseKeeper(backend, self._tasks)
        self.live = LiveSessions(
            backend, self._workers, self._chains, self._tasks, self._leases, window_s
        )
        self._held: dict[str, _Held] = {}
        self._detached: dict[str, StoredPrefix] = {}
        self._ready: OrderedDict[str, StoredLog[Any]] = OrderedDict()
        self._cache_size = cache_size
        self._closed = False

    def attach(self, session: Session) -> None:
        """Begin to keep a session that became live.

        Raises:
            SessionConflict: its id is held for another session object.
        """
        held = self._held.get(session.id)
        if held is not None and held.session is not session:
            raise SessionConflict(session.id, "is being resumed; release that first")
        self._held.pop(session.id, None)
        self._detached.pop(session.id, None)
        self._ready.pop(session.id, None)
        self.live.attach(session, StoredPrefix(session.header) if held is None else held.prefix)

    async def close(self) -> None:
        """Write everything, wait for everything, end the threads; only the first call acts.

        Raises:
            ExceptionGroup: sessions that could not be written.
        """
        if self._closed:
            return
        self._closed = True
        failures = await self.live.drain()
        await self._tasks.join()
        await self._leases.close()
        await self._tasks.join()
        self._workers.close()
        try:
            await self.backend.close()
        except Exception as error:
            failures.append(error)
        if failures:
            raise ExceptionGroup(f"{self.backend.name} dispose failed", failures)

    def locate(self, meta: Mapping[str, Any]) -> SessionLocation | None:
        """Return where a session is kept, or will be; touches no storage."""
        return self.backend.locate(meta, self.live.position_of(meta["id"]))

    async def create(self, meta: Mapping[str, Any]) -> None:
        """See `SessionPersistence.create`."""
        header = checked_header(meta)
        await self._chains.run(header["id"], partial(self._reserve, header["id"], header))

    async def append(self, id: str, events: Sequence[Mapping[str, Any]]) -> None:
        """See `SessionPersistence.append`."""
        batch = [snapshot_session_event(event) for event in events]
        if batch:
            await self._chains.run(id, partial(self._append_in_turn, id, batch))

    async def prepare(self, id: str) -> SessionPreparation:
        """See `SessionPersistence.prepare`."""
        await self.live.settled(id)
        return await self._chains.run(
            id, partial(self._hold, id), unclaimed=SessionPreparation.release
        )

    async def load(self, id: str) -> SessionInspection:
        """See `SessionPersistence.load`."""
        if (session := self._sessions.get(id)) is not None:
            await self.live.flush(session)
            return _whole(session)
        with await self.prepare(id) as preparation:
            held = self._held[id]
            return SessionInspection(held.session.header, held.stored.events, preparation.damage)

    async def inspect(self, id: str) -> SessionInspection:
        """See `SessionPersistence.inspect`."""
        await self.live.settled(id)
        if (session := self._sessions.get(id)) is not None:
            return SessionInspection(session.header, session.events)
        stored, closers = await self._chains.run(id, partial(self._read, id))
        if (session := self._sessions.get(id)) is not None:
            return SessionInspection(session.header, session.events)
        return SessionInspection(stored.header, [*stored.events, *closers], _damage(stored))

    async def read_from(self, id: str, from_seq: int) -> tuple[SessionHeader, list[SessionEvent]]:
        """See `SessionPersistence.read_from`."""
        if type(from_seq) is not int or from_seq < 0:
            raise TypeError(f"from_seq must be a non-negative integer, not {from_seq!r}")
        return await self._chains.run(id, partial(self._read_end, id, from_seq))

    async def delete(self, id: str) -> None:
        """See `SessionPersistence.delete`."""
        await self.live.settled(id)
        await self._chains.run(id, partial(self._delete, id))

    async def _reserve(self, id: str, header: SessionHeader) -> None:
        self._refuse_taken(id)
        if (reserved := self._detached.get(id)) is not None and reserved.position is None:
            raise SessionConflict(id, "is reserved already")
        if await self.backend.revision(id) is not None:
            raise SessionConflict(id, "is stored already")
        self._detached[id] = StoredPrefix(header)

    async def _append_in_turn(self, id: str, batch: list[SessionEvent]) -> None:
        self._refuse_taken(id)
        prefix = self._detached.get(id)
        if prefix is None:
            stored, closers = await self._read(id)
            prefix = (await self._commit(id, stored, closers, None))[1]
        for offset, event in enumerate(batch):
            if event["seq"] != prefix.count + offset:
                problem = f"expects event {prefix.count + offset}, not {event['seq']}"
                raise SessionConflict(id, problem)
        if prefix.position is None:
            lease, position = await self.backend.create(prefix.header, batch)
            await self.backend.let_go(lease)
        else:
            position = await self.backend.append(id, prefix.position, batch, None)
        self._ready.pop(id, None)
        self._detached[id] = StoredPrefix(prefix.header, position, prefix.count + len(batch))

    async def _delete(self, id: str) -> None:
        self._refuse_taken(id)
        self._ready.pop(id, None)
        reserved = self._detached.pop(id, None)
        if not await self.backend.delete(id) and (reserved is None or reserved.position):
            raise SessionNotFound(id)

    async def _hold(self, id: str) -> SessionPreparation:
        self._refuse_taken(id)
        lease = await self.backend.hold(id)
        if lease is None:
            raise SessionNotFound(id)
        self._leases.keep(lease)  # reading a long log may take longer than a lease lasts
        try:
            held, damage = await self._repaired(id, lease)
            self._refuse_taken(id)
        except BaseException:
            await self._leases.give_up(lease)
            raise
        self._held[id] = held
        self._detached.pop(id, None)
        if damage is not None:
            _log.warning("session %r lost its end: %s", id, damage.reason)
        return SessionPreparation(held.session, partial(self._release, id, held), damage)

    async def _repaired(self, id: str, lease: Lease) -> tuple[_Held, SessionDamage | None]:
        for _ in range(_REPAIR_ATTEMPTS):
            stored, closers = await self._read(id)
            # First build the session, then write: nothing is repaired that cannot be used.
            session = await self._workers.run(self._restore, stored, closers)
            damage = _damage(stored)
            try:
                stored, prefix = await self._commit(id, stored, closers, lease)
            except SessionLeaseLost:
                raise
            except SessionConflict:
                self._ready.pop(id, None)
                continue
            return _Held(session, prefix, stored), damage
        raise SessionConflict(id, "is being written by another process")

    def _restore(self, stored: StoredLog[Any], closers: list[SessionEvent]) -> Session:
        try:
            return self._sessions.restore(stored.header, [*stored.events, *closers])
        except InvalidSeed as error:
            raise SessionPersistenceCorruptionError(error.message, path=stored.path) from error

    def _release(self, id: str, held: _Held) -> None:
        """Free a held session that did not become live; what was read of it stays ready."""
        if self._held.get(id) is held:
            del self._held[id]
            self._remember(id, held.stored)
            if (lease := held.prefix.lease) is not None and not self._closed:
                freeing = self._chains.run(id, partial(self._leases.give_up, lease))
                self._tasks.start(freeing, f"session-log:{id}:release")

    async def _read(self, id: str) -> tuple[StoredLog[Any], list[SessionEvent]]:
        ready = self._ready.get(id)
        if ready is not None:
            if await self.backend.revision(id) == ready.position.revision:
                return ready, interrupted_turn_closers(ready.events)
            self._ready.pop(id, None)
        stored = await self.backend.load(id)
        if stored is None:
            raise SessionNotFound(id)
        self._remember(id, stored)
        return stored, await self._workers.run(interrupted_turn_closers, stored.events)

    async def _read_end(self, id: str, from_seq: int) -> tuple[SessionHeader, list[SessionEvent]]:
        if id not in self._ready:
            end = await self.backend.load_from(id, from_seq)
            if end is not None:
                return end
        stored, _ = await self._read(id)
        physical = len(stored.events) - len(stored.tail.recovered if stored.tail else ())
        return stored.header, stored.events[from_seq:physical]

    async def _commit(
        self, id: str, stored: StoredLog[Any], closers: list[SessionEvent], lease: Lease | None
    ) -> tuple[StoredLog[Any], StoredPrefix]:
        """Make a log whole in storage; return it as it is there now."""
        if stored.tail is not None or closers:
            self._ready.pop(id, None)
            position = await self.backend.repair(stored, closers, lease)
            stored = stored.repaired(position, closers)
        return stored, StoredPrefix(stored.header, stored.position, len(stored.events), lease)

    def _remember(self, id: str, stored: StoredLog[Any]) -> None:
        if self._closed:
            return
        self._ready[id] = stored
        self._ready.move_to_end(id)
        while len(self._ready) > self._cache_size:
            self._ready.popitem(last=False)

    def _refuse_taken(self, id: str) -> None:
        if self._closed:
            raise PersistenceError("session persistence is shutting down")
        if self._sessions.get(id) is not None:
            raise SessionConflict(id, "is live")
        if id in self._held:
            raise SessionConflict(id, "is being resumed; release that first")


def _damage(stored: StoredLog[Any]) -> SessionDamage | None:
    tail = stored.tail
    return None if tail is None else SessionDamage(tail.reason, tail.lost_bytes)


def _whole(session: Session) -> SessionInspection:
    events = session.events
    if not events:
        raise SessionNotFound(session.id)
    if interrupted_turn_closers(events):
        raise SessionConflict(session.id, "has an open turn; wait for its end")
    return SessionInspection(session.header, events)
