"""``dsh sessions repair``: makes torn and interrupted logs whole, and tells what was lost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsh.base.errors import DshError, message_of
from dsh.base.values import value
from dsh.product.sessions.rows import print_rows, row, row_of
from dsh.product.sessions.store import Found, find, id_of, opened
from dsh.product.sessions.terminal import label, write_lines
from dsh.state.persistence.artifact.aside import kept_aside, remove_unpublished
from dsh.state.persistence.errors import SessionHeld

if TYPE_CHECKING:
    from dsh.product.cli.words import Words
    from dsh.state.persistence.service import SessionInspection, SessionPersistence


@value
class _Repair:
    """What became of one session.

    Attributes:
        found: The session.
        lost: What it had lost, in words; ``None`` when it was whole.
        closed: Whether an interrupted turn was closed.
        kept: Where what was cut off is kept.
        problem: Why it could not be repaired.
        seen: The session afterwards.
    """

    found: Found
    lost: str | None = None
    closed: bool = False
    kept: tuple[str, ...] = ()
    problem: str | None = None
    seen: SessionInspection | None = None


async def repair(words: Words, home: Path) -> int:
    """Run ``dsh sessions repair``."""
    profile = words.value("--profile")
    async with opened(home, profile) as persistence:
        asked = bool(words.args)
        everything = await persistence.survey() if not asked else []
        if asked:
            chosen = await find(persistence, words.args)
        else:
            chosen = [Found(id_of(each), each) for each in everything]
        repairs = [await _repaired(persistence, found, quiet=not asked) for found in chosen]
    swept = [] if asked or profile is not None else remove_unpublished(home / "sessions")
    if words.flag("--json"):
        print_rows(map(_repair_row, repairs))
    else:
        lines = [_repair_line(each) for each in repairs if asked or _is_news(each)]
        lines += [f"removed {label(str(path))}: nothing was ever committed to it" for path in swept]
        write_lines(lines or ["all sessions are whole"])
    return 1 if any(each.problem for each in repairs) else 0


async def _repaired(persistence: SessionPersistence, found: Found, *, quiet: bool) -> _Repair:
    path = found.stored.path
    if not found.id:
        return _Repair(found, problem=found.stored.damage)
    before = set(kept_aside(path)) if path is not None else set()
    try:
        physical = len((await persistence.read_from(found.id, 0))[1])
        loaded = await persistence.load(found.id)
    except SessionHeld as error:
        # What a running process writes is not damaged; only who asks for it is told.
        return _Repair(found, problem=None if quiet else error.message)
    except (DshError, OSError) as error:
        return _Repair(found, problem=message_of(error))
    lost = None
    if loaded.damage is not None:
        lost = f"{loaded.damage.lost_bytes} bytes at its end ({loaded.damage.reason})"
    kept = [str(each) for each in kept_aside(path) if each not in before] if path else []
    closed = loaded.damage is None and len(loaded.events) > physical
    return _Repair(found, lost, closed, tuple(kept), seen=loaded)


def _is_news(repair: _Repair) -> bool:
    return repair.lost is not None or repair.closed or repair.problem is not None


def _repair_line(repair: _Repair) -> str:
    name = label(repair.found.id or str(repair.found.stored.path))
    if repair.problem is not None:
        return f"{name}: cannot be repaired: {label(repair.problem)}"
    if repair.lost is not None:
        kept = f"; kept in {', '.join(repair.kept)}" if repair.kept else ""
        return f"{name}: repaired; it had lost {label(f'{repair.lost}{kept}')}"
    return f"{name}: {'an interrupted turn was closed' if repair.closed else 'is whole'}"


def _repair_row(repair: _Repair) -> dict[str, Any]:
    facts = {"lost": repair.lost, "closed": repair.closed, "kept": list(repair.kept)}
    stored, seen = repair.found.stored, repair.seen
    if seen is None:
        unknown = {"title": None, "events": None, "damage": repair.problem}
        return {**row(stored.header, **unknown), "id": repair.found.id or None, **facts}
    return row_of(repair.found, seen, **facts)
