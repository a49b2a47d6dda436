"""What can be wrong with a server that keeps sessions."""

from __future__ import annotations

from dsh.state.persistence.errors import PersistenceError


class ServerUnusable(PersistenceError):
    """The server, its address or its tables cannot be used as they are."""

    code = "SESSION_SERVER_UNUSABLE"


class ServerFailed(PersistenceError, OSError):
    """The server could not do what was asked; what was acknowledged before is safe."""

    code = "SESSION_SERVER_FAILED"

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"the session database at {where} could not be used: {problem}")
        self.where = where
        self.problem = problem
