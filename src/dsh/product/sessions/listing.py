"""``dsh sessions list``; the files of a home are read with no more of the program than needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsh.base.errors import DshError, message_of
from dsh.product.sessions.rows import facts_of, print_rows, row
from dsh.product.sessions.terminal import label, one_line, when, write_lines
from dsh.state.persistence.artifact.catalog import survey
from dsh.state.titles.text import fold_session_title

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from dsh.state.persistence.artifact.catalog import CatalogEntry
    from dsh.state.persistence.service import SessionPersistence, StoredSession

_TITLE_WIDTH = 40


def list_sessions(root: Path, *, as_json: bool) -> None:
    """Print the sessions below a root, newest first.

    Raises:
        OSError: the root cannot be read.
    """
    print_list([_row(entry) for entry in survey(root, fold=fold_session_title)], as_json=as_json)


async def listed(persistence: SessionPersistence, stored: StoredSession) -> dict[str, Any]:
    """Return the object of a session in any store; one that cannot be read says why."""
    path = None if stored.path is None else str(stored.path)
    facts = {"title": None, "events": None, "damage": stored.damage}
    if stored.header is not None and stored.damage is None:
        try:
            facts = facts_of(await persistence.inspect(stored.header["id"]))
        except (DshError, OSError) as error:
            facts["damage"] = message_of(error)
    return row(stored.header, **facts, path=path)


def print_list(rows: list[dict[str, Any]], *, as_json: bool) -> None:
    """Print the objects of sessions, newest first."""
    rows.sort(key=lambda each: (-(each["createdAt"] or 0), each["id"] or "", each["path"] or ""))
    if as_json:
        print_rows(rows)
    else:
        write_lines(_table(rows))


def _row(entry: CatalogEntry) -> dict[str, Any]:
    return row(
        entry.header,
        title=entry.folded,
        events=entry.events,
        damage=entry.damage,
        path=str(entry.path),
    )


def _table(rows: Sequence[dict[str, Any]]) -> list[str]:
    return [_line(each) for each in rows] or ["no sessions yet"]


def _line(each: dict[str, Any]) -> str:
    if each["id"] is None:
        return label(f"damaged: {each['damage']}: {each['path']}")
    count = "?" if each["events"] is None else str(each["events"])
    parts = [
        label(each["id"]),
        when(each["createdAt"]),
        f"{count:>6} events",
        label(each["cwd"] or "-"),
    ]
    if each["title"]:
        parts.append(one_line(each["title"], _TITLE_WIDTH))
    line = "  ".join(parts)
    return f"{line}  (damaged: {label(each['damage'])})" if each["damage"] else line
