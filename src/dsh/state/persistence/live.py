"""The durable side of live sessions: how much of each is stored, and when the rest will be."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from dsh.base.errors import error_chain
from dsh.base.json import equal
from dsh.base.values import value
from dsh.state.persistence.errors import SessionConflict
from dsh.state.persistence.write_behind import WriteBehind

if TYPE_CHECKING:
    from pathlib import Path

    from dsh.state.persistence.artifact.reader import Position
    from dsh.state.persistence.artifact.store import ArtifactStore
    from dsh.state.persistence.background import Chains, Tasks, Workers
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
    """

    header: SessionHeader
    position: Position | None = None
    count: int = 0


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
        workers: The threads in which the backend runs.
        chains: Orders the work on each session.
        tasks: Owns the writes.
        window_s: How long events are collected.
        left: Told of the id of a session that left and is written.
    """

    def __init__(
        self,
        backend: ArtifactStore,
        workers: Workers,
        chains: Chains,
        tasks: Tasks,
        window_s: float,
        left: Callable[[str], object],
    ) -> None:
        self._backend = backend
        self._workers = workers
        self._chains = chains
        self._tasks = tasks
        self._window_s = window_s
        self._left = left
        self._live: dict[Session, LiveSession] = {}
        self._leaving: dict[str, list[LiveSession]] = {}

    def attach(self, session: Session, prefix: StoredPrefix) -> None:
        """Begin to keep a session of which ``prefix`` is stored."""
        live = LiveSession(session, prefix, self._write, self._tasks, self._window_s)
        self._live[session] = live
        if live.pending():
            live.writes.offer()

    def appended(self, event: SessionEventAppended) -> None:
        """Take note that a session has grown; a listener of ``session/event``."""
        if (live := self._live.get(event.session)) is not None:
            live.writes.offer()

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
        self._leaving.setdefault(session.id, []).append(live)
        self._tasks.start(self._retire(live), f"session-log:{session.id}:retire")

    async def settled(self, id: str) -> None:
        """Wait until the sessions of this id that left are written.

        Raises:
            Exception: what the write raised.
        """
        for live in list(self._leaving.get(id, ())):
            await live.writes.flush()
            self._forget(live)

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

    def path_of(self, id: str) -> Path | None:
        """Return the file of a live session that is stored."""
        for session, live in self._live.items():
            if session.id == id and live.prefix.position is not None:
                return live.prefix.position.path
        return None

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
        self._forget(live)

    def _forget(self, live: LiveSession) -> None:
        """A session that left is written: nothing is left to do for it."""
        live.writes.stop()
        group = self._leaving.get(live.session.id, [])
        if live not in group:
            return
        group.remove(live)
        if not group:
            self._leaving.pop(live.session.id, None)
            self._left(live.session.id)

    async def _write(self, live: LiveSession) -> None:
        await self._chains.run(live.session.id, partial(self._write_in_turn, live))

    async def _write_in_turn(self, live: LiveSession) -> None:
        prefix, batch = live.prefix, live.rest()
        if not batch:
            return
        position = prefix.position
        if position is None:
            stored = await self._workers.run(first_write, self._backend, prefix.header, batch)
        else:
            stored = await self._workers.run(self._backend.append, live.session.id, position, batch)
        live.prefix = StoredPrefix(prefix.header, stored, prefix.count + len(batch))


def first_write(
    backend: ArtifactStore, header: SessionHeader, events: Sequence[SessionEvent]
) -> Position:
    """Store a session of which nothing is known to be stored; blocks.

    What is stored already must be the beginning of the same session, as when its persistence was
    loaded again meanwhile; then only the rest is written.

    Raises:
        SessionConflict: something else is stored under its id.
    """
    stored = backend.load(header["id"])
    if stored is None:
        position = backend.create(header, events)
        backend.hold(header["id"])
        return position
    if stored.header.get("cwd") != header.get("cwd"):
        raise SessionConflict(header["id"], f"is stored already, for {stored.header.get('cwd')!r}")
    count = len(stored.events)
    if count > len(events) or not all(map(equal, stored.events, events)):
        raise SessionConflict(header["id"], "is stored already, with another history")
    backend.hold(header["id"])
    position = stored.position if stored.tail is None else backend.repair(stored, ())
    rest = events[count:]
    return backend.append(header["id"], position, rest) if rest else position
