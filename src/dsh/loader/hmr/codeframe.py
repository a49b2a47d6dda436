"""Showing where in the user's code something failed."""

from __future__ import annotations

import linecache
import traceback
from typing import Final, NamedTuple

from dsh.loader.hmr.roots import Roots

_AROUND: Final = 2
_WIDEST: Final = 160


class Place(NamedTuple):
    """A position in a file; line and column count from 1."""

    file: str
    line: int
    column: int | None

    def __str__(self) -> str:
        column = "" if self.column is None else f":{self.column}"
        return f"{self.file}:{self.line}{column}"


def place_of(error: BaseException, roots: Roots) -> Place | None:
    """Return where an error comes from: the deepest line of the user's, or what does not parse."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return Place(error.filename, error.lineno, error.offset or None)
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.lineno is not None and roots.has_source(frame.filename):
            column = None if frame.colno is None else frame.colno + 1
            return Place(frame.filename, frame.lineno, column)
    return None


def code_frame(place: Place) -> str:
    """Return the lines around a place as they are now, with a caret under it."""
    linecache.checkcache(place.file)
    lines = linecache.getlines(place.file)
    first = max(1, place.line - _AROUND)
    last = min(len(lines), place.line + _AROUND)
    width = len(str(last))
    shown = [f"{place}:"]
    for number in range(first, last + 1):
        mark = ">" if number == place.line else " "
        text = lines[number - 1].rstrip().expandtabs(1)[:_WIDEST]
        shown.append(f"{mark} {number:>{width}} | {text}")
        if number == place.line and place.column is not None:
            shown.append(f"  {'':>{width}} | {' ' * (place.column - 1)}^")
    return "\n".join(shown)
