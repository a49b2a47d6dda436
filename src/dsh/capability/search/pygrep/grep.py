"""Searching the lines of one file."""

from __future__ import annotations

import base64
import codecs
import json
import re
from collections.abc import Iterator

_BOMS = (
    (codecs.BOM_UTF8, None),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


def load(path: bytes, *, binary: bool) -> str | None:
    """Read a file as text in which invalid bytes are lone surrogates.

    Args:
        path: The file.
        binary: Take a file with NUL bytes, too; otherwise it is ``None``.
    """
    with open(path, "rb") as file:
        data = file.read()
    for bom, encoding in _BOMS:
        if data.startswith(bom):
            data = data[len(bom) :]
            if encoding is not None:
                data = data.decode(encoding, "replace").encode("utf-8", "replace")
            break
    if not binary and b"\0" in data:
        return None
    return data.decode("utf-8", "surrogateescape")


def matching_lines(text: str, pattern: re.Pattern[str]) -> Iterator[tuple[int, str]]:
    """Yield number and text of every line in which the pattern occurs.

    The pattern must be one that never matches a line feed.
    """
    number, counted, at = 1, 0, 0
    while at < len(text) and (found := pattern.search(text, at)):
        place = found.start()
        if place == len(text) and text.endswith("\n"):
            return
        start = text.rfind("\n", 0, place) + 1
        end = text.find("\n", place)
        end = len(text) if end < 0 else end + 1
        number += text.count("\n", counted, start)
        counted = start
        yield number, text[start:end]
        at = end


def match_record(path: bytes, number: int, line: str) -> str:
    """Return one match in the form of ripgrep's JSON output."""
    data = {"path": _text(path), "lines": _text(_encode(line)), "line_number": number}
    return json.dumps({"type": "match", "data": data}) + "\n"


def _encode(line: str) -> bytes:
    return line.encode("utf-8", "surrogateescape")


def _text(data: bytes) -> dict[str, str]:
    try:
        return {"text": data.decode()}
    except UnicodeDecodeError:
        return {"bytes": base64.b64encode(data).decode()}
