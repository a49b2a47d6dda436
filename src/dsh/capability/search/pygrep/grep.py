"""Searching the lines of one file."""

from __future__ import annotations

import base64
import codecs
import json
import os
import re
from collections.abc import Iterator

_PIECE = 1 << 24
_BOMS = (
    (codecs.BOM_UTF8, None),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


class BinaryFile(Exception):
    """A file has NUL bytes, so it is no text."""


def search_file(path: bytes, pattern: re.Pattern[str], *, binary: bool) -> list[str]:
    """Return a record for each line of a file in which the pattern occurs.

    Args:
        path: The file; all of it is read before anything is returned.
        pattern: One that never matches a line feed.
        binary: Search a file with NUL bytes, too; otherwise it has no matches.

    Raises:
        OSError: the file cannot be read.
    """
    shown = _field(os.fsdecode(path))
    records: list[str] = []
    lines_before = 0
    try:
        for text in pieces(path, binary=binary):
            for number, line in matching_lines(text, pattern):
                records.append(_record(shown, lines_before + number, line))
            lines_before += text.count("\n")
    except BinaryFile:
        return []
    return records


def pieces(path: bytes, *, binary: bool) -> Iterator[str]:
    """Yield a file in pieces of whole lines, in which invalid bytes are lone surrogates.

    Raises:
        BinaryFile: there is a NUL byte, and ``binary`` does not allow it.
    """
    with open(path, "rb") as file:
        data = file.read(_PIECE)
        for bom, encoding in _BOMS:
            if data.startswith(bom):
                data = data[len(bom) :]
                if encoding is not None:
                    whole = data + file.read()
                    data = whole.decode(encoding, "replace").encode("utf-8", "replace")
                break
        if not binary and b"\0" in data:
            raise BinaryFile
        while data:
            if more := file.read(_PIECE):
                # Checked as it arrives: a file without line ends would be collected whole first.
                if not binary and b"\0" in more:
                    raise BinaryFile
                end = data.rfind(b"\n") + 1
                data, more = data[:end], data[end:] + more
            yield data.decode("utf-8", "surrogateescape")
            data = more


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


def _record(shown: str, number: int, line: str) -> str:
    """Write a match as ripgrep does in its JSON output."""
    data = f'{{"path":{shown},"lines":{_field(line)},"line_number":{number}}}'
    return f'{{"type":"match","data":{data}}}\n'


def _field(text: str) -> str:
    """Write a text, or its bytes when it stands for some that are none."""
    try:
        text.encode()
    except UnicodeEncodeError:
        data = base64.b64encode(text.encode("utf-8", "surrogateescape")).decode()
        return f'{{"bytes":"{data}"}}'
    return f'{{"text":{json.dumps(text)}}}'
