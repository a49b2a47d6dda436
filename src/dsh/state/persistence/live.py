"""The durable side of one live session: how much of it is stored, and what is not yet."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsh.base.errors import error_chain
from dsh.base.json import equal
from dsh.state.persistence.errors import SessionConflict
from dsh.state.persistence.write_behind import WriteBehind

if TYPE_CHECKING:
    from dsh.state.persistence.artifact.reader import Position
    from dsh.state.persistence.artifact.store import ArtifactStore
    from dsh.state.persistence.background import Tasks
    from dsh.state.session.events import SessionEvent, SessionHeader
    from dsh.state.session.session import Session

_log = logging.getLogger("dsh.session_persistence")


@dataclass(frozen=True, slots=True)
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
        return backend.create(header, events)
    if stored.header.get("cwd") != header.get("cwd"):
        raise SessionConflict(header["id"], f"is stored already, for {stored.header.get('cwd')!r}")
    count = len(stored.events)
    if count > len(events) or not all(map(equal, stored.events, events)):
        raise SessionConflict(header["id"], "is stored already, with another history")
    position = stored.position if stored.tail is None else backend.repair(stored, ())
    rest = events[count:]
    return backend.append(header["id"], position, rest) if rest else position
