"""The logger service: names, levels, texts, sinks, and what happens when they fail."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import pytest
from kernel_support import Reports

from dsh.kernel import Context, Service, plugin
from dsh.kernel.logger import KEPT, MAX_LINE, Log, Logger, LogLevel, LogRecord


class Recorder:
    """Keeps what it gets."""

    def __init__(self, levels: Mapping[str, LogLevel] | None = None) -> None:
        self.levels: Mapping[str, LogLevel] = levels or {}
        self.records: list[LogRecord] = []

    def write(self, record: LogRecord) -> None:
        self.records.append(record)

    @property
    def texts(self) -> list[str]:
        return [record.text for record in self.records]

    @property
    def names(self) -> list[str]:
        return [record.name for record in self.records]


class Failing(Recorder):
    """Never takes anything."""

    def write(self, record: LogRecord) -> None:
        raise OSError("disk full")


@pytest.fixture
async def logger(root: Context) -> Logger:
    await root.plugin(Logger)
    return root.require(Logger)


@pytest.fixture
async def sink(logger: Logger) -> Recorder:
    recorder = Recorder({"default": "debug"})
    logger.sink(recorder)
    return recorder


def text(logger: Logger, *message: Any) -> str:
    logger.info(*message)
    return logger.records()[-1].text


async def test_the_root_logs_as_root(logger: Logger, sink: Recorder) -> None:
    logger.info("x")
    assert sink.names == ["root"]
    assert sink.records[0].fiber is logger.ctx.root.fiber


async def test_an_explicit_name_is_used(logger: Logger, sink: Recorder) -> None:
    logger.named("mine").warn("x")
    assert [(record.name, record.level) for record in sink.records] == [("mine", "warn")]


async def test_a_plugin_logs_under_its_hyphenated_name(root: Context, sink: Recorder) -> None:
    @plugin(name="systemPrompt_text", inject=[Logger])
    def body(ctx: Context) -> None:
        ctx.require(Logger).info("x")

    await root.plugin(body)
    assert sink.names == ["system-prompt-text"]


async def test_an_intercept_names_and_levels_what_is_below_it(
    root: Context, logger: Logger, sink: Recorder
) -> None:
    inner = root.intercept(Logger, {"name": "outer"}).intercept(Logger, {"level": "debug"})

    @plugin(name="inner", inject=[Logger])
    def body(ctx: Context) -> None:
        ctx.require(Logger).debug("x")

    await inner.plugin(body)
    assert sink.names == ["outer"]
    assert [record.text for record in logger.records()] == ["x"]


class Talker(Service):
    """Logs under its own name, from its start and for its callers."""

    name = "talker"
    inject = ("logger",)

    def start(self) -> None:
        self.ctx.require(Logger).info("start")

    def by_itself(self) -> None:
        self.ctx.require(Logger).info("itself")

    def for_caller(self) -> None:
        self.caller.require(Logger).info("caller")


async def test_a_service_logs_under_its_own_name_in_start_and_methods(
    root: Context, logger: Logger, sink: Recorder
) -> None:
    await root.plugin(Talker)

    @plugin(name="user", inject=[Talker])
    def user(ctx: Context) -> None:
        ctx.require(Talker).by_itself()
        ctx.require(Talker).for_caller()

    await root.plugin(user)
    assert list(zip(sink.texts, sink.names, strict=True)) == [
        ("start", "talker"),
        ("itself", "talker"),
        ("caller", "talker"),
    ]


async def test_a_callers_intercept_overrides_the_services_name(
    root: Context, logger: Logger, sink: Recorder
) -> None:
    await root.plugin(Talker)
    below = root.intercept(Logger, {"name": "special"})

    @plugin(name="user", inject=[Talker])
    def user(ctx: Context) -> None:
        ctx.require(Talker).by_itself()
        ctx.require(Talker).for_caller()

    await below.plugin(user)
    assert sink.names[1:] == ["talker", "special"]


async def test_an_unknown_level_of_an_intercept_is_refused(root: Context, logger: Logger) -> None:
    with pytest.raises(ValueError, match="unknown log level 'loud'; use one of debug, info"):
        root.intercept(Logger, {"level": "loud"}).require(Logger).info("x")


@pytest.mark.parametrize(
    ("levels", "level", "shown"),
    [
        ({}, "info", ["info", "warn", "error"]),
        ({"default": "warn"}, "info", ["warn", "error"]),
        ({"default": "error", "app": "debug"}, "info", ["debug", "info", "warn", "error"]),
        ({"other": "debug"}, "info", ["info", "warn", "error"]),
    ],
)
async def test_a_sink_takes_its_level_and_what_is_more_severe(
    logger: Logger, levels: Mapping[str, LogLevel], level: str, shown: list[str]
) -> None:
    recorder = Recorder(levels)
    logger.sink(recorder)
    log = logger.named("app")
    for write in (log.debug, log.info, log.warn, log.error):
        write("x")
    assert [record.level for record in recorder.records] == shown


async def test_the_latest_thousand_records_are_kept(logger: Logger) -> None:
    for number in range(KEPT + 5):
        logger.info(number)
    logger.debug("not kept")
    kept = logger.records()
    assert (len(kept), kept[0].text, kept[-1].text) == (KEPT, "5", str(KEPT + 4))
    assert [record.serial for record in kept] == list(range(6, KEPT + 6))


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        (("%s is %d, %i, %f", "x", 1.9, "2", 1), "x is 1, 2, 1.0"),
        (("100%% of %s",), "100% of %s"),
        (("%s", "a", "b", 3), "a b 3"),
        (("%o %O %c %q", 1, 2, 3, 4), "%o %O %c %q 1 2 3 4"),
        (("%d %f", "no", None), "no None"),
        (("%d %d", float("nan"), float("-inf")), "nan -inf"),
        (({"a": 1}, [2]), "{'a': 1} [2]"),
        ((None,), "None"),
        (("",), ""),
    ],
)
async def test_formats(logger: Logger, message: tuple[Any, ...], shown: str) -> None:
    assert text(logger, *message) == shown


async def test_a_plugin_may_add_a_specifier_until_it_unloads(root: Context, logger: Logger) -> None:
    def body(ctx: Context) -> None:
        ctx.require(Logger).formatter("j", lambda argument: f"<{argument}>")
        ctx.require(Logger).formatter("s", lambda argument: f"s:{argument}")

    fiber = await root.inject([Logger], body)
    assert text(logger, "%j %s", 1, 2) == "<1> s:2"
    await fiber.dispose()
    assert text(logger, "%j %s", 1, 2) == "%j 1 2"


@pytest.mark.parametrize("letter", ["", "ab", "1", "%", "ä"])
async def test_a_specifier_is_one_letter(logger: Logger, letter: str) -> None:
    with pytest.raises(ValueError, match="one ASCII letter"):
        logger.formatter(letter, str)


class Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("no")


async def test_nothing_that_is_logged_makes_logging_fail(logger: Logger) -> None:
    logger.formatter("x", lambda _: 1 // 0)
    assert text(logger, Unprintable()) == "<unprintable Unprintable>"
    assert text(logger, "%s %x", Unprintable(), 5) == "<unprintable Unprintable> 5"
    assert text(logger, "\ud800") == "\ud800"


async def test_long_lines_and_long_records_are_cut(logger: Logger) -> None:
    assert text(logger, "x" * MAX_LINE) == "x" * MAX_LINE
    assert text(logger, "y\n" + "x" * (MAX_LINE + 1)) == "y\n" + "x" * MAX_LINE + "..."
    lines = text(logger, "\n".join(map(str, range(5000)))).split("\n")
    assert (len(lines), lines[0], lines[-1]) == (1001, "0", "4999")
    assert lines[500] == "... 4000 lines left out ..."


def broken() -> BaseException:
    try:
        try:
            raise KeyError("inner")
        except KeyError as error:
            raise ValueError("outer") from error
    except ValueError as error:
        return error


async def test_an_exception_alone_is_logged_with_its_cause(logger: Logger) -> None:
    error = broken()
    shown = text(logger, error)
    assert shown.index("KeyError: 'inner'") < shown.index("direct cause")
    assert shown.endswith("ValueError: outer")
    assert logger.records()[-1].error is error


async def test_an_exception_group_is_logged_with_its_members(logger: Logger) -> None:
    shown = text(logger, "two: %s", ExceptionGroup("both", [ValueError("a"), TypeError("b")]))
    assert "two:" in shown
    assert "ValueError: a" in shown
    assert "TypeError: b" in shown
    assert logger.records()[-1].error is None


async def test_a_sink_that_fails_is_reported_and_starves_nobody(
    root: Context, reports: Reports, logger: Logger
) -> None:
    last = Recorder()
    logger.sink(Failing())
    logger.sink(last)
    logger.info("x")
    assert last.texts == ["x"]
    assert (reports.texts, reports.labels) == (["disk full"], ["log sink Failing"])


async def test_a_sink_goes_with_its_plugin(root: Context, logger: Logger) -> None:
    recorder = Recorder()
    fiber = await root.inject([Logger], lambda ctx: ctx.require(Logger).sink(recorder))
    logger.info("one")
    await fiber.dispose()
    logger.info("two")
    assert recorder.texts == ["one"]


async def test_one_sink_object_may_be_attached_twice(logger: Logger) -> None:
    recorder = Recorder()
    first, _ = logger.sink(recorder), logger.sink(recorder)
    first.dispose()
    logger.info("x")
    assert recorder.texts == ["x"]


async def test_a_sink_that_logs_does_not_lose_others(logger: Logger) -> None:
    class Echo(Recorder):
        def write(self, record: LogRecord) -> None:
            super().write(record)
            if record.text == "once":
                logger.info("again")

    echo = Echo()
    logger.sink(echo)
    logger.info("once")
    assert echo.texts == ["once", "again"]


async def test_records_reach_the_standard_log(
    logger: Logger, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "dsh"):
        logger.named("session-1").info("a %s", "b")
        logger.named("session-1").debug("below its level")
    assert caplog.record_tuples == [("dsh.session-1", logging.INFO, "a b")]


async def test_names_do_not_pile_up_in_the_standard_log(logger: Logger) -> None:
    before = len(logging.Logger.manager.loggerDict)
    for number in range(50):
        logger.named(f"session-{number}").error("x")
    assert len(logging.Logger.manager.loggerDict) == before


async def test_a_log_does_not_keep_its_plugin_alive(root: Context, logger: Logger) -> None:
    logs: list[Log] = []
    fiber = await root.inject([Logger], lambda ctx: logs.append(ctx.require(Logger).named()))
    await fiber.dispose()
    logs[0].info("late")
    assert logger.records()[-1].text == "late"
