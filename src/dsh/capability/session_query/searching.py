"""Searches that follow all pages of the service, up to a bound."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from dsh.capability.session_query.failures import refusal
from dsh.state.query.service import SessionQueryError

if TYPE_CHECKING:
    from dsh.capability.session_query.desk import Caller

H = TypeVar("H", covariant=True)
T = TypeVar("T")

_ATTEMPTS = 3
"""How often a search begins anew because sessions changed between two of its pages."""


class Page(Protocol[H]):
    """Some hits, and where to go on."""

    @property
    def hits(self) -> Sequence[H]:
        """The hits."""

    @property
    def next_cursor(self) -> str | None:
        """Leads to the next page."""


async def drained(
    ask: Callable[[str | None], Awaitable[Page[T]]], accepts: Callable[[T], bool], most: int
) -> tuple[list[T], bool]:
    """Return the first accepted hits of all pages, and whether there are more of them.

    Raises:
        SessionQueryError: ``INVALID_CURSOR``, when the pages go round in a circle.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return await _drained(ask, accepts, most)
        except SessionQueryError as error:
            if error.code != "SESSION_QUERY_STALE_CURSOR" or attempt == _ATTEMPTS:
                raise
    raise AssertionError("unreachable")


async def _drained(
    ask: Callable[[str | None], Awaitable[Page[T]]], accepts: Callable[[T], bool], most: int
) -> tuple[list[T], bool]:
    found: list[T] = []
    seen: set[str] = set()
    cursor: str | None = None
    while True:
        page = await ask(cursor)
        for hit in page.hits:
            if accepts(hit):
                if len(found) == most:
                    return found, True
                found.append(hit)
        cursor = page.next_cursor
        if cursor is None:
            return found, False
        if cursor in seen:
            raise SessionQueryError(
                "SESSION_QUERY_INVALID_CURSOR", "the pages of the search go round in a circle"
            )
        seen.add(cursor)


def last_seq_before_step(caller: Caller) -> int:
    """Return the last event before the step that the caller is in; ``-1`` without any.

    What the step itself wrote would only find the search that is going on.

    Raises:
        SessionQueryToolError: ``NO_CURRENT_STEP``.
    """
    for event in reversed(caller.session.events):
        if event["type"] == "step/start":
            return event["seq"] - 1
    raise refusal("SESSION_QUERY_TOOL_NO_CURRENT_STEP")
