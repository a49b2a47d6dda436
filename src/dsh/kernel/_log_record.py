"""What one log record holds, and how its text is made: formats, errors, bounds."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from dsh.base.values import value
from dsh.kernel._root import trimmed

if TYPE_CHECKING:
    import weakref

    from dsh.kernel.fiber import Fiber

LogLevel: TypeAlias = Literal["debug", "info", "warn", "error"]
"""How severe a record is."""

LEVELS: Final[tuple[LogLevel, ...]] = ("debug", "info", "warn", "error")
"""All levels, the least severe first."""

SEVERITY: Final[dict[str, int]] = {level: rank for rank, level in enumerate(LEVELS)}
"""Rank of each level; a threshold admits its own level and those above it."""

MAX_LINE: Final = 10_240
"""Longest line of a record, in characters; the rest becomes ``...``."""

MAX_LINES: Final = 1_000
"""Most lines of a record; the middle of what is longer is left out."""

Formatter: TypeAlias = Callable[[Any], str]
"""Turns one argument into text."""

_SPECIFIER: Final = re.compile(r"%([A-Za-z%])")
_HUMP: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[_\s]+")


@value(eq=False)
class LogRecord:
    """One thing that was logged; its text is final when the record is made."""

    serial: int
    """Counts up from 1 for each logger service."""
    time_ms: int
    """Wall clock, in milliseconds since the epoch."""
    name: str
    """Who logged it."""
    level: LogLevel
    """How severe it is."""
    text: str
    """What was logged, perhaps in several lines."""
    error: BaseException | None
    """The exception it is about, when it is about one alone."""
    origin: weakref.ref[Fiber]
    """The plugin that logged it, while that is alive."""

    @property
    def fiber(self) -> Fiber | None:
        """The plugin that logged it; None when it is gone."""
        return self.origin()


def hyphenated(name: str) -> str:
    """Return a plugin's name as log lines show it: ``systemPrompt`` becomes ``system-prompt``."""
    return _HUMP.sub("-", name.strip()).lower()


def text_of(message: object, args: Sequence[object], formatters: Mapping[str, Formatter]) -> str:
    """Return a record's text; never raises, whatever the arguments do.

    Args:
        message: A format, or what is logged itself. An exception gives its traceback, with its
            causes and the members of a group.
        args: For the specifiers of the format; those left over are appended.
        formatters: What each specifier does, by its letter; an unknown one stays as it is.
    """
    rest = list(args)

    def fill(match: re.Match[str]) -> str:
        if match[1] == "%":
            return "%"
        formatter = formatters.get(match[1])
        if formatter is None or not rest:
            return match[0]
        argument = rest.pop(0)
        try:
            return str(formatter(argument))
        except Exception:
            return shown(argument)

    head = _SPECIFIER.sub(fill, message) if isinstance(message, str) else shown(message)
    return bounded(" ".join([head, *map(shown, rest)]))


def shown(argument: object) -> str:
    """Return one argument as text: strings as they are, exceptions with their traceback."""
    try:
        if isinstance(argument, BaseException):
            return error_text(argument)
        return argument if type(argument) is str else str(argument)
    except Exception:
        return f"<unprintable {type(argument).__name__}>"


def error_text(error: BaseException) -> str:
    """Return an exception with its traceback, causes and members; the kernel's frames are cut."""
    lines = traceback.format_exception(type(error), error, trimmed(error.__traceback__))
    return "".join(lines).rstrip("\n")


def bounded(text: str) -> str:
    """Cut lines that are too long, and drop the middle of what has too many."""
    if len(text) <= MAX_LINE and text.count("\n") < MAX_LINES:
        return text
    lines = text.split("\n")
    if len(lines) > MAX_LINES:
        half = MAX_LINES // 2
        gap = f"... {len(lines) - 2 * half} lines left out ..."
        lines = [*lines[:half], gap, *lines[-half:]]
    return "\n".join(line if len(line) <= MAX_LINE else f"{line[:MAX_LINE]}..." for line in lines)


def whole(argument: Any) -> str:
    """Return a number without its fraction, for ``%d`` and ``%i``; NaN for what is no number."""
    number = float(argument)
    return str(int(number)) if number - number == 0 else str(number)


FORMATTERS: Final[dict[str, Formatter]] = {
    "d": whole,
    "f": lambda argument: str(float(argument)),
    "i": whole,
    "s": shown,
}
"""The specifiers that every logger knows, beside ``%%``."""
