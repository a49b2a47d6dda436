"""Putting changed rows into a YAML text, so that comments and the layout of the rest stay."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from dsh.loader.config_file import parse_rows, render_rows
from dsh.loader.dump import dump_rows, dump_yaml
from dsh.loader.errors import LoaderError
from dsh.loader.rows import Row, is_group, same

_DASH: Final = re.compile(r"[ ]*-[ ]+")


def edit_rows(
    text: str, before: Sequence[Row], after: Sequence[Row], unnamed: set[str], path: Path
) -> str:
    """Return the text of a file with other rows in it.

    Rows and fields that are the same keep their text, with the comments above and beside them.
    A layout that cannot be edited in parts is written anew, without comments.

    Args:
        text: The file.
        before: The rows that it holds.
        after: Those that it is to hold.
        unnamed: Ids of rows that have none in the file.
        path: The file's name decides on the language.
    """
    bare = [_bare(row, unnamed) for row in after]
    if path.suffix != ".json":
        try:
            edited = _edited(text, before, after, unnamed)
            # Whatever the editing missed shows here.
            if same(parse_rows(edited, path), bare):
                return edited
        except (_NotEditable, LoaderError):
            pass
    return render_rows(bare, path)


class _NotEditable(Exception):
    """The text has a form in which rows cannot be told apart by lines."""


class _Item(NamedTuple):
    """One row in the text: lines of comments above it, and its own lines."""

    row: Row
    node: Any
    first: int
    """Number of its first line, comments above it not counted."""
    last: int
    """Number of the line after its last one."""


def _edited(text: str, before: Sequence[Row], after: Sequence[Row], unnamed: set[str]) -> str:
    import yaml

    node = yaml.compose(text, Loader=yaml.BaseLoader)
    seen: set[int] = set()
    for each in _walk(node):
        if id(each) in seen:
            raise _NotEditable  # an alias: its text is elsewhere
        seen.add(id(each))
    lines = text.split("\n")
    ends = text.endswith("\n")
    return "\n".join(_Editor(lines[:-1] if ends else lines, unnamed).whole(node, before, after)) + (
        "\n" if ends else ""
    )


class _Editor:
    def __init__(self, lines: list[str], unnamed: set[str]) -> None:
        self._lines = lines
        self._unnamed = unnamed

    def whole(self, node: Any, before: Sequence[Row], after: Sequence[Row]) -> list[str]:
        """Return the lines of the file."""
        return self._rows(node, before, after, 0, len(self._lines))

    def _rows(
        self, node: Any, before: Sequence[Row], after: Sequence[Row], start: int, end: int
    ) -> list[str]:
        """Return the lines from one number to another, in which a list of rows stands."""
        items = self._items(node, before, start)
        # A comment block with an empty line below it belongs to no row.
        header = _header(self._lines[start : items[0].first])
        leads = {}
        above = start + len(header)
        for item in items:
            leads[item.row["id"]] = self._lines[above : item.first]
            above = item.last
        by_id = {item.row["id"]: item for item in items}
        column = items[0].node.start_mark.column - 2
        lines = header
        for row in after:
            if (found := by_id.get(row["id"])) is None:
                lines += self._fresh(row, column)
            else:
                lead = leads[row["id"]]
                twice = bool(lines and lead and not lines[-1].strip() and not lead[0].strip())
                lines += lead[twice:] + self._row(found, row)
        return lines + self._lines[above:end]

    def _items(self, node: Any, before: Sequence[Row], start: int) -> list[_Item]:
        if node.id != "sequence" or node.flow_style or not before:
            raise _NotEditable
        items = []
        for row, each in zip(before, node.value, strict=True):
            mark = each.start_mark
            dash = _DASH.fullmatch(self._lines[mark.line][: mark.column])
            if dash is None or mark.line < start:
                raise _NotEditable
            items.append(_Item(row, each, mark.line, _last_line(each) + 1))
        return items

    def _fresh(self, row: Row, column: int) -> list[str]:
        text = dump_rows([_bare(row, self._unnamed)])
        return [" " * column + line if line else "" for line in text.splitlines()]

    def _row(self, item: _Item, after: Row) -> list[str]:
        before = item.row
        changed = {
            key
            for key in {*before, *after}
            if key not in before or key not in after or not same(before[key], after[key])
        }
        if not changed:
            return self._lines[item.first : item.last]
        pairs = {key.value: (key, value) for key, value in item.node.value}
        first_key = next(iter(pairs), "")
        if item.node.flow_style or first_key in changed:
            return self._fresh(after, item.node.start_mark.column - 2)
        return self._fields(item, after, changed, pairs)

    def _fields(
        self, item: _Item, after: Row, changed: set[str], pairs: dict[str, tuple[Any, Any]]
    ) -> list[str]:
        """Return a row's lines with only the changed fields written anew."""
        column = item.node.start_mark.column
        new = sorted(key for key in changed if key not in pairs and key != "config")
        new += ["config"] if "config" in changed and "config" not in pairs else []
        lines: list[str] = []
        at = item.first
        for name, (key, value) in pairs.items():
            if name == "config" and new and "config" not in new:
                # The order of fields: config is last.
                lines += self._lines[at : key.start_mark.line]
                at = key.start_mark.line
                lines += self._new(new, after, column)
                new = []
            if name not in changed:
                continue
            lines += self._lines[at : key.start_mark.line]
            at = _last_line(value) + 1
            if name in after:
                lines += self._field(item.row, after, name, key, value)
        lines += self._lines[at : item.last]
        return lines + self._new(new, after, column)

    def _new(self, names: list[str], after: Row, column: int) -> list[str]:
        bare = _bare(after, self._unnamed)
        text = "".join(dump_yaml({name: bare[name]}) for name in names)
        return [" " * column + line if line else "" for line in text.splitlines()]

    def _field(self, before: Row, after: Row, name: str, key: Any, value: Any) -> list[str]:
        """Return the lines of one changed field."""
        start, end = key.start_mark.line, _last_line(value) + 1
        inner = value.id == "sequence" and not value.flow_style and value.start_mark.line > start
        if name == "config" and is_group(before) and is_group(after) and inner and after[name]:
            rows = self._rows(value, before[name], after[name], start + 1, end)
            return [self._lines[start], *rows]
        fresh = self._new([name], after, key.start_mark.column)
        if value.id == "scalar" or value.flow_style:
            # What stands behind the old value is a comment.
            fresh[-1] += self._lines[end - 1][_last_mark(value).column :]
        return fresh


def _header(lines: list[str]) -> list[str]:
    empty = [number for number, line in enumerate(lines, 1) if not line.strip()]
    return lines[: empty[-1]] if empty else []


def _walk(node: Any) -> Iterator[Any]:
    if node is None:
        raise _NotEditable
    yield node
    if node.id == "scalar":
        return
    for each in node.value:
        for part in each if isinstance(each, tuple) else (each,):
            yield from _walk(part)


def _last_mark(node: Any) -> Any:
    """Return where a value ends, without the space and comments after it."""
    if node.id == "scalar" or node.flow_style or not node.value:
        return node.end_mark
    last = node.value[-1]
    return _last_mark(last[1] if isinstance(last, tuple) else last)


def _last_line(node: Any) -> int:
    """Return the number of the last line that a value stands on."""
    mark = _last_mark(node)
    # A block scalar ends where the next line begins.
    at_start = mark.column == 0 and mark.line > node.start_mark.line
    return int(mark.line - 1 if at_start else mark.line)


def _bare(row: Row, unnamed: set[str]) -> Row:
    """Return a row without the ids that were made up for it and those below."""
    bare = {key: value for key, value in row.items() if key != "id" or value not in unnamed}
    if is_group(row) and isinstance(row.get("config"), list):
        bare["config"] = [_bare(each, unnamed) for each in row["config"]]
    return bare
