"""Text for terminals: nothing in it can steer one, and colours only where a person looks."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from datetime import datetime
from typing import Final, TextIO

from dsh.base.text import replace_surrogates

# All control characters but the tabulator and the line feed become visible.
_VISIBLE: Final = {
    **{code: 0x2400 + code for code in range(32) if code not in (9, 10)},
    127: 0x2421,
    **dict.fromkeys(range(0x80, 0xA0), 0xFFFD),
}


def printable(text: str) -> str:
    """Return text that a terminal only shows, whatever a model or a tool put into it."""
    return replace_surrogates(text).translate(_VISIBLE)


def one_line(text: str, width: int) -> str:
    """Return the beginning of a text as one line."""
    flat = " ".join(printable(text[: width * 4]).split())
    return flat if len(flat) <= width else flat[: width - 3] + "..."


def write_lines(lines: Iterable[str]) -> None:
    """Print lines as they are."""
    for line in lines:
        print(replace_surrogates(line))


def when(milliseconds: int) -> str:
    """Return a time as people here write it."""
    try:
        return datetime.fromtimestamp(milliseconds / 1000).astimezone().strftime("%Y-%m-%d %H:%M")
    except (OverflowError, ValueError, OSError):
        return str(milliseconds)


class Colours:
    """Marks up parts of a line, or leaves them as they are.

    Args:
        stream: Where the text goes.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        stream = stream or sys.stdout
        plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        self.on = stream.isatty() and not plain

    def bold(self, text: str) -> str:
        """Mark what a person said."""
        return self._in("1", text)

    def dim(self, text: str) -> str:
        """Mark what is of less interest."""
        return self._in("2", text)

    def red(self, text: str) -> str:
        """Mark what failed."""
        return self._in("31", text)

    def _in(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.on and text else text
