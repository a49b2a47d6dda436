"""What a medium must be able to do, so that sessions can be kept on it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from dsh.base.values import changed, value
from dsh.state.persistence.service import SessionLocation

if TYPE_CHECKING:
    from pathlib import Path

    from dsh.state.persistence.lease import Lease
    from dsh.state.session.events import SessionEvent, SessionHeader


class Position(Protocol):
    """Which stored session, and how much of it, somebody knows. Only its medium looks inside."""

    @property
    def revision(self) -> str:
        """A text that changes whenever the stored session does; compared for equality."""
        ...


P = TypeVar("P", bound=Position)


@value
class Tail:
    """The end of a stored session that a crash left behind.

    Attributes:
        keep: How much stays, in the unit of the medium.
        recovered: Events that could be had from beyond that, to be written again.
        reason: What is wrong with the tail.
        lost_bytes: How many bytes are no whole record.
    """

    keep: int
    recovered: tuple[SessionEvent, ...]
    reason: str
    lost_bytes: int


@value
class StoredLog(Generic[P]):
    """A session as it is in storage, with what can still be had from a damaged end.

    Attributes:
        path: The file or database.
        header: Its header.
        events: All events that can be read, ``tail.recovered`` included.
        position: What was stored when it was read.
        tail: What a repair has to cut off; ``None`` when all is whole.
        repeated: How many stored events were written twice.
    """

    path: Path | None
    header: SessionHeader
    events: list[SessionEvent]
    position: P
    tail: Tail | None
    repeated: int = 0

    def repaired(self, position: P, closers: Iterable[SessionEvent]) -> StoredLog[P]:
        """Return the log as it is after a repair that appended ``closers``."""
        events = [*self.events, *closers]
        return changed(self, events=events, position=position, tail=None)


@value
class StoredEntry:
    """One stored session, or the place where one should be.

    Attributes:
        header: Its header, when that much can be read.
        location: Where it is kept.
        damage: What is wrong with it; ``None`` when nothing is known to be.
        revision: As in `Position`; empty when it could not be had.
        written_ns: When it was written last, in nanoseconds of the wall clock.
    """

    header: SessionHeader | None
    location: SessionLocation
    damage: str | None = None
    revision: str = ""
    written_ns: int = 0


class Backend(Protocol[P]):
    """A medium. Its methods leave the loop free; calls for one id do not overlap.

    Attributes:
        name: Names it in messages and locations.
        lease_s: How long a lease lasts that is not renewed.
        shares_commits: Whether writes of several sessions at once cost no more than one.
    """

    name: str
    lease_s: float
    shares_commits: bool

    def locate(self, header: Mapping[str, Any], position: P | None) -> SessionLocation | None:
        """Return where a session is, or where a new one goes; touches no storage.

        Args:
            header: Its header.
            position: What is known to be stored of it.
        """
        ...

    async def load(self, id: str) -> StoredLog[P] | None:
        """Read a whole session; change nothing. ``None`` when there is none.

        Raises:
            SessionPersistenceCorruptionError: what was committed is damaged.
            SessionFormatUnsupportedError: this build cannot interpret it.
        """
        ...

    async def load_from(
        self, id: str, from_seq: int
    ) -> tuple[SessionHeader, list[SessionEvent]] | None:
        """Read the end of a session without the rest, where the medium can.

        Events that a damaged end holds are left out.

        Returns:
            ``None`` when it is absent, or can only be read whole.

        Raises:
            SessionPersistenceCorruptionError: what was read is damaged.
            SessionFormatUnsupportedError: this build cannot interpret it.
        """
        ...

    async def revision(self, id: str) -> str | None:
        """Return the revision of what is stored; ``None`` when nothing is."""
        ...

    async def hold(self, id: str) -> Lease | None:
        """Take the lease of a stored session; ``None`` when nothing is stored.

        Raises:
            SessionHeld: another writer has it.
        """
        ...

    async def renew(self, leases: Sequence[Lease]) -> list[Lease]:
        """Prolong leases; return those that have ended."""
        ...

    async def let_go(self, lease: Lease) -> None:
        """Give a lease up; one that has ended already is left so."""
        ...

    async def create(
        self, header: SessionHeader, events: Sequence[SessionEvent]
    ) -> tuple[Lease, P]:
        """Store the header and first batch of a new session, both or nothing, and hold it.

        Raises:
            SessionConflict: the id is stored already.
            SessionHeld: another writer has it.
        """
        ...

    async def append(
        self, id: str, position: P, events: Sequence[SessionEvent], lease: Lease | None
    ) -> P:
        """Store the next batch; durable on return, and otherwise nothing is changed.

        The lease and the position are checked in the same step as the write.

        Args:
            id: The session.
            position: What is stored as far as the caller knows.
            events: Those that follow on.
            lease: The right to write; ``None`` when nobody else must have it.

        Raises:
            SessionConflict: more, less or something else is stored.
            SessionLeaseLost: the lease has ended.
            SessionHeld: there is no lease, and another writer has one.
        """
        ...

    async def repair(
        self, stored: StoredLog[P], closers: Sequence[SessionEvent], lease: Lease | None
    ) -> P:
        """Cut off a damaged end, then append what was recovered from it and the closers.

        Raises:
            SessionConflict: the stored session changed since it was read.
            SessionLeaseLost: the lease has ended.
            SessionHeld: there is no lease, and another writer has one.
        """
        ...

    async def survey(self, cwd: str | None = None) -> list[StoredEntry]:
        """Return everything stored, or what is stored for one working directory."""
        ...

    async def delete(self, id: str) -> bool:
        """Remove all that is kept of a session; say whether there was anything.

        Raises:
            SessionHeld: a writer has it.
        """
        ...

    async def close(self) -> None:
        """Let go of the medium; no call must be under way, and no lease be held."""
        ...
