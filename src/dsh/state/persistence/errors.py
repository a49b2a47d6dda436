"""What can be wrong with a stored session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from dsh.state.session.errors import SessionError

if TYPE_CHECKING:
    from pathlib import Path


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
