"""The definition of the session store, ``ctx.sessions``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from dsh.kernel import Service

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from dsh.kernel import Context, Effect
    from dsh.state.session.events import EventType, SessionMeta
    from dsh.state.session.session import Session


class SessionStore(Service, ABC):
    """The live sessions of a process, by id.

    A session becomes live in three steps: `prepare` builds it, `enter` puts it in, `announce`
    tells the others. `create` does all three.
    """

    name: ClassVar[str] = "sessions"

    @abstractmethod
    def create(
        self,
        id: str | None = None,
        *,
        seed: Iterable[Mapping[str, Any]] | None = None,
        meta: SessionMeta | None = None,
    ) -> Session:
        """Make a live session that leaves with the calling plugin.

        Raises:
            DuplicateSession: the id is taken.
            InvalidHeader: ``meta`` is wrong.
            InvalidSeed: the seed is not a log.
            Exception: what a listener of ``session/created`` raised; nothing is left behind.
        """

    @abstractmethod
    def prepare(
        self,
        id: str | None = None,
        *,
        seed: Iterable[Mapping[str, Any]] | None = None,
        meta: SessionMeta | None = None,
    ) -> Session:
        """Build a session that is not live yet.

        Args:
            id: Its id; when absent a ``session-<n>`` that no live session has. A stored one may
                have it, so whoever keeps sessions names them.
            seed: Events to start from.
            meta: Facts for its header.

        Raises:
            DuplicateSession: a live session has this id.
            InvalidHeader: ``meta`` is wrong.
            InvalidSeed: the seed is not a log.
        """

    @abstractmethod
    def restore(self, header: Mapping[str, Any], events: Iterable[Mapping[str, Any]]) -> Session:
        """Build a session from a stored log whose frozen events nobody else holds.

        Raises:
            InvalidHeader: the header is wrong.
            InvalidSeed: the events are not a log.
        """

    @abstractmethod
    def fork(
        self,
        source: Session | str,
        boundary: int | None = None,
        child_session_id: str | None = None,
    ) -> Session:
        """Make a live session that begins with the history of a live one.

        It leaves with the calling plugin, has the workspace of its parent, and ends its inherited
        history with ``session/end-seed``: what that left open belongs to the parent.

        Args:
            source: A live session, or its id.
            boundary: The ``seq`` of the last event taken; the last one when absent.
            child_session_id: Its id; as in `prepare` when absent.

        Raises:
            SessionForkError: the id is taken, the source is not live, or the boundary is no
                event or inside a turn; ``code`` says which.
            Exception: what a listener of ``session/created`` raised; nothing is left behind.
        """

    @abstractmethod
    def enter(self, session: Session, owner: Context | None = None) -> Callable[[], None]:
        """Make a session live without telling anybody.

        Args:
            session: A detached session.
            owner: Its scope decides who hears of the session; the caller when absent.

        Returns:
            Takes the session out again and, when it was announced, tells the listeners of
            ``session/disposed``. Calling it twice does nothing; during an append or an
            announcement of the session it takes effect right after.

        Raises:
            DuplicateSession: a live session has this id.
            SessionNotLive: the session is attached to a store already.
        """

    @abstractmethod
    def announce(self, session: Session) -> None:
        """Tell the listeners of ``session/created``, once a session.

        Raises:
            SessionNotLive: it is not in this store, or was announced before.
            Exception: what a listener raised; the caller takes the session out again.
        """

    @abstractmethod
    async def flush(self, session: Session) -> bool:
        """Have all copies of the session made durable.

        Returns:
            Whether anybody keeps a copy.

        Raises:
            SessionNotLive: it is not in this store.
            Exception: the first failure of a copy, after all have finished.
        """

    @abstractmethod
    def get(self, id: str) -> Session | None:
        """Return the live session with this id."""

    @abstractmethod
    def all(self) -> list[Session]:
        """Return the live sessions in the order of their creation."""

    @abstractmethod
    def declare(self, event_type: EventType[Any]) -> Effect:
        """Let sessions accept an event type until the calling plugin unloads.

        Raises:
            DuplicateEventType: another object declares this name.
        """

    @abstractmethod
    def declared(self) -> Mapping[str, EventType[Any]]:
        """Return the event types that sessions accept now, by name."""
