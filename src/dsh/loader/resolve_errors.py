"""Why a row's plugin cannot be had: upstream has it and we do not, or its code does not import."""

from __future__ import annotations

import linecache
import os
import traceback
from typing import NamedTuple

from dsh.loader.errors import LoaderError, UnknownPlugin

_MACHINERY = ("<frozen importlib", os.path.join("importlib", "__init__.py"))  # noqa: PTH118
_SHOWN = 120


class UnservedPlugin(UnknownPlugin):
    """A row names a plugin of upstream that this version does not have.

    Attributes:
        reason: Why it is not here.
    """

    code = "UNSERVED_PLUGIN"

    def __init__(self, specifier: str, reason: str) -> None:
        super().__init__(
            specifier,
            f"this is a plugin of the upstream product that this version of dsh does not have "
            f"({reason}); disable the row or remove it",
        )
        self.reason = reason


class BrokenPlugin(LoaderError, ImportError):
    """A plugin's module exists and cannot be imported; what it raised is the cause.

    Attributes:
        specifier: The name as the row spells it.
        place: Where in its code; None when the code was not reached.
    """

    code = "BROKEN_PLUGIN"

    def __init__(self, specifier: str, error: BaseException) -> None:
        self.specifier = specifier
        self.place = place_of(error)
        what, remedy = _diagnosis(error)
        at = f", at {self.place}" if self.place is not None else ""
        super().__init__(f'plugin "{specifier}" {what}{at}; {remedy}')


class Place(NamedTuple):
    """A line of source code."""

    path: str
    """The file."""
    line: int
    """1-based."""
    source: str
    """The line itself, without its indentation; empty when it cannot be read."""

    def __str__(self) -> str:
        text = self.source if len(self.source) <= _SHOWN else f"{self.source[:_SHOWN]}..."
        return f"{self.path}, line {self.line}" + (f" ({text})" if text else "")


def place_of(error: BaseException) -> Place | None:
    """Return the line that a failed import comes from.

    For a syntax error that is the line itself. Else it is the last line of the plugin's own code
    before the failure: one inside a library that it calls says less.
    """
    if isinstance(error, SyntaxError) and error.filename and os.path.isabs(error.filename):  # noqa: PTH117
        line = error.lineno or 1
        return _place(error.filename, line, error.text)
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not any(part in frame.filename for part in _MACHINERY)
        and frame.filename != _OWN
        and frame.lineno is not None
    ]
    if not frames:
        return None
    home = os.path.dirname(frames[0].filename)  # noqa: PTH120
    own = [frame for frame in frames if frame.filename.startswith(home)]
    last = own[-1]
    return _place(last.filename, last.lineno or 1, last.line)


def _place(path: str, line: int, source: str | None) -> Place:
    return Place(path, line, (source or linecache.getline(path, line)).strip())


def _diagnosis(error: BaseException) -> tuple[str, str]:
    if isinstance(error, SyntaxError):
        return "is not valid Python", "correct it there"
    if isinstance(error, ModuleNotFoundError):
        return "imports what is not installed", "install it, or correct the import"
    if isinstance(error, OSError) and not isinstance(error, ImportError):
        return f"raises {type(error).__name__} while it is imported", "see what it reads"
    return f"raises {type(error).__name__} while it is imported", "correct it there"


_OWN = os.path.join(os.path.dirname(__file__), "resolve.py")  # noqa: PTH118, PTH120
