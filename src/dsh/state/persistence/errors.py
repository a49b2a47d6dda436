"""What can be wrong with a stored session."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Self

from dsh.state.session.errors import SessionError

if TYPE_CHECKING:
    from pathlib import Path

    from dsh.state.persistence.process import ProcessIdentity


class PersistenceError(SessionError):
    """Anything about stored sessions."""

    code = "SESSION_PERSISTENCE"


class SessionNotFound(PersistenceError, LookupError):
    """No session with this id is live or stored."""

    code = "SESSION_NOT_FOUND"

    def __init__(self, id: str) -> None:
        super().__init__(f'session "{id}" not found')
        self.id = id


class UnreadableLog(PersistenceError, ValueError):
    """A stored session cannot be read; it is left as it is."""

    def __init__(self, problem: str, *, path: Path | None = None) -> None:
        super().__init__(problem if path is None else f"{problem} (file: {str(path)!r})")
        self.problem = problem
        self.path = path

    def at(self, path: Path) -> Self:
        """Return the same error with the file it is about, unless it names one."""
        return self if self.path is not None else type(self)(self.problem, path=path)


class SessionPersistenceCorruptionError(UnreadableLog):
    """Content that was committed is not valid."""

    code = "SESSION_CORRUPT"


class IncompleteArtifact(SessionPersistenceCorruptionError):
    """A file was cut before its header was whole: nothing was ever committed to it."""

    code = "SESSION_INCOMPLETE"

    def __init__(
        self, problem: str = "the file ends before its header does", *, path: Path | None = None
    ) -> None:
        super().__init__(problem, path=path)


class SessionFormatUnsupportedError(UnreadableLog):
    """The content is intact, but this build cannot interpret it."""

    code = "SESSION_FORMAT_UNSUPPORTED"


class SessionConflict(PersistenceError, RuntimeError):
    """Somebody else wrote to the stored session, or owns its id; nothing was written."""

    code = "SESSION_CONFLICT"

    def __init__(self, id: str, problem: str) -> None:
        super().__init__(f'session "{id}" {problem}')
        self.id = id
        self.problem = problem


class SessionHeld(SessionConflict):
    """Another writer is at work on the session; reading it is not affected.

    Attributes:
        holder: The process of the other writer.
        since_ms: Since when it has the session, in milliseconds of the wall clock.
    """

    code = "SESSION_HELD"

    def __init__(self, id: str, holder: ProcessIdentity, since_ms: int) -> None:
        where = (
            "in another store of this process"
            if holder.pid == os.getpid() and not holder.is_gone()
            else f"in another process (number {holder.pid} on {holder.host!r})"
        )
        super().__init__(
            id,
            f"is open {where} since {_moment(since_ms)}; it can be read here, and goes on here "
            "when it is closed there",
        )
        self.holder = holder
        self.since_ms = since_ms


class SessionLeaseLost(SessionConflict):
    """Another writer took the session over, because this one did not renew its lease in time.

    Nothing was written, and nothing that was stored is lost.

    Attributes:
        taker: The process of the other writer; ``None`` when it is done already.
        since_ms: Since when it has the session, when that is known.
    """

    code = "SESSION_LEASE_LOST"

    def __init__(self, id: str, taker: ProcessIdentity | None, since_ms: int | None) -> None:
        by = "" if taker is None else f" by process {taker.pid} on {taker.host!r}"
        at = "" if since_ms is None else f" at {_moment(since_ms)}"
        super().__init__(
            id,
            f"was taken over{by}{at}, because this process did not say for too long that it is "
            "at work; what it did since is not stored: open the session again to go on",
        )
        self.taker = taker
        self.since_ms = since_ms


def _moment(at_ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at_ms / 1000))
