"""What can be wrong with a session, an event, or a header."""

from __future__ import annotations

from dsh.base.errors import DshError


class SessionError(DshError):
    """Anything about sessions."""

    code = "SESSION_ERROR"


class RefusedEvent(SessionError, ValueError):
    """An event breaks a rule of the log; the log is unchanged."""

    code = "SESSION_EVENT_REFUSED"

    def __init__(self, type: object, problem: str) -> None:
        super().__init__(f"event {type!r} is refused: {problem}")
        self.type = type
        self.problem = problem


class UndeclaredEventType(SessionError, LookupError):
    """An event type was used that nobody declared to the session's store."""

    code = "SESSION_EVENT_UNDECLARED"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"event type {name!r} is not declared; register it with ctx.sessions.declare(...) "
            "in the plugin that owns it"
        )
        self.name = name


class DuplicateEventType(SessionError, ValueError):
    """Two declarations claim one name."""

    code = "SESSION_EVENT_TYPE_TAKEN"

    def __init__(self, name: str) -> None:
        super().__init__(f"event type {name!r} is declared already, by another EventType object")
        self.name = name


class ReentrantAppend(SessionError, RuntimeError):
    """An observer of an append tried to append to the same session."""

    code = "SESSION_APPEND_REENTRANT"

    def __init__(self, id: str, type: str) -> None:
        super().__init__(
            f"cannot append {type!r} to session {id!r} while it publishes another event; "
            "append after the observer has returned"
        )
        self.id = id
        self.type = type


class InvalidSeed(SessionError, ValueError):
    """The events a session should start from are not a log."""

    code = "SESSION_SEED_INVALID"

    def __init__(self, index: int, problem: str) -> None:
        super().__init__(f"seed event {index} is refused: {problem}")
        self.index = index
        self.problem = problem


class InvalidHeader(SessionError, ValueError):
    """The facts beside a log are wrong."""

    code = "SESSION_HEADER_INVALID"

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"session header field {field!r} {problem}")
        self.field = field
        self.problem = problem


class DuplicateSession(SessionError, ValueError):
    """The id belongs to another session."""

    code = "SESSION_ALREADY_EXISTS"

    def __init__(self, id: str) -> None:
        super().__init__(f'session "{id}" already exists')
        self.id = id


class SessionNotLive(SessionError, RuntimeError):
    """The session object is not, or no longer, in this store."""

    code = "SESSION_NOT_LIVE"

    def __init__(self, id: str, problem: str = "is not live in this store") -> None:
        super().__init__(f'session "{id}" {problem}')
        self.id = id


class SessionForkError(SessionError, ValueError):
    """A session cannot be forked there; nothing was made.

    ``code`` is one of ``SESSION_NOT_FOUND``, ``SESSION_NOT_LIVE``, ``SESSION_ALREADY_EXISTS``,
    ``INVALID_BOUNDARY``, ``OPEN_TURN`` and ``FORK_UNAVAILABLE``.
    """

    def __init__(self, code: str, id: str, problem: str) -> None:
        super().__init__(f'session "{id}" {problem}')
        self.code = code
        self.id = id
        self.problem = problem
