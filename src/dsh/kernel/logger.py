"""The service ``logger``: records with the name of whoever logs, kept, and handed to sinks."""

from __future__ import annotations

import logging
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, ClassVar, Final, Protocol

from dsh.base.clock import SYSTEM_CLOCK, Clock
from dsh.kernel._log_record import (
    FORMATTERS,
    LEVELS,
    MAX_LINE,
    SEVERITY,
    Formatter,
    LogLevel,
    LogRecord,
    hyphenated,
    text_of,
)
from dsh.kernel.context import Context
from dsh.kernel.effect import Effect
from dsh.kernel.service import Service

__all__ = ["KEPT", "LEVELS", "MAX_LINE", "Log", "LogLevel", "LogRecord", "Logger", "Sink"]

KEPT: Final = 1_000
"""How many records a logger keeps; older ones go."""

_STANDARD: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "error": logging.ERROR,
}


class Sink(Protocol):
    """Where records go.

    Attributes:
        levels: The least level this sink takes, by logger name; ``default`` is for the others.
    """

    levels: Mapping[str, LogLevel]

    def write(self, record: LogRecord) -> None:
        """Take one record. Must not block; an error is reported, and other sinks still write."""
        ...


class Log:
    """Writes records under one name; cheap, and good for as long as its plugin is."""

    __slots__ = ("_logger", "_origin", "level", "name")

    def __init__(
        self, logger: Logger, name: str, level: LogLevel | None, origin: weakref.ref[Any]
    ) -> None:
        self._logger, self._origin = logger, origin
        self.name, self.level = name, level

    def error(self, message: object, *args: object) -> None:
        """Log what went wrong; see `Logger` for formats."""
        self._logger.record("error", self, message, args)

    def warn(self, message: object, *args: object) -> None:
        """Log what looks wrong and was coped with."""
        self._logger.record("warn", self, message, args)

    def info(self, message: object, *args: object) -> None:
        """Log what people want to know of a normal run."""
        self._logger.record("info", self, message, args)

    def debug(self, message: object, *args: object) -> None:
        """Log what helps to find a mistake."""
        self._logger.record("debug", self, message, args)

    @property
    def origin(self) -> weakref.ref[Any]:
        """The plugin that logs, weakly."""
        return self._origin


class Logger(Service):
    """Logs in the name of its caller.

    The name is, in this order: the one asked for with `named`; ``name`` of an intercept on the
    service ``logger``; the plugin's own, hyphenated. A service that logs in its methods does so
    under its own name, whoever calls them.

    A message may hold ``%s %d %i %f %%`` and what `formatter` added; arguments left over are
    appended. An exception gives its traceback with causes and group members. Records are also
    written to the standard library's logger ``dsh.<name>``.
    """

    name = "logger"
    clock: ClassVar[Clock] = SYSTEM_CLOCK

    def __init__(self, ctx: Context, config: Any = None) -> None:
        self._serials = count(1)
        self._kept: deque[LogRecord] = deque(maxlen=KEPT)
        self._sinks: dict[object, Sink] = {}
        self._formatters = dict(FORMATTERS)
        super().__init__(ctx, config)

    def error(self, message: object, *args: object) -> None:
        """Log what went wrong, under the caller's name."""
        self.record("error", self.named(), message, args)

    def warn(self, message: object, *args: object) -> None:
        """Log what looks wrong and was coped with, under the caller's name."""
        self.record("warn", self.named(), message, args)

    def info(self, message: object, *args: object) -> None:
        """Log what people want to know of a normal run, under the caller's name."""
        self.record("info", self.named(), message, args)

    def debug(self, message: object, *args: object) -> None:
        """Log what helps to find a mistake, under the caller's name."""
        self.record("debug", self.named(), message, args)

    def named(self, name: str | None = None) -> Log:
        """Return a log with a name of its own, or the caller's.

        Raises:
            ValueError: an intercept's ``level`` is none of the levels.
        """
        reader = self._via_or_none() or self.ctx
        fiber = reader._reader or reader.fiber
        layers = self.resolve_config() if reader.intercepts(self._binding.name) else {}
        level = layers.get("level")
        if level is not None and level not in LEVELS:
            raise ValueError(f"unknown log level {level!r}; use one of {', '.join(LEVELS)}")
        found = name or layers.get("name") or hyphenated(fiber.name)
        return Log(self, str(found), level, weakref.ref(fiber))

    def sink(self, sink: Sink) -> Effect:
        """Hand every record that a sink's levels admit to it, until the caller unloads."""

        def attach() -> Callable[[], object]:
            key = object()
            self._sinks[key] = sink
            return lambda: self._sinks.pop(key, None)

        return self.caller.effect(attach, "logger.sink()")

    def formatter(self, letter: str, formatter: Formatter) -> Effect:
        """Let ``%<letter>`` in messages show an argument in another way, until the caller unloads.

        Raises:
            ValueError: it is not one ASCII letter.
        """
        if len(letter) != 1 or not (letter.isascii() and letter.isalpha()):
            raise ValueError(f"a format specifier is one ASCII letter, got {letter!r}")

        def attach() -> Callable[[], object]:
            former = self._formatters.get(letter)
            self._formatters[letter] = formatter

            def undo() -> None:
                # Someone else may have taken the letter over in the meantime.
                if self._formatters.get(letter) is not formatter:
                    return
                if former is None:
                    del self._formatters[letter]
                else:
                    self._formatters[letter] = former

            return undo

        return self.caller.effect(attach, f'logger.formatter("{letter}")')

    def records(self) -> tuple[LogRecord, ...]:
        """Return the latest records, oldest first; at most `KEPT`, from ``info`` upwards."""
        return tuple(self._kept)

    def record(self, level: LogLevel, log: Log, message: object, args: tuple[object, ...]) -> None:
        """Write one record to all who take it; formats only if someone does."""
        # A copy: worker threads may log while a sink comes or goes.
        attached = tuple(self._sinks.values())
        sinks = [sink for sink in attached if admits(sink.levels, log, level)]
        keeps = admits({}, log, level)
        standard = _standard_logger(log.name)
        bridged = standard.isEnabledFor(_STANDARD[level])
        if not (sinks or keeps or bridged):
            return
        made = self._make(level, log, message, args)
        if keeps:
            self._kept.append(made)
        if bridged:
            _hand_over(standard, made)
        for sink in sinks:
            self._write(sink, made)

    def _make(
        self, level: LogLevel, log: Log, message: object, args: tuple[object, ...]
    ) -> LogRecord:
        alone = message if isinstance(message, BaseException) and not args else None
        return LogRecord(
            serial=next(self._serials),
            time_ms=self.clock.now_ms(),
            name=log.name,
            level=level,
            text=text_of(message, args, self._formatters),
            error=alone,
            origin=log.origin,
        )

    def _write(self, sink: Sink, record: LogRecord) -> None:
        try:
            sink.write(record)
        except Exception as error:
            self.ctx.report(error, self.ctx.fiber, f"log sink {type(sink).__name__}")


def admits(levels: Mapping[str, LogLevel], log: Log, level: LogLevel) -> bool:
    """Tell whether thresholds admit a level: by name, else default, else the log's, else info."""
    least = levels.get(log.name) or levels.get("default") or log.level or "info"
    return SEVERITY[level] >= SEVERITY[least]


def _standard_logger(name: str) -> logging.Logger:
    """Return the standard logger that someone has set up for a name, else that of all dsh.

    Making one for each name would keep it for ever, and names may be those of sessions.
    """
    found = logging.Logger.manager.loggerDict.get(f"dsh.{name}")
    return found if isinstance(found, logging.Logger) else logging.getLogger("dsh")


def _hand_over(standard: logging.Logger, record: LogRecord) -> None:
    level = _STANDARD[record.level]
    made = standard.makeRecord(f"dsh.{record.name}", level, "", 0, record.text, (), None)
    made.created = record.time_ms / 1000
    standard.handle(made)
