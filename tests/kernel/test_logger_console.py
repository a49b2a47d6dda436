"""The console sink: how lines look, and what its config refuses."""

from __future__ import annotations

import io
import time
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from dsh.kernel import Context, ValidationError
from dsh.kernel import logger_console as console
from dsh.kernel.logger import Logger, LogLevel, LogRecord
from dsh.kernel.logger_console import Config, ConsoleSink


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def record(
    root: Context, text: str, level: LogLevel = "info", name: str = "app", time_ms: int = 1_004
) -> LogRecord:
    return LogRecord(1, time_ms, name, level, text, None, weakref.ref(root.fiber))


def render(root: Context, config: dict[str, Any], text: str, **facts: Any) -> str:
    return ConsoleSink(Config.validate(config)).render(record(root, text, **facts))


@pytest.mark.parametrize(
    ("config", "line"),
    [
        ({}, "1970-01-01 00:00:01 [I] app hello"),
        ({"showTime": False}, "[I] app hello"),
        ({"showTime": "hh:mm:ss.SSS|"}, "00:00:01.004|[I] app hello"),
        ({"showTime": False, "label": {"width": 6}}, "[I] app    hello"),
        ({"showTime": False, "label": {"width": 6, "align": "right"}}, "[I]    app hello"),
        ({"showTime": False, "label": {"margin": 3}}, "[I] app   hello"),
        ({"showTime": False, "maxLength": 4}, "[I] app hell..."),
    ],
)
async def test_a_line_looks_as_configured(root: Context, config: dict[str, Any], line: str) -> None:
    assert render(root, config, "hello") == line


async def test_later_lines_stand_below_the_text_of_the_first(root: Context) -> None:
    config = {"showTime": False, "label": {"width": 5}}
    assert render(root, config, "one\ntwo\n") == "[I] app   one\n          two\n          "


async def test_the_time_since_the_last_record_is_shown(root: Context) -> None:
    sink = ConsoleSink(Config.validate({"showDiff": True, "showTime": False}))
    shown = [sink.render(record(root, "x", time_ms=ms)) for ms in (10, 35, 5)]
    assert shown == ["[I] app x +0ms", "[I] app x +25ms", "[I] app x +0ms"]


async def test_control_characters_are_shown_not_sent(root: Context) -> None:
    line = render(root, {"showTime": False}, "a\x1b[2Jb\r\nc\x9b", name="x\x07\ny")
    assert line == f"[I] x\\x07 y a\\x1b[2Jb\n{' ' * 12}c\\x9b"


async def test_colors_need_a_terminal_unless_configured(
    root: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    def written(config: dict[str, Any], stream: io.StringIO) -> str:
        ConsoleSink(Config.validate(config), stream).write(record(root, "x"))
        return stream.getvalue()

    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[32m[I]\x1b[0m" in written({}, Terminal())
    assert "\x1b" not in written({}, io.StringIO())
    assert "\x1b" not in written({"colors": False}, Terminal())
    assert "\x1b" not in written({"colors": 0}, Terminal())
    assert "\x1b" in written({"colors": 3}, io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in written({}, Terminal())


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ([], "expected a mapping, got list"),
        ({"color": False}, r"unknown field \(did you mean 'colors'\?\) \(at color\)"),
        ({"colors": True}, r"false or a number from 0 to 3 \(at colors\)"),
        ({"colors": 4}, r"\(at colors\)"),
        ({"maxLength": 0}, r"a whole number of at least 1 \(at maxLength\)"),
        ({"maxLength": "10"}, r"\(at maxLength\)"),
        ({"levels": {"app": "loud"}}, r"one of debug, info, warn, error \(at levels.app\)"),
        ({"levels": {"app": 2}}, r"\(at levels.app\)"),
        ({"levels": []}, r"\(at levels\)"),
        ({"showDiff": 1}, r"true or false \(at showDiff\)"),
        ({"showTime": True}, r"false or a pattern \(at showTime\)"),
        ({"label": {"align": "middle"}}, r"left or right \(at label.align\)"),
        ({"label": {"width": -1}}, r"\(at label.width\)"),
        ({"label": {"with": 1}}, r"\(at label.with\)"),
        ({"label": 1}, "expected a mapping, got int"),
    ],
)
def test_a_config_that_does_not_fit_is_refused_by_field(config: Any, problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        Config.validate(config)


def test_all_problems_of_a_config_are_named_at_once() -> None:
    with pytest.raises(ValidationError) as caught:
        Config.validate({"x": 1, "colors": 9, "label": {"y": 1}})
    assert [path for _, path in caught.value.issues] == ["x", "colors", "label.y"]


async def test_the_row_shows_what_its_level_admits_on_stderr(
    root: Context, capsys: pytest.CaptureFixture[str]
) -> None:
    await root.plugin(Logger)
    fiber = await root.plugin(console, {"levels": {"default": "warn"}, "showTime": False})
    root.require(Logger).info("quiet")
    root.require(Logger).warn("loud")
    await fiber.dispose()
    root.require(Logger).warn("gone")
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "[W] root loud\n")


async def test_without_a_logger_the_row_brings_one(
    root: Context, capsys: pytest.CaptureFixture[str]
) -> None:
    fiber = await root.plugin(console, {"showTime": False})
    await root.inject([Logger], lambda ctx: ctx.require(Logger).named("x").info("hello"))
    assert capsys.readouterr().err == "[I] x hello\n"
    await fiber.dispose()
    assert root.get(Logger) is None
