"""Where a session comes from and what came from it, out of the headers of all sessions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING

from dsh.state.query.service import (
    SessionLineageTrace,
    SessionQueryError,
    SessionTree,
)

if TYPE_CHECKING:
    from dsh.state.query.service import SessionRecord


def trace_lineage(id: str, records: Iterable[SessionRecord]) -> SessionLineageTrace:
    """Return the ancestors and descendants of a session.

    Raises:
        SessionQueryError: ``SESSION_NOT_FOUND``; ``INVALID_LINEAGE`` when a session is an
            ancestor of itself.
    """
    by_id = {record.id: record for record in records}
    target = by_id.get(id)
    if target is None:
        raise SessionQueryError("SESSION_QUERY_SESSION_NOT_FOUND", f"there is no session {id!r}")
    ancestors, missing = _ancestors(target, by_id)
    return SessionLineageTrace(
        target, tuple(ancestors), missing is None, missing, _descendants(target, by_id)
    )


def _ancestors(
    target: SessionRecord, by_id: dict[str, SessionRecord]
) -> tuple[list[SessionRecord], str | None]:
    found: list[SessionRecord] = []
    seen = {target.id}
    parent = target.header.get("parentSession")
    while parent is not None:
        if parent in seen:
            raise _cycle(target.id)
        seen.add(parent)
        if parent not in by_id:
            return found, parent
        found.append(by_id[parent])
        parent = by_id[parent].header.get("parentSession")
    return found, None


def _descendants(target: SessionRecord, by_id: dict[str, SessionRecord]) -> tuple[SessionTree, ...]:
    children: defaultdict[str, list[SessionRecord]] = defaultdict(list)
    for record in sorted(by_id.values(), key=lambda each: (each.header["createdAt"], each.id)):
        if (parent := record.header.get("parentSession")) is not None:
            children[parent].append(record)
    # Parents stand before their children, so that building from the end needs no recursion.
    order = [target]
    for record in order:
        order.extend(children[record.id])
    trees: dict[str, tuple[SessionTree, ...]] = {}
    for record in reversed(order):
        trees[record.id] = tuple(
            SessionTree(child, trees[child.id]) for child in children[record.id]
        )
    return trees[target.id]


def _cycle(id: str) -> SessionQueryError:
    return SessionQueryError(
        "SESSION_QUERY_INVALID_LINEAGE", f"the parents of session {id!r} lead back to it"
    )
