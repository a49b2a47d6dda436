"""Search results as text for the model and as facts for user interfaces."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, zip_longest
from typing import TYPE_CHECKING, NotRequired, TypedDict

from dsh.base.json import dumps
from dsh.base.text import cut_utf8

if TYPE_CHECKING:
    from dsh.base.json import JsonObject, JsonValue
    from dsh.execution.tools.service import ToolResultFacts

NOT_TEXT = "(this line is not valid UTF-8)"
"""Stands for a matching line that cannot be shown."""

_GROUP_BYTES = len('{"path":,"matches":[]},')
_NARROW = "the complete list could not be saved; narrow the search to see the rest"


class GlobValue(TypedDict):
    """All files that were found."""

    root: str
    paths: list[str]
    unreadable: NotRequired[int]


class MatchValue(TypedDict):
    """One matching line."""

    path: str
    lineNumber: int
    line: str


class GrepValue(TypedDict):
    """All lines that were found."""

    matches: list[MatchValue]
    unreadable: NotRequired[int]


def page_of(paths: Sequence[str], limit: int, *, sample: bool) -> list[str]:
    """Return the paths to show.

    Args:
        paths: All of them, in order.
        limit: How many.
        sample: Take them in turn from each top-level entry, so that one folder does not fill
            the page; the order within is kept.
    """
    if len(paths) <= limit or not sample:
        return list(paths[:limit])
    groups: dict[str, list[str]] = {}
    for path in paths:
        groups.setdefault(path.split("/", 1)[0] if "/" in path else "", []).append(path)
    rounds = zip_longest(*groups.values())
    return [path for turn in rounds for path in turn if path is not None][:limit]


def render_paths(value: GlobValue, limit: int, *, sample: bool) -> str:
    """Return what the model reads of a listing."""
    paths = value["paths"]
    page = page_of(paths, limit, sample=sample)
    lines = page or ["No files found"]
    notes = []
    if len(page) < len(paths):
        sampled = sample and any("/" in path for path in paths)
        how = ", a sample across the top-level folders" if sampled else ""
        notes.append(f"({len(page)} of {len(paths)} files{how}; {_NARROW})")
    return _with_notes(lines, notes, value.get("unreadable", 0))


def render_matches(value: GrepValue, limit: int, max_line_bytes: int) -> str:
    """Return what the model reads of matching lines."""
    matches = value["matches"]
    page = matches[:limit]
    total = f"{len(matches)} match{'' if len(matches) == 1 else 'es'}"
    over = len(page) < len(matches)
    lines = [f"Found {len(page)} of {total}" if over else f"Found {total}"]
    if not matches:
        lines = ["No matches found"]
    for path, group in groupby(page, key=_path):
        lines += ["", path]
        lines += [f"Line {m['lineNumber']}: {cut_line(m['line'], max_line_bytes)}" for m in group]
    return _with_notes(lines, [f"({_NARROW})"] if over else [], value.get("unreadable", 0))


def _with_notes(lines: list[str], notes: list[str], unreadable: int) -> str:
    if unreadable:
        notes = [*notes, f"({unreadable} paths could not be read and were left out)"]
    return "\n".join([*lines, *([""] if notes else []), *notes])


def cut_line(line: str, max_bytes: int) -> str:
    """Return a line that fits, or its start and a note."""
    cut = cut_utf8(line, max_bytes)
    return line if len(cut) == len(line) else f"{cut} (line truncated)"


def paths_meta(value: GlobValue, limit: int, max_bytes: int, *, sample: bool) -> JsonValue:
    """Return the durable facts of a listing; at least one path is kept."""
    room = max_bytes
    kept: list[JsonValue] = []
    for path in page_of(value["paths"], limit, sample=sample):
        room -= len(dumps(path)) + 1
        if room < 0 and kept:
            break
        kept.append(path)
    total = len(value["paths"])
    return {"shape": "paths", "paths": kept, "total": total, "truncated": len(kept) < total}


def matches_meta(value: GrepValue, limit: int, max_line_bytes: int, max_bytes: int) -> JsonValue:
    """Return the durable facts of matching lines.

    Whole files are left out when there is no room for all; of a first file that is too big by
    itself as many lines as fit are kept, at least one.
    """
    room, shown = max_bytes, 0
    files: list[JsonValue] = []
    for path, group in groupby(value["matches"][:limit], key=_path):
        rows: list[JsonValue] = [
            {"lineNumber": match["lineNumber"], "line": cut_line(match["line"], max_line_bytes)}
            for match in group
        ]
        sizes = [len(dumps(row)) + 1 for row in rows]
        room -= len(dumps(path)) + _GROUP_BYTES + sum(sizes)
        if room < 0 and files:
            break
        while room < 0 and len(rows) > 1:
            room += sizes.pop()
            rows.pop()
        shown += len(rows)
        files.append({"path": path, "matches": rows})
    total = len(value["matches"])
    return {"shape": "matches", "files": files, "total": total, "truncated": shown < total}


def _path(match: MatchValue) -> str:
    return match["path"]


def present_search(_: object, facts: ToolResultFacts) -> JsonObject | None:
    """Return the card of a search; ``None`` when its meta does not tell one."""
    meta = facts.meta
    if facts.is_error or not isinstance(meta, dict):
        return None
    rows = {"paths": "paths", "matches": "files"}.get(str(meta.get("shape")))
    if rows is None or not isinstance(meta.get(rows), list):
        return None
    return {"card": "search", **{key: meta[key] for key in ("shape", rows, "total", "truncated")}}
