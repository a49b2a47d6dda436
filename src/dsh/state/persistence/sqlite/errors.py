"""What can be wrong with a database of sessions."""

from __future__ import annotations

from pathlib import Path

from dsh.state.persistence.errors import PersistenceError


class UnusableDatabase(PersistenceError, ValueError):
    """The file is no database of sessions, or cannot be trusted with them; it is untouched."""

    code = "SESSION_DATABASE_UNUSABLE"

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"the session database {str(path)!r} {problem}")
        self.path = path
        self.problem = problem


class DatabaseFailed(PersistenceError, OSError):
    """SQLite could not do what was asked; what was stored before is as it was."""

    code = "SESSION_DATABASE_FAILED"

    def __init__(self, path: Path | str, problem: str) -> None:
        super().__init__(f"the session database {str(path)!r} could not be used: {problem}")
        self.path = path
        self.problem = problem
