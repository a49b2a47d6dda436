"""Plugin ``logger-console``: log records as lines on stderr.

It attaches to whatever logger its place in the tree has, now or later. Where none is there when
it starts, it brings one; a row of its own for the logger therefore stands before this one.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal, Self, TextIO, cast

from dsh.base.text import did_you_mean, replace_surrogates
from dsh.base.values import value
from dsh.kernel import Context, ValidationError
from dsh.kernel.logger import LEVELS, MAX_LINE, Logger, LogLevel, LogRecord

__all__ = ["Config", "ConsoleSink", "Label", "apply", "name"]

name = "logger-console"

_MARKS: Final = {"debug": "D", "info": "I", "warn": "W", "error": "E"}
_LEVEL_COLORS: Final = {"debug": 90, "info": 32, "warn": 33, "error": 31}
_NAME_COLORS: Final = (36, 35, 34, 32, 33, 96, 95, 94)
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_TIME: Final = {"yyyy": "%Y", "MM": "%m", "dd": "%d", "hh": "%H", "mm": "%M", "ss": "%S"}
_TIME_PART: Final = re.compile("SSS|" + "|".join(_TIME))


@value
class Label:
    """How names are set."""

    width: int = 0
    """Narrowest column of names; 0 sets them as they are."""
    margin: int = 1
    """Blanks between name and text."""
    align: Literal["left", "right"] = "left"
    """Side that a narrower name stands on."""


@value
class Config:
    """What the console shows, and how."""

    colors: Literal[False] | int | None = None
    """False for none; 1 to 3 for some. As the terminal says when left out."""
    max_length: int = MAX_LINE
    """Longest line, in characters."""
    levels: Mapping[str, LogLevel] | None = None
    """Least level shown, by logger name; ``default`` is for the others."""
    show_diff: bool = False
    """End each record with the time since the one before."""
    show_time: str | Literal[False] = "yyyy-MM-dd hh:mm:ss "
    """Pattern of the time in front: ``yyyy MM dd hh mm ss SSS``; False for none."""
    label: Label = Label()
    """How names are set."""

    FIELDS: ClassVar[tuple[str, ...]] = (
        "colors",
        "maxLength",
        "levels",
        "showDiff",
        "showTime",
        "label",
    )

    @classmethod
    def validate(cls, raw: object) -> Self:
        """Return the config behind a row's mapping.

        Raises:
            ValidationError: it names every field that does not fit.
        """
        if isinstance(raw, cls):
            return raw
        reader = _Reader(raw, "", cls.FIELDS)
        config = cls(
            colors=reader.colors(),
            max_length=reader.whole("maxLength", MAX_LINE, least=1),
            levels=reader.levels(),
            show_diff=reader.flag("showDiff"),
            show_time=reader.time(),
            label=reader.label(),
        )
        if reader.issues:
            raise ValidationError(reader.issues)
        return config


def apply(ctx: Context, config: Config) -> None:
    """Show records until the plugin unloads."""
    if ctx.get(Logger, strict=False) is None:
        ctx.plugin(Logger)
    ctx.inject([Logger], lambda inner: inner.require(Logger).sink(ConsoleSink(config)))


class ConsoleSink:
    """Writes each record to a text stream; control characters never reach the terminal.

    Args:
        config: See `Config`.
        stream: The process's stderr at the time of each write when None.
    """

    def __init__(self, config: Config, stream: TextIO | None = None) -> None:
        self.levels: Mapping[str, LogLevel] = config.levels or {}
        self._config = config
        self._stream = stream
        self._last_ms: int | None = None

    def write(self, record: LogRecord) -> None:
        """See `dsh.kernel.logger.Sink`."""
        stream = self._stream or sys.stderr
        # A process without a terminal may have no stderr at all.
        if stream is not None:
            stream.write(self.render(record, colors=self._colors(stream)) + "\n")
            stream.flush()

    def render(self, record: LogRecord, *, colors: bool = False) -> str:
        """Return a record as it is shown; lines after the first are indented below its text."""
        config = self._config
        stamp = "" if config.show_time is False else _stamp(record.time_ms, config.show_time)
        mark, label = f"[{_MARKS[record.level]}]", self._label(record.name)
        indent = " " * (len(stamp) + len(mark) + 1 + len(label))
        lines = [_cut(line, config.max_length) for line in _clean(record.text).split("\n")]
        if config.show_diff:
            lines[-1] += f" +{self._since(record.time_ms)}ms"
        if colors:
            mark = _paint(mark, _LEVEL_COLORS[record.level])
            label = _paint(label, _NAME_COLORS[sum(record.name.encode()) % len(_NAME_COLORS)])
        return f"\n{indent}".join([f"{stamp}{mark} {label}{lines[0]}", *lines[1:]])

    def _label(self, name: str) -> str:
        label = self._config.label
        name = _clean(name).replace("\n", " ")
        padded = name.rjust(label.width) if label.align == "right" else name.ljust(label.width)
        return padded + " " * label.margin

    def _since(self, now_ms: int) -> int:
        last, self._last_ms = self._last_ms, now_ms
        return 0 if last is None else max(0, now_ms - last)

    def _colors(self, stream: TextIO) -> bool:
        chosen = self._config.colors
        if chosen is not None:
            return bool(chosen)
        return stream.isatty() and not os.environ.get("NO_COLOR")


class _Reader:
    """Reads fields of a mapping and collects what is wrong with them."""

    def __init__(self, raw: object, path: str, known: tuple[str, ...]) -> None:
        self.issues: list[tuple[str, str]] = []
        self._path = path
        if raw is not None and not isinstance(raw, Mapping):
            self.issues.append((f"expected a mapping, got {type(raw).__name__}", path))
            raw = None
        self._raw: Mapping[Any, Any] = {} if raw is None else raw
        for key in self._raw:
            if key not in known:
                hint = did_you_mean(str(key), known)
                self.issues.append((f"unknown field{hint}", f"{path}{key}"))

    def wrong(self, field: str, expected: str) -> None:
        self.issues.append((f"expected {expected}", f"{self._path}{field}"))

    def whole(self, field: str, default: int, *, least: int) -> int:
        found = self._raw.get(field)
        if found is None:
            return default
        if isinstance(found, bool) or not isinstance(found, int) or found < least:
            self.wrong(field, f"a whole number of at least {least}")
            return default
        return found

    def flag(self, field: str) -> bool:
        found = self._raw.get(field)
        if found is not None and not isinstance(found, bool):
            self.wrong(field, "true or false")
        return found is True

    def colors(self) -> Literal[False] | int | None:
        found = self._raw.get("colors")
        if found is None or found is False:
            return found
        if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found <= 3:
            self.wrong("colors", "false or a number from 0 to 3")
            return None
        return found

    def levels(self) -> Mapping[str, LogLevel] | None:
        found = self._raw.get("levels")
        if found is None:
            return None
        if not isinstance(found, Mapping):
            self.wrong("levels", "a mapping of logger names to levels")
            return None
        for key, level in found.items():
            if level not in LEVELS:
                self.wrong(f"levels.{key}", f"one of {', '.join(LEVELS)}")
        return cast("Mapping[str, LogLevel]", dict(found))

    def time(self) -> str | Literal[False]:
        found = self._raw.get("showTime")
        if found is None:
            return "yyyy-MM-dd hh:mm:ss "
        if found is not False and not isinstance(found, str):
            self.wrong("showTime", "false or a pattern")
            return False
        return found

    def label(self) -> Label:
        inner = _Reader(self._raw.get("label"), "label.", ("width", "margin", "align"))
        align: Literal["left", "right"] = "right" if inner.side() == "right" else "left"
        label = Label(inner.whole("width", 0, least=0), inner.whole("margin", 1, least=0), align)
        self.issues += inner.issues
        return label

    def side(self) -> object:
        found = self._raw.get("align")
        if found not in (None, "left", "right"):
            self.wrong("align", "left or right")
        return found


def _stamp(time_ms: int, pattern: str) -> str:
    now = time.localtime(time_ms / 1000)

    def part(match: re.Match[str]) -> str:
        if match[0] == "SSS":
            return f"{time_ms % 1000:03}"
        return time.strftime(_TIME[match[0]], now)

    return _TIME_PART.sub(part, pattern)


def _clean(text: str) -> str:
    """Show control characters instead of sending them; tabs and line breaks stay."""
    text = replace_surrogates(text.replace("\r\n", "\n"))
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def _cut(line: str, length: int) -> str:
    return line if len(line) <= length else f"{line[:length]}..."


def _paint(text: str, color: int) -> str:
    return f"\x1b[{color}m{text}\x1b[0m"
