"""A search as it is carried out: checked, normalised, and where its page begins."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from dsh.base.json import canonical, loads
from dsh.base.values import value
from dsh.state.query.filters import (
    checked_event_filters,
    checked_session_filters,
    checked_text,
)
from dsh.state.query.service import SessionQueryError

if TYPE_CHECKING:
    from dsh.state.query.service import EventFilter, EventSearch, SessionFilter, SessionSearch

MOST_FILTERS: Final = 14
"""Conditions of one search; the session counts as one when it is within a session."""
MOST_VALUES: Final = 32_766
"""Values of all conditions together."""


@value
class Cursor:
    """Where a page begins.

    Attributes:
        generation: What was searched when the page before was made.
        offset: How many hits come before.
    """

    generation: int
    offset: int


@value
class Search:
    """A search.

    Attributes:
        needle: What to look for, as it is compared.
        session_id: The session, when it is within one.
        session_filters: Which sessions count.
        event_filters: Which events count.
        limit: Hits of a page.
        cursor: Where the page begins; ``None`` for the first one.
        mark: Tells this search from all others.
    """

    needle: str
    session_id: str | None
    session_filters: tuple[SessionFilter, ...]
    event_filters: tuple[EventFilter, ...]
    limit: int
    cursor: Cursor | None
    mark: str


class Requests:
    """Checks requests and makes cursors for one instance of the service.

    Args:
        instance: Names it; cursors of others are refused.
        default_limit: Hits of a page.
        max_limit: The most hits of a page.
    """

    def __init__(self, instance: str, default_limit: int, max_limit: int) -> None:
        self._instance = instance
        self._default_limit = default_limit
        self._max_limit = max_limit

    def over_sessions(self, request: SessionSearch) -> Search:
        """Check a search over sessions.

        Raises:
            SessionQueryError: ``INVALID_QUERY``, ``INVALID_FILTER``, ``INVALID_LIMIT`` or
                ``INVALID_CURSOR``.
        """
        return self._checked(
            request.query,
            None,
            checked_session_filters(request.session_filters),
            checked_event_filters(request.event_filters),
            request.limit,
            request.cursor,
        )

    def within(self, request: EventSearch) -> Search:
        """Check a search within a session; see `over_sessions`."""
        filters = checked_event_filters(request.filters)
        return self._checked(
            request.query, request.session_id, (), filters, request.limit, request.cursor
        )

    def cursor_after(self, search: Search, generation: int) -> str:
        """Return the cursor of the page after the one that a search asked for."""
        offset = search.limit + (0 if search.cursor is None else search.cursor.offset)
        fields = [self._instance, search.mark, generation, offset]
        return base64.urlsafe_b64encode(canonical(fields).encode()).decode().rstrip("=")

    def _checked(
        self,
        query: object,
        session_id: str | None,
        session_filters: tuple[SessionFilter, ...],
        event_filters: tuple[EventFilter, ...],
        limit: int | None,
        cursor: str | None,
    ) -> Search:
        needle = checked_text(query, _invalid_query)
        filters = (*session_filters, *event_filters)
        _check_size(filters, MOST_FILTERS - (session_id is not None))
        count = self._limit(limit)
        mark = _mark([needle, session_id, _facts(session_filters), _facts(event_filters), count])
        start = None if cursor is None else self._cursor(cursor, mark)
        return Search(needle, session_id, session_filters, event_filters, count, start, mark)

    def _limit(self, limit: int | None) -> int:
        if limit is None:
            return self._default_limit
        if type(limit) is not int or not 1 <= limit <= self._max_limit:
            raise SessionQueryError(
                "SESSION_QUERY_INVALID_LIMIT",
                f"a page has from 1 to {self._max_limit} hits, not {limit!r}",
            )
        return limit

    def _cursor(self, text: object, mark: str) -> Cursor:
        match _decoded(text):
            case [str(instance), str(made_for), int(generation), int(offset)] if offset > 0:
                if instance != self._instance:
                    raise _invalid_cursor("comes from another run of the search")
                if made_for != mark:
                    raise _invalid_cursor("belongs to another request; repeat the one it is of")
                return Cursor(generation, offset)
        raise _invalid_cursor("is damaged")


def _decoded(text: object) -> Any:
    if not isinstance(text, str):
        return None
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        return loads(raw)
    except (ValueError, binascii.Error):
        return None


def _check_size(filters: Sequence[SessionFilter | EventFilter], most: int) -> None:
    if len(filters) > most:
        raise SessionQueryError(
            "SESSION_QUERY_INVALID_FILTER", f"a search takes {most} filters, not {len(filters)}"
        )
    values = sum(len(getattr(each, "values", ())) for each in filters)
    if values > MOST_VALUES:
        raise SessionQueryError(
            "SESSION_QUERY_INVALID_FILTER",
            f"the filters of a search have {MOST_VALUES} values together, not {values}",
        )


def _facts(filters: Sequence[Any]) -> list[Any]:
    return [
        [type(each).__name__, *(getattr(each, field) for field in each.__match_args__)]
        for each in filters
    ]


def _mark(facts: list[Any]) -> str:
    return hashlib.sha256(canonical(facts).encode()).hexdigest()[:32]


def _invalid_query(problem: str) -> SessionQueryError:
    return SessionQueryError("SESSION_QUERY_INVALID_QUERY", f"the query {problem}")


def _invalid_cursor(problem: str) -> SessionQueryError:
    return SessionQueryError("SESSION_QUERY_INVALID_CURSOR", f"the cursor {problem}")
