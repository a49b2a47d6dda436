"""The durable side of live sessions: how much of each is stored, and when the rest will be."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from dsh.base.errors import error_chain
from dsh.base.json import equal
from dsh.base.values import value
from dsh.state.persistence.errors import SessionConflict
from dsh.state.persistence.write_behind import WriteBehind

if TYPE_CHECKING:
    from dsh.state.persistence.backend import Backend, Position, StoredLog
    from dsh.state.persistence.background import Chains, Tasks, Workers
    from dsh.state.persistence.keeper import LeaseKeeper
    from dsh.state.persistence.lease import Lease
    from dsh.state.session.events import SessionEvent, SessionEventAppended, SessionHeader
    from dsh.state.session.session import Session

_log = logging.getLogger("dsh.session_persistence")


@value
class StoredPrefix:
    """How much of a session is stored.

    Attributes:
        header: The header.
        position: Where it is; ``None`` while nothing of it is stored, as far as is known.
        count: How many of its events are stored.
        lease: The right to write more; ``None`` when it is not held.
    """

    header: SessionHeader
    position: Position | None = None
    count: int = 0
    lease: Lease | None = None


class LiveSession:
    """A live session and its writes.

    The log itself is the buffer: what is not stored yet is whatever follows the prefix, so a
    failed write loses nothing and order cannot change.

    Args:
        session: The session.
        prefix: What is stored of it.
        write: Stores all that follows the prefix, and moves the prefix.
        tasks: Owns the writes.
        window_s: How long events are collected.
    """

    def __init__(
        self,
        session: Session,
        prefix: StoredPrefix,
        write: Callable[[LiveSession], Awaitable[object]],
        tasks: Tasks,
        window_s: float,
    ) -> None:
        self.session = session
        self.prefix = prefix
        self.writes = WriteBehind(
            f"session-log:{session.id}",
            pending=self.pending,
            write=lambda: write(self),
            window_s=window_s,
            tasks=tasks,
            failed=self._failed,
        )

    def pending(self) -> bool:
        """Whether the session has events that are not stored."""
        return self.session.seq > self.prefix.count

    def rest(self) -> tuple[SessionEvent, ...]:
        """Return the events that are not stored."""
        return self.session.events[self.prefix.count :]

    def _failed(self, error: Exception) -> None:
        _log.warning(
            "session %r could not be written and is kept in memory: %s",
            self.session.id,
            error_chain(error),
        )


class LiveSessions:
    """The live sessions that one backend keeps.

    Args:
        backend: Where they are kept.
        workers: Threads for work that takes long.
        chains: Orders the work on each session.
        tasks: Owns the writes.
        leases: Keeps what is held.
        window_s: How long events are collected.
    """

    def __init__(
        self,
        backend: Backend[Any],
        workers: Workers,
        chains: Chains,
        tasks: Tasks,
        leases: LeaseKeeper,
        window_s: float,
    ) -> None:
        self._backend = backend
        self._workers = workers
        self._chains = chains
        self._tasks = tasks
        self._leases = leases
        self._window_s = window_s
        self._live: dict[Session, LiveSession] = {}
        self._waiting: set[LiveSession] = set()
        self._leaving: dict[str, list[LiveSession]] = {}

    def attach(self, session: Session, prefix: StoredPrefix) -> None:
        """Begin to keep a session of which ``prefix`` is stored."""
        live = LiveSession(session, prefix, self._write, self._tasks, self._window_s)
        self._live[session] = live
        if live.pending():
            self._offer(live)

    def appended(self, event: SessionEventAppended) -> None:
        """Take note that a session has grown; a listener of ``session/event``."""
        if (live := self._live.get(event.session)) is not None:
            self._offer(live)

    async def flush(self, session: Session) -> bool:
        """Make a session durable; say whether it is kept here.

        Raises:
            Exception: what the write raised; nothing is lost, and the next flush tries again.
        """
        live = self._live.get(session)
        if live is None:
            return False
        await live.writes.flush()
        return True

    def detach(self, session: Session) -> None:
        """A session left: write the rest of it in the background."""
        live = self._live.pop(session, None)
        if live is None:
            return
        self._waiting.discard(live)
        self._leaving.setdefault(session.id, []).append(live)
        self._tasks.start(self._retire(live), f"session-log:{session.id}:retire")

    async def settled(self, id: str) -> None:
        """Wait until the sessions of this id that left are written.

        Raises:
            Exception: what the write raised.
        """
        for live in list(self._leaving.get(id, ())):
            await live.writes.flush()
            await self._forget(live)

    async def drain(self) -> list[Exception]:
        """Write all that is unwritten and keep no session any more; return what failed."""
        failures: list[Exception] = []
        leaving = [live for group in self._leaving.values() for live in group]
        for live in [*self._live.values(), *leaving]:
            try:
                await live.writes.flush()
            except Exception as error:
                failures.append(error)
            live.writes.stop()
        self._live.clear()
        self._leaving.clear()
        return failures

    def position_of(self, id: str) -> Position | None:
        """Return what is stored of a live session, as far as is known."""
        for session, live in self._live.items():
            if session.id == id:
                return live.prefix.position
        return None

    def _offer(self, live: LiveSession) -> None:
        if live.writes.offer():
            self._waiting.add(live)

    async def _retire(self, live: LiveSession) -> None:
        try:
            await live.writes.flush()
        except Exception as error:
            # It stays in the group, so that `drain` tries once more.
            _log.warning(
                "session %r could not be written, which is tried again at exit: %s",
                live.session.id,
                error_chain(error),
            )
            return
        await self._forget(live)

    async def _forget(self, live: LiveSession) -> None:
        """A session that left is written: nothing is left to do but to give it up."""
        live.writes.stop()
        group = self._leaving.get(live.session.id, [])
        if live not in group:
            return
        group.remove(live)
        if not group:
            self._leaving.pop(live.session.id, None)
        if (lease := live.prefix.lease) is not None:
            await self._chains.run(lease.id, partial(self._leases.give_up, lease))

    async def _write(self, live: LiveSession) -> None:
        self._waiting.discard(live)
        if self._backend.shares_commits:
            # What others collected joins this commit, for which the disk is waited once.
            waiting, self._waiting = self._waiting, set()
            for other in waiting:
                other.writes.hasten()
        await self._chains.run(live.session.id, partial(self._write_in_turn, live))

    async def _write_in_turn(self, live: LiveSession) -> None:
        prefix, batch = live.prefix, live.rest()
        lease = prefix.lease
        if not batch:
            return
        if prefix.position is None:
            lease, position = await self._first_write(prefix.header, batch)
        else:
            position = await self._backend.append(live.session.id, prefix.position, batch, lease)
        live.prefix = StoredPrefix(prefix.header, position, prefix.count + len(batch), lease)

    async def _first_write(
        self, header: SessionHeader, events: Sequence[SessionEvent]
    ) -> tuple[Lease, Position]:
        """Store a session of which nothing is known to be stored, and hold it.

        What is stored already must be the beginning of the same session, as when its persistence
        was loaded again meanwhile; then only the rest is written.

        Raises:
            SessionConflict: something else is stored under its id.
        """
        backend, name = self._backend, header["id"]
        lease = await backend.hold(name)
        if lease is None:
            lease, position = await backend.create(header, events)
            self._leases.keep(lease)
            return lease, position
        self._leases.keep(lease)
        try:
            stored = await backend.load(name)
            await self._workers.run(_check_same, stored, header, events)
            assert stored is not None, "a session that is held is stored"
            position = stored.position
            if stored.tail is not None:
                position = await backend.repair(stored, (), lease)
            if rest := events[len(stored.events) :]:
                position = await backend.append(name, position, rest, lease)
        except BaseException:
            await self._leases.give_up(lease)
            raise
        return lease, position


def _check_same(
    stored: StoredLog[Any] | None, header: SessionHeader, events: Sequence[SessionEvent]
) -> None:
    """Refuse to go on with what is not the beginning of a session.

    Raises:
        SessionConflict: it is gone, belongs to another working directory, or has other events.
    """
    if stored is None:
        problem = "was removed from storage; go on in a new session"
    elif stored.header.get("cwd") != header.get("cwd"):
        problem = f"is stored already, for {stored.header.get('cwd')!r}"
    elif len(stored.events) > len(events) or not all(map(equal, stored.events, events)):
        problem = "is stored already, with another history"
    else:
        return
    raise SessionConflict(header["id"], problem)
