"""The command line ``dsh sessions``; reads the sessions root of the dsh home, changes nothing."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any

from dsh.base.json import dumps
from dsh.base.text import nearest, replace_surrogates
from dsh.loader.home import display_home, resolve_dsh_home
from dsh.state.persistence.artifact.catalog import survey

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsh.state.persistence.artifact.catalog import CatalogEntry

_USAGE = """\
usage: dsh sessions list [--json]

List the stored sessions, newest first. Damaged ones are listed with what is wrong.

options:
  --json      print one JSON list: an object a session, with the fields of its header, the
              number of its events, and its damage
  -h, --help  show this help and exit
"""


def main(argv: list[str]) -> int:
    """Run ``dsh sessions``.

    Args:
        argv: What follows ``sessions`` on the command line.

    Returns:
        The exit code.
    """
    if any(word in ("-h", "--help") for word in argv):
        sys.stdout.write(_USAGE)
        return 0
    if (problem := _problem(argv)) is not None:
        sys.stderr.write(f"dsh sessions: {problem}\n")
        return 1
    root = resolve_dsh_home() / "sessions"
    try:
        entries = [_row(entry) for entry in survey(root, count=True)]
    except OSError as error:
        place = f"{display_home(resolve_dsh_home())}/sessions"
        sys.stderr.write(f"dsh sessions: cannot read {place}: {error.strerror}\n")
        return 1
    entries.sort(key=lambda row: (-(row["createdAt"] or 0), row["id"] or "", row["path"]))
    if "--json" in argv:
        _write_lines([dumps(entries).decode()])
    else:
        _write_lines(_table(entries))
    return 0


def _problem(argv: list[str]) -> str | None:
    words = [word for word in argv if word != "--json"]
    if not words:
        return "say what to do; try: dsh sessions list"
    if words == ["list"]:
        return None
    wrong = words[1] if words[0] == "list" else words[0]
    close = nearest(wrong, ["--json", "--help"] if words[0] == "list" else ["list"])
    hint = f"; did you mean {close!r}?" if close else "; try: dsh sessions --help"
    return f"unexpected {wrong!r}{hint}"


def _row(entry: CatalogEntry) -> dict[str, Any]:
    return {
        **dict.fromkeys(("id", "createdAt", "cwd")),
        **(entry.header or {}),
        "events": entry.events,
        "damage": entry.damage,
        "path": str(entry.path),
    }


def _table(rows: Sequence[dict[str, Any]]) -> list[str]:
    lines = []
    for row in rows:
        count = "?" if row["events"] is None else str(row["events"])
        place = row["cwd"] or "-"
        if row["id"] is None:
            lines.append(f"damaged: {row['damage']}: {row['path']}")
            continue
        line = f"{row['id']}  {_when(row['createdAt'])}  {count:>6} events  {place}"
        lines.append(f"{line}  (damaged: {row['damage']})" if row["damage"] else line)
    return lines or ["no sessions yet"]


def _when(milliseconds: int) -> str:
    try:
        return datetime.fromtimestamp(milliseconds / 1000).astimezone().strftime("%Y-%m-%d %H:%M")
    except (OverflowError, ValueError, OSError):
        return str(milliseconds)


def _write_lines(lines: Any) -> None:
    for line in lines:
        # An id or a path may hold what the terminal's encoding cannot.
        print(replace_surrogates(line))
