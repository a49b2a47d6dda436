"""Reading what a search process wrote."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from typing import Any

from dsh.base.json import loads
from dsh.capability.search.service import LineMatch


def parse_paths(output: bytes) -> list[str]:
    """Return the paths of a listing in which each ends with NUL."""
    return [_shown(path) for path in output.split(b"\0") if path]


def parse_lines(output: bytes) -> list[LineMatch]:
    """Return the matches of JSON records, by path and number.

    A file in which a NUL turned up counts as binary: what was found before it is dropped.
    """
    by_path: dict[str, list[LineMatch]] = {}
    for kind, data in _records(output):
        path = _shown(_bytes(data["path"]))
        if kind == "match":
            match = LineMatch(path, data["line_number"], _line(data["lines"]))
            by_path.setdefault(path, []).append(match)
        elif data.get("binary_offset") is not None:
            by_path.pop(path, None)
    return [match for path in sorted(by_path) for match in by_path[path]]


def _records(output: bytes) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for row in output.split(b"\n"):
        if row.startswith((b'{"type":"match"', b'{"type":"end"')):
            record = loads(row)
            yield record["type"], record["data"]


def _bytes(field: Mapping[str, str]) -> bytes:
    if "text" in field:
        return field["text"].encode("utf-8", "surrogatepass")
    return base64.b64decode(field["bytes"])


def _shown(path: bytes) -> str:
    return path.removeprefix(b"./").decode("utf-8", "replace")


def _line(field: Mapping[str, str]) -> str | None:
    if "text" not in field:
        return None
    return field["text"].removesuffix("\n").removesuffix("\r")
