"""The object of a session for programs: its header, then what else is known of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from dsh.product.sessions.terminal import write_json

if TYPE_CHECKING:
    from dsh.product.sessions.store import Found
    from dsh.state.persistence.service import SessionInspection


def row(header: Mapping[str, Any] | None, **facts: Any) -> dict[str, Any]:
    """Return the fields of a header, then others; the commonest are there in any case."""
    return {**dict.fromkeys(("id", "createdAt", "cwd")), **(header or {}), **facts}


def row_of(found: Found, seen: SessionInspection, **more: Any) -> dict[str, Any]:
    """Return the object of a session that was read."""
    path = found.stored.path
    return row(seen.meta, **facts_of(seen), path=None if path is None else str(path), **more)


def facts_of(seen: SessionInspection) -> dict[str, Any]:
    """Return what reading a session shows beside its header."""
    from dsh.state.titles.text import fold_session_title

    damage = None if seen.damage is None else seen.damage.reason
    return {"title": fold_session_title(seen.events), "events": len(seen.events), "damage": damage}


def print_rows(rows: Iterable[Mapping[str, Any]]) -> None:
    """Print objects as one list."""
    write_json([list(rows)])
