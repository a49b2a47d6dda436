"""All sessions there are: the live ones, and the stored ones that are not live."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dsh.base.errors import DshError, message_of
from dsh.state.persistence.errors import PersistenceError, SessionNotFound, UnreadableLog
from dsh.state.persistence.service import SessionPersistence
from dsh.state.query.service import SessionQueryError, SessionRecord
from dsh.state.session.service import SessionStore

if TYPE_CHECKING:
    from dsh.kernel import Context
    from dsh.state.persistence.service import SessionSnapshot
    from dsh.state.session.events import SessionEvent, SessionHeader

_IDENTITY = ("version", "id", "createdAt", "cwd", "parentSession", "seedLength")


class Corpus:
    """Reads sessions from memory where they are live, and from storage otherwise.

    Args:
        ctx: Where the services are read, anew for each question: persistence may come and go.
    """

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    @property
    def sessions(self) -> SessionStore:
        """The live sessions."""
        return self._ctx.require(SessionStore)

    @property
    def persistence(self) -> SessionPersistence | None:
        """The stored sessions, when anything stores them now."""
        return self._ctx.get(SessionPersistence)

    async def records(self) -> list[SessionRecord]:
        """Return all sessions, newest first.

        Raises:
            SessionQueryError: ``SOURCE_CONFLICT`` or ``PERSISTENCE_FAILED``.
        """
        persistence = self.persistence
        stored: list[SessionHeader] = []
        if persistence is not None:
            try:
                stored = await persistence.all()
            except Exception as error:
                raise storage_failure(error) from error
        return self.merged(stored)

    def merged(self, stored: Iterable[SessionHeader]) -> list[SessionRecord]:
        """Return the sessions of a listing and the live ones, newest first.

        Raises:
            SessionQueryError: ``SOURCE_CONFLICT``.
        """
        found = {header["id"]: SessionRecord(header, False, True) for header in stored}
        for session in self.sessions.all():
            known = found.get(session.id)
            if known is not None:
                _check_same(session.header, known.header)
            found[session.id] = SessionRecord(session.header, True, known is not None)
        return sorted(found.values(), key=lambda each: (-each.header["createdAt"], each.id))

    async def snapshots(self) -> list[SessionSnapshot]:
        """Return what is stored, with revisions; nothing without persistence.

        Raises:
            SessionQueryError: ``PERSISTENCE_FAILED``.
        """
        if (persistence := self.persistence) is None:
            return []
        try:
            return await persistence.list_snapshots()
        except Exception as error:
            raise storage_failure(error) from error

    async def log(self, id: str) -> tuple[SessionHeader, Sequence[SessionEvent]]:
        """Return a session as it is in memory, or else as `SessionPersistence.inspect` has it.

        Raises:
            SessionQueryError: ``SESSION_NOT_FOUND``, ``CORRUPT_SESSION`` or
                ``PERSISTENCE_FAILED``.
        """
        if (live := self.sessions.get(id)) is not None:
            return live.header, live.events
        if (persistence := self.persistence) is None:
            raise not_found(id)
        try:
            found = await persistence.inspect(id)
        except Exception as error:
            if (live := self.sessions.get(id)) is not None:
                return live.header, live.events
            raise log_failure(id, error) from error
        if (live := self.sessions.get(id)) is not None:
            return live.header, live.events
        return found.meta, found.events


def not_found(id: str) -> SessionQueryError:
    """Return the error of an id that no session has."""
    return SessionQueryError(
        "SESSION_QUERY_SESSION_NOT_FOUND", f"session {id!r} is neither live nor stored"
    )


def log_failure(id: str, error: Exception) -> SessionQueryError:
    """Return what a failed look at one log means."""
    if isinstance(error, SessionNotFound):
        return not_found(id)
    if isinstance(error, UnreadableLog):
        return SessionQueryError(
            "SESSION_QUERY_CORRUPT_SESSION",
            f"the stored log of session {id!r} cannot be read: {error.message}",
        )
    return storage_failure(error)


def storage_failure(error: Exception) -> SessionQueryError:
    """Return what a failure of storage as a whole means."""
    known = isinstance(error, (PersistenceError, OSError, DshError))
    told = message_of(error) if known else f"{type(error).__name__}: {message_of(error)}"
    return SessionQueryError(
        "SESSION_QUERY_PERSISTENCE_FAILED", f"the stored sessions cannot be read: {told}"
    )


def _check_same(live: Mapping[str, Any], stored: Mapping[str, Any]) -> None:
    differing = [field for field in _IDENTITY if live.get(field) != stored.get(field)]
    if live.get("delegationDepth", 0) != stored.get("delegationDepth", 0):
        differing.append("delegationDepth")
    if differing:
        raise SessionQueryError(
            "SESSION_QUERY_SOURCE_CONFLICT",
            f"the live session {live['id']!r} and the stored one of this id are not the same: "
            f"they differ in {', '.join(differing)}",
        )
