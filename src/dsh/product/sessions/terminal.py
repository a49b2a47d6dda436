"""Text for terminals: nothing in it can steer one, and colours only where a person looks."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Final, TextIO

from dsh.base.errors import DshError
from dsh.base.json import dumps
from dsh.base.text import replace_surrogates

# All control characters but the tabulator and the line feed become visible.
_VISIBLE: Final = {
    **{code: 0x2400 + code for code in range(32) if code not in (9, 10)},
    127: 0x2421,
    **dict.fromkeys(range(0x80, 0xA0), 0xFFFD),
}

# What also breaks a line, and what turns the direction of the text after it.
_ON_ONE_LINE: Final = {
    9: 0x2409,
    10: 0x240A,
    **dict.fromkeys((0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A)), 0xFFFD),
}


def printable(text: str) -> str:
    """Return text that a terminal only shows, whatever a model or a tool put into it."""
    return replace_surrogates(text).translate(_VISIBLE)


def one_line(text: str, width: int) -> str:
    """Return the beginning of a text as one line."""
    flat = " ".join(printable(text[: width * 4]).split())
    return flat if len(flat) <= width else flat[: width - 3] + "..."


def label(text: str) -> str:
    """Return a name, an id or a path as part of a line: it ends no line and hides no direction."""
    return printable(text).translate(_ON_ONE_LINE)


class OutputFailed(DshError, OSError):
    """Standard output does not take what is printed."""

    code = "OUTPUT_FAILED"

    def __init__(self, reason: str) -> None:
        super().__init__(f"cannot write the output: {reason}")
        self.strerror = reason


def write_lines(lines: Iterable[str]) -> None:
    """Print lines as they are; what the terminal's encoding lacks is escaped.

    Raises:
        OutputFailed: a disk is full, or the like.
    """
    if sys.stdout is None:
        return
    encoding = _encoding()
    for line in lines:
        text = replace_surrogates(line).encode(encoding, "backslashreplace").decode(encoding)
        with writing():
            sys.stdout.write(text + "\n")
    with writing():
        sys.stdout.flush()


def write_json(values: Iterable[object]) -> None:
    """Print each value as a line of JSON, which any encoding of the terminal leaves JSON.

    Raises:
        OutputFailed: a disk is full, or the like.
    """
    texts = (dumps(each).decode() for each in values)
    if _encoding().lower() not in {"utf-8", "utf8"}:
        texts = (_BEYOND_ASCII.sub(_escaped, each) for each in texts)
    write_lines(texts)


_BEYOND_ASCII: Final = re.compile(r"[^\0-\x7f]")


def _escaped(char: re.Match[str]) -> str:
    units = char[0].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def _encoding() -> str:
    return getattr(sys.stdout, "encoding", None) or "utf-8"


@contextmanager
def writing() -> Iterator[None]:
    """Tell a failure to write to standard output from one to read a session."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputFailed(error.strerror or str(error)) from error


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
        if stream is None:
            self.on = False
            return
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
