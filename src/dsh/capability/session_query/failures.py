"""What a model is told of a failure: fixed sentences, which cannot name what it must not see."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from dsh.base.errors import DshError, error_chain
from dsh.state.query.service import SessionQueryError

if TYPE_CHECKING:
    from dsh.base.signal import AbortSignal

_log = logging.getLogger("dsh.tool_session_query")

ToolCode: TypeAlias = Literal[
    "SESSION_QUERY_TOOL_MISSING_AGENT",
    "SESSION_QUERY_TOOL_UNAUTHORIZED",
    "SESSION_QUERY_TOOL_NO_CURRENT_STEP",
    "SESSION_QUERY_TOOL_FAILED",
]

_OWN: Final[dict[str, str]] = {
    "SESSION_QUERY_TOOL_MISSING_AGENT": "only an agent can look into sessions",
    "SESSION_QUERY_TOOL_UNAUTHORIZED": (
        "only sessions of the same working directory can be looked into"
    ),
    "SESSION_QUERY_TOOL_NO_CURRENT_STEP": (
        "the current session has no step yet, so there is nothing before it to search"
    ),
    "SESSION_QUERY_TOOL_FAILED": "the sessions could not be read; the log of dsh says why",
}
_SAFE: Final[dict[str, str]] = {
    "SESSION_QUERY_ABORTED": "the look into the sessions was ended",
    "SESSION_QUERY_CORRUPT_SESSION": "the stored log of this session is damaged",
    "SESSION_QUERY_EVENT_NOT_FOUND": "the session has no event of this number",
    "SESSION_QUERY_INDEX_FAILED": "the search index failed; reading sessions still works",
    "SESSION_QUERY_INVALID_CURSOR": "the search lost its place; search again",
    "SESSION_QUERY_INVALID_FILTER": "a filter is not usable; check its values and their order",
    "SESSION_QUERY_INVALID_LIMIT": "the search asked for a page of a wrong size",
    "SESSION_QUERY_INVALID_LINEAGE": "the parents of this session lead back to it",
    "SESSION_QUERY_INVALID_QUERY": "the query is not usable; give some visible text",
    "SESSION_QUERY_INVALID_SURFACE": "the log of this session cannot be replayed",
    "SESSION_QUERY_INVALID_WINDOW": "before and after are out of range; ask for fewer events",
    "SESSION_QUERY_PERSISTENCE_FAILED": "the stored sessions cannot be read at the moment",
    "SESSION_QUERY_SEARCH_DISABLED": (
        "search is switched off here; trace and read work when a session id is known"
    ),
    "SESSION_QUERY_SESSION_NOT_FOUND": "there is no such session",
    "SESSION_QUERY_STALE_CURSOR": "the sessions changed during the search; search again",
}

_TEXTS: Final = _OWN | _SAFE
_FAILED: Final = "SESSION_QUERY_TOOL_FAILED"
_OF_THE_CALL: Final = frozenset(
    {
        "SESSION_QUERY_EVENT_NOT_FOUND",
        "SESSION_QUERY_INVALID_FILTER",
        "SESSION_QUERY_INVALID_QUERY",
        "SESSION_QUERY_INVALID_WINDOW",
        "SESSION_QUERY_SEARCH_DISABLED",
        "SESSION_QUERY_SESSION_NOT_FOUND",
        "SESSION_QUERY_STALE_CURSOR",
    }
)
"""What only says that the model asked for something that there is not; nobody else cares."""


class SessionQueryToolError(DshError):
    """A call of these tools failed; the message is safe to show to a model.

    Attributes:
        code: A `ToolCode`, or one of the codes of `SessionQueryError`.
    """

    code: str = "SESSION_QUERY_TOOL_FAILED"

    def __init__(self, code: str) -> None:
        super().__init__(_TEXTS[code], code=code)


def refusal(code: ToolCode) -> SessionQueryToolError:
    """Return the error of a refused call."""
    return SessionQueryToolError(code)


def safe_code(error: BaseException) -> str:
    """Return the code that a model may see of an error."""
    code = getattr(error, "code", None)
    known = isinstance(error, (SessionQueryError, SessionQueryToolError))
    return code if known and isinstance(code, str) and code in _TEXTS else _FAILED


@contextmanager
def told_safely(tool: str, signal: AbortSignal) -> Iterator[None]:
    """Turn what fails inside into what a model may know, and log the rest.

    A call that was cancelled meanwhile is cancelled, whatever else went wrong.
    """
    try:
        yield
    except Exception as error:
        signal.throw_if_aborted()
        if isinstance(error, SessionQueryToolError):
            raise
        code = safe_code(error)
        level = logging.INFO if code in _OF_THE_CALL else logging.WARNING
        _log.log(level, "the tool %s failed: %s", tool, error_chain(error))
        raise SessionQueryToolError(code) from None
