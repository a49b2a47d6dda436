"""The definition of the durable copies of sessions, ``ctx.session_persistence``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Self

from dsh.base.values import value
from dsh.kernel import Service

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from dsh.state.session.events import SessionEvent, SessionHeader
    from dsh.state.session.session import Session


@value
class SessionLocation:
    """Where a session is kept.

    Attributes:
        kind: Names the medium.
        path: The file, or the database that holds it; ``None`` when that is no file.
    """

    kind: str
    path: Path | None


@value
class SessionDamage:
    """What a crash cost a stored session.

    Attributes:
        reason: What was wrong with the end of it.
        lost_bytes: How many bytes of the end were no whole record.
    """

    reason: str
    lost_bytes: int


@value
class SessionInspection:
    """A session as a reader sees it.

    Attributes:
        meta: Its header.
        events: All its events; those that close an interrupted turn are included.
        damage: What was lost, when something was.
    """

    meta: SessionHeader
    events: Sequence[SessionEvent]
    damage: SessionDamage | None = None


@value
class SessionSnapshot:
    """A stored session without its events.

    Attributes:
        header: Its header.
        revision: Changes whenever the stored session does; compared only for equality.
    """

    header: SessionHeader
    revision: str


@value
class StoredSession:
    """One entry of the whole store, the damaged ones included.

    Attributes:
        header: Its header, when that much can be read.
        path: The file or database it is kept in; ``None`` when that is no file.
        damage: Why it cannot be used; ``None`` when nothing is known against it.
    """

    header: SessionHeader | None
    path: Path | None
    damage: str | None


class SessionPreparation:
    """A stored session, repaired and held for one resumption.

    Enter and announce `session` in the store to go on with it, or leave the ``with`` block
    without: then it is free for others again.

    Attributes:
        session: The detached session.
        damage: What was lost of it, when something was.
    """

    __slots__ = ("_release", "damage", "session")

    def __init__(
        self,
        session: Session,
        release: Callable[[], object],
        damage: SessionDamage | None = None,
    ) -> None:
        self.session = session
        self.damage = damage
        self._release: Callable[[], object] | None = release

    def release(self) -> None:
        """Give the session up unless it is live; only the first call acts."""
        release, self._release = self._release, None
        if release is not None:
            release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


class SessionPersistence(Service, ABC):
    """Keeps every live session in storage, and gives stored ones back.

    A provider attaches itself to sessions as they are created, writes behind them, and makes
    them durable at ``session/flush``. A session to which nothing was appended is not stored.
    """

    name: ClassVar[str] = "session_persistence"

    @abstractmethod
    def locate(self, meta: Mapping[str, Any]) -> SessionLocation | None:
        """Return where a session is kept, or will be; touches no storage."""

    @abstractmethod
    async def create(self, meta: Mapping[str, Any]) -> None:
        """Reserve an id for `append`; nothing is stored yet.

        Raises:
            SessionConflict: the id is live, reserved or stored.
            InvalidHeader: the header is wrong.
        """

    @abstractmethod
    async def append(self, id: str, events: Sequence[Mapping[str, Any]]) -> None:
        """Store the next events of a session that is not live; durable on return.

        Raises:
            SessionNotFound: it is neither stored nor reserved by `create`.
            SessionConflict: it is live or being resumed, or the events do not follow on.
            RefusedEvent: an event is malformed.
        """

    @abstractmethod
    async def prepare(self, id: str) -> SessionPreparation:
        """Repair a stored session, hold it, and return it ready to go on.

        A damaged end is cut off and an interrupted turn closed, in storage too; what was
        committed is never rewritten.

        Raises:
            SessionNotFound: nothing is stored under this id.
            SessionHeld: another process has it; `inspect` and `read_from` still read it.
            SessionConflict: it is live, or held in this process.
            SessionPersistenceCorruptionError: what was committed is damaged.
            SessionFormatUnsupportedError: this build cannot interpret it.
        """

    @abstractmethod
    async def load(self, id: str) -> SessionInspection:
        """Return a session as it is in storage, after repairing it or flushing the live one.

        Raises:
            SessionNotFound: there is no such session.
            SessionHeld: another process has it.
            SessionConflict: a turn of the live session is open, or it is held in this process.
            SessionPersistenceCorruptionError: what was committed is damaged.
            SessionFormatUnsupportedError: this build cannot interpret it.
        """

    @abstractmethod
    async def inspect(self, id: str) -> SessionInspection:
        """Return a session, live or stored, and change nothing.

        Raises:
            SessionNotFound: there is no such session.
            SessionPersistenceCorruptionError: what was committed is damaged.
            SessionFormatUnsupportedError: this build cannot interpret it.
        """

    @abstractmethod
    async def read_from(self, id: str, from_seq: int) -> tuple[SessionHeader, list[SessionEvent]]:
        """Return the stored events from ``from_seq`` on, without any closers.

        Raises:
            TypeError: ``from_seq`` is not a non-negative integer.
            SessionNotFound: there is no such session.
            SessionPersistenceCorruptionError: what was committed is damaged.
            SessionFormatUnsupportedError: this build cannot interpret it.
        """

    @abstractmethod
    async def delete(self, id: str) -> None:
        """Remove all that is stored of a session, whatever state it is in.

        Sessions that were forked from it, and those of its subagents, stay.

        Raises:
            SessionNotFound: nothing is stored under this id.
            SessionConflict: it is live or being resumed.
            SessionHeld: another process has it.
        """

    @abstractmethod
    async def all(self) -> list[SessionHeader]:
        """Return the headers of all stored sessions that can be read, newest first."""

    @abstractmethod
    async def list_snapshots(self) -> list[SessionSnapshot]:
        """Return the header and revision of each stored session that can be read."""

    @abstractmethod
    async def survey(self) -> list[StoredSession]:
        """Return everything stored, the damaged sessions with what is wrong with them."""

    @abstractmethod
    async def newest(self, cwd: str) -> SessionHeader | None:
        """Return the session of a working directory that was written last.

        Sessions of subagents do not count.
        """
