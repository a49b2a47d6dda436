"""What ``dsh sessions`` does with the sessions of a store."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dsh.base.errors import DshError
from dsh.product.sessions.exporting import export
from dsh.product.sessions.listing import listed, print_list
from dsh.product.sessions.repairing import repair
from dsh.product.sessions.rows import facts_of, print_rows, row, row_of
from dsh.product.sessions.showing import transcript_lines
from dsh.product.sessions.store import find, images, opened
from dsh.product.sessions.terminal import Colours, label, write_json, write_lines
from dsh.state.log_export.transcript import transcript
from dsh.state.session.fork import fork_stored
from dsh.state.titles.text import fold_session_title

if TYPE_CHECKING:
    from dsh.product.cli.words import Words
    from dsh.state.log_export.transcript import Entry
    from dsh.state.persistence.service import SessionPersistence


class BadNumber(DshError, ValueError):
    """The value of an option is no number of an event."""

    code = "SESSION_EVENT_NUMBER"

    def __init__(self, option: str, given: str) -> None:
        super().__init__(f"{option} needs the number of an event, got {given[:40]!r}")
        self.option = option
        self.given = given


def _opened(words: Words, home: Path) -> AbstractAsyncContextManager[SessionPersistence]:
    return opened(home, words.value("--profile"))


async def _list(words: Words, home: Path) -> int:
    async with _opened(words, home) as persistence:
        rows = [await listed(persistence, stored) for stored in await persistence.survey()]
    print_list(rows, as_json=words.flag("--json"))
    return 0


async def _show(words: Words, home: Path) -> int:
    async with _opened(words, home) as persistence:
        (found,) = await find(persistence, words.args)
        seen = await persistence.inspect(found.id)
    if words.flag("--events"):
        write_json(seen.events)
    elif words.flag("--json"):
        entries = [_entry(entry) for entry in transcript(seen.events)]
        print_rows([row_of(found, seen, transcript=entries)])
    else:
        title = fold_session_title(seen.events)
        write_lines(transcript_lines(seen.meta, seen.events, title, Colours()))
    if seen.damage is not None:
        _warn(f"the end of {found.id} is damaged ({seen.damage.reason}); dsh sessions repair")
    return 0


def _entry(entry: Entry) -> dict[str, Any]:
    names = ("kind", "seq", "time", "text", "name", "result", "failed")
    return {name: getattr(entry, name) for name in names}


async def _fork(words: Words, home: Path) -> int:
    at = _number("--at", words.value("--at"))
    async with _opened(words, home) as persistence:
        (found,) = await find(persistence, words.args)
        header = await fork_stored(persistence, found.id, at=at)
        made = await persistence.inspect(header["id"])
    if words.flag("--json"):
        print_rows([row(header, **facts_of(made))])
    else:
        write_lines([header["id"]])
    return 0


async def _export(words: Words, home: Path) -> int:
    async with _opened(words, home) as persistence, images(home) as read_image:
        (found,) = await find(persistence, words.args)
        target, kind = words.value("--output"), words.value("--format") or "zip"
        written = await export(persistence, read_image, found.id, kind, target)
        if words.flag("--json"):
            seen = await persistence.inspect(found.id)
            print_rows([row_of(found, seen, file=written)])
        elif target != "-":
            write_lines([str(written)])
    return 0


async def _delete(words: Words, home: Path) -> int:
    async with _opened(words, home) as persistence:
        chosen = await find(persistence, words.args)
        names = ", ".join(label(found.id) for found in chosen)
        if not words.flag("--yes"):
            if not sys.stdin or not sys.stdin.isatty():
                return _fail(f"deleting {names} cannot be undone; say --yes")
            if not _confirmed(names):
                write_lines(["nothing was deleted"])
                return 1
        rows = []
        for found in chosen:
            deleted = await listed(persistence, found.stored) if words.flag("--json") else {}
            await persistence.delete(found.id)
            rows.append({**deleted, "id": found.id})
            if not words.flag("--json"):
                write_lines([f"deleted {label(found.id)}"])
    if words.flag("--json"):
        print_rows(rows)
    return 0


def _confirmed(names: str) -> bool:
    sys.stderr.write(f"delete {names} for good? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


VERBS: Final[dict[str, Callable[[Words, Path], Coroutine[Any, Any, int]]]] = {
    "list": _list,
    "show": _show,
    "fork": _fork,
    "export": _export,
    "repair": repair,
    "delete": _delete,
}
"""Each verb; returns the exit code."""


_MOST_DIGITS: Final = 16
"""Of the largest number that an event can have."""


def _number(option: str, given: str | None) -> int | None:
    if given is None:
        return None
    if not (given.isascii() and given.isdigit() and len(given) <= _MOST_DIGITS):
        raise BadNumber(option, given)
    return int(given)


def _warn(text: str) -> None:
    sys.stderr.write(f"dsh sessions: {label(text)}\n")


def _fail(problem: str) -> int:
    _warn(problem)
    return 1
