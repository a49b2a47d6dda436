"""What plugin code raises to end a task or the process is that plugin's failure."""

from __future__ import annotations

import asyncio
import signal
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from kernel_support import Reports, quiet, ticks

from dsh.kernel import (
    INTERNAL_PLUGIN,
    INTERNAL_STATUS,
    INTERNAL_UPDATE,
    Bail,
    Context,
    Emit,
    FiberState,
    Inject,
    Parallel,
    Serial,
    Service,
    StrayExit,
    Waterfall,
    WaterfallSync,
    plugin,
)
from dsh.kernel.timer import Timer

S = FiberState


class Odd(BaseException):
    """No kind of exception that anybody knows."""


STRAYS = [SystemExit(3), KeyboardInterrupt("me"), GeneratorExit(), Odd("odd"), Odd()]
strays = pytest.mark.parametrize("stray", STRAYS, ids=repr)
CANCELLED = [*STRAYS, asyncio.CancelledError()]
all_strays = pytest.mark.parametrize("stray", CANCELLED, ids=repr)


def raising(error: BaseException) -> Callable[..., Any]:
    def call(*_: object) -> Any:
        raise error

    return call


def raising_later(error: BaseException) -> Callable[..., Awaitable[Any]]:
    async def call(*_: object) -> Any:
        await asyncio.sleep(0)
        raise error

    return call


def both(error: BaseException) -> list[Callable[..., Any]]:
    return [raising(error), raising_later(error)]


@pytest.fixture(autouse=True)
def silent_loop() -> Iterator[None]:
    """Nothing may be left to the loop's exception handler or the interpreter."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


# bodies


@all_strays
@pytest.mark.parametrize("later", [False, True])
async def test_body_that_means_to_end_more_than_itself_fails_and_is_undone(
    root: Context, reports: Reports, log: list[object], stray: BaseException, later: bool
) -> None:
    raise_it = both(stray)[later]

    def body(ctx: Context) -> Any:
        ctx.provide("foo", 1)
        ctx.defer(lambda: log.append("undone"))
        return raise_it()

    fiber = root.plugin(body)
    with pytest.raises(StrayExit) as caught:
        await fiber

    assert caught.value.__cause__ is stray
    assert type(stray).__name__ in str(caught.value)
    assert (fiber.state, fiber.error, log) == (S.FAILED, caught.value, ["undone"])
    assert reports.errors == [caught.value]
    assert (reports.owners, reports.labels) == (["body"], ["apply"])
    assert root.get("foo", strict=False) is None


@strays
async def test_failed_body_runs_again_after_a_stray_exit(
    root: Context, reports: Reports, stray: BaseException
) -> None:
    errors = [stray]

    async def body(ctx: Context) -> None:
        await asyncio.sleep(0)
        if errors:
            raise errors.pop()

    fiber = root.plugin(body)
    await quiet(fiber)
    await fiber.restart()
    assert (fiber.state, fiber.error) == (S.ACTIVE, None)


@strays
async def test_stray_exit_of_a_body_that_may_be_cancelled_is_its_failure(
    root: Context, reports: Reports, stray: BaseException
) -> None:
    body = plugin(name="soft", cancel_setup=True)(raising_later(stray))
    fiber = root.plugin(body)
    with pytest.raises(StrayExit, match="soft"):
        await fiber
    assert fiber.state is S.FAILED


@all_strays
async def test_stray_exit_of_start_fails_the_service_and_frees_its_name(
    root: Context, reports: Reports, stray: BaseException
) -> None:
    class Shop(Service):
        name = "shop"

        async def start(self) -> None:
            await asyncio.sleep(0)
            raise stray

    fiber = root.plugin(Shop)
    with pytest.raises(StrayExit):
        await fiber
    assert root.get("shop", strict=False) is None


@all_strays
async def test_stray_exit_of_a_check_counts_as_no(
    root: Context, reports: Reports, stray: BaseException
) -> None:
    root.provide("foo", 1, check=raising(stray))
    fiber = await root.inject(["foo"], lambda ctx: None)
    assert fiber.state is S.PENDING
    assert {type(error) for error in reports.errors} == {StrayExit}


@all_strays
async def test_stray_exit_of_a_child_s_generator_body_closes_the_generator(
    root: Context, reports: Reports, log: list[object], stray: BaseException
) -> None:
    async def body(ctx: Context) -> AsyncIterator[Callable[[], object]]:
        try:
            yield lambda: log.append("undo")
            raise stray
        finally:
            log.append("closed")

    fiber = root.plugin(body)
    with pytest.raises(StrayExit):
        await fiber
    assert log == ["closed", "undo"]


# effects


@strays
async def test_stray_exit_of_a_sync_setup_reaches_the_caller_and_undoes(
    root: Context, log: list[object], stray: BaseException
) -> None:
    def setup() -> Iterator[Callable[[], object]]:
        yield lambda: log.append("undone")
        raise stray

    with pytest.raises(type(stray)):
        root.effect(setup)
    assert log == ["undone"]


@all_strays
async def test_stray_exit_of_an_async_setup_raises_when_awaited(
    root: Context, reports: Reports, stray: BaseException
) -> None:
    effect = root.effect(raising_later(stray), "odd")
    with pytest.raises(StrayExit, match="odd of plugin 'root'"):
        await effect
    assert effect.done
    assert len(reports.errors) == 1


@all_strays
@pytest.mark.parametrize("later", [False, True])
async def test_stray_exit_of_an_undo_is_reported_and_the_others_run(
    root: Context, reports: Reports, log: list[object], stray: BaseException, later: bool
) -> None:
    raise_it = both(stray)[later]

    def setup() -> Iterator[Callable[..., object]]:
        yield lambda: log.append(1)
        yield raise_it
        yield lambda: log.append(2)

    def body(ctx: Context) -> None:
        ctx.effect(setup, "mixed")
        ctx.defer(raise_it, "alone")

    fiber = await root.plugin(body)
    await fiber.dispose()
    assert (fiber.state, log) == (S.DISPOSED, [2, 1])
    assert reports.labels == ["alone", "mixed"]
    assert {type(error) for error in reports.errors} == {StrayExit}

    effect = root.effect(setup, "direct")
    await effect.dispose()
    assert log == [2, 1, 2, 1]


# tasks


@strays
async def test_stray_exit_of_a_spawned_task_is_reported_and_the_loop_lives(
    root: Context, reports: Reports, stray: BaseException
) -> None:
    task = root.spawn(raising_later(stray)(), "odd")
    with pytest.raises(StrayExit):
        await task
    await ticks()
    assert reports.labels == ['ctx.spawn("odd")']


@all_strays
async def test_stray_exit_of_a_critical_task_fails_the_plugin(
    root: Context, reports: Reports, stray: BaseException
) -> None:
    fiber = await root.plugin(lambda ctx: ctx.spawn(raising_later(stray)(), "odd", critical=True))
    await ticks()
    await quiet(fiber)
    assert fiber.state is S.FAILED
    assert isinstance(fiber.error, StrayExit)


async def test_task_cancelled_by_its_holder_is_no_failure(root: Context, reports: Reports) -> None:
    task = root.spawn(asyncio.sleep(60), "nap")
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert reports.errors == []


async def test_task_that_waits_for_one_that_goes_with_the_same_unload_is_no_failure(
    root: Context, reports: Reports
) -> None:
    def body(ctx: Context) -> None:
        async def wait() -> None:
            await inner

        outer = ctx.spawn(wait(), "outer")
        inner = ctx.spawn(asyncio.sleep(60), "inner")
        assert outer is not inner

    fiber = await root.plugin(body)
    await ticks()
    await fiber.dispose()
    assert reports.errors == []


@strays
async def test_stray_exit_of_a_timer_is_reported(
    root: Context, reports: Reports, stray: BaseException
) -> None:
    await root.plugin(Timer)
    timer = root.require(Timer)
    timer.timeout(0, raising(stray))
    timer.timeout(0, raising_later(stray))
    await asyncio.sleep(0.01)
    assert [type(error) for error in reports.errors] == [StrayExit, StrayExit]


# listeners


@all_strays
async def test_contained_emit_contains_a_stray_exit_and_runs_the_others(
    root: Context, reports: Reports, log: list[object], stray: BaseException
) -> None:
    ping = Emit[None]("test/contained", errors="contain")
    for call in both(stray):
        root.on(ping, call)
    root.on(ping, lambda _: log.append("ran"))

    root.emit(ping)
    await ticks()

    assert log == ["ran"]
    assert [type(error) for error in reports.errors] == [StrayExit, StrayExit]


@all_strays
@pytest.mark.parametrize("errors", ["raise", "veto"])
async def test_emit_raises_a_stray_exit_as_an_ordinary_error(
    root: Context, log: list[object], errors: Any, stray: BaseException
) -> None:
    ping = Emit[None]("test/raised", errors=errors)
    root.on(ping, raising(stray))
    root.on(ping, lambda _: log.append("ran"))
    with pytest.raises(StrayExit) as caught:
        root.emit(ping)
    assert caught.value.__cause__ is stray
    assert log == (["ran"] if errors == "raise" else [])


async def test_emitter_that_is_being_cancelled_may_still_tell_what_happened(
    root: Context, reports: Reports, log: list[object]
) -> None:
    ping = Emit[None]("test/last-words", errors="contain")
    root.on(ping, raising(asyncio.CancelledError()))
    root.on(ping, lambda _: log.append("told"))

    async def emitter() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            root.emit(ping)
            log.append("cleaned")

    task = asyncio.ensure_future(emitter())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert log == ["told", "cleaned"]


@all_strays
@pytest.mark.parametrize("later", [False, True])
async def test_parallel_groups_a_stray_exit_with_ordinary_errors(
    root: Context, stray: BaseException, later: bool
) -> None:
    ping = Parallel[None]("test/parallel")
    root.on(ping, both(stray)[later])
    root.on(ping, raising_later(KeyError("plain")))
    with pytest.raises(ExceptionGroup) as caught:
        await root.parallel(ping, None)
    assert {type(error) for error in caught.value.exceptions} == {StrayExit, KeyError}


@all_strays
@pytest.mark.parametrize("later", [False, True])
async def test_serial_and_waterfall_raise_a_stray_exit_as_an_ordinary_error(
    root: Context, stray: BaseException, later: bool
) -> None:
    ask = Serial[None, int]("test/serial")
    pass_on = Waterfall[None, int]("test/waterfall")
    root.on(ask, both(stray)[later])
    root.on(pass_on, lambda _, go_on: go_on())
    root.on(pass_on, both(stray)[later])
    with pytest.raises(StrayExit) as asked:
        await root.serial(ask, None)
    with pytest.raises(StrayExit) as passed:
        await root.waterfall(pass_on, None, lambda: 1)
    assert asked.value.__cause__ is passed.value.__cause__ is stray


@all_strays
async def test_bail_and_sync_waterfall_raise_a_stray_exit_as_an_ordinary_error(
    root: Context, stray: BaseException
) -> None:
    ask = Bail[None, int]("test/bail")
    pass_on = WaterfallSync[None, int]("test/waterfall-sync")
    root.on(ask, raising(stray))
    root.on(pass_on, raising(stray))
    with pytest.raises(StrayExit):
        root.bail(ask, None)
    with pytest.raises(StrayExit):
        root.waterfall_sync(pass_on, None, lambda: 1)


@all_strays
@pytest.mark.parametrize("later", [False, True])
async def test_what_the_inner_part_of_a_waterfall_raises_is_the_dispatcher_s_own(
    root: Context, stray: BaseException, later: bool
) -> None:
    pass_on = Waterfall[None, int]("test/waterfall")
    sync = WaterfallSync[None, int]("test/waterfall-sync")

    async def around(_: None, next: Any) -> int:
        result: int = await next()
        return result

    root.on(pass_on, around)
    root.on(sync, lambda _, go_on: go_on())
    with pytest.raises(type(stray)) as caught:
        await root.waterfall(pass_on, None, both(stray)[later])
    assert caught.value is stray
    with pytest.raises(type(stray)):
        root.waterfall_sync(sync, None, raising(stray))


@pytest.mark.parametrize("mode", ["serial", "waterfall", "parallel"])
async def test_cancelling_the_dispatcher_cancels_it_and_not_the_listener_s_plugin(
    root: Context, reports: Reports, mode: str
) -> None:
    events: dict[str, Any] = {
        "serial": Serial[None, int]("test/serial"),
        "waterfall": Waterfall[None, int]("test/waterfall"),
        "parallel": Parallel[None]("test/parallel"),
    }
    ended: list[str] = []

    async def listener(*_: object) -> Any:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(mode)

    root.on(events[mode], listener)

    async def dispatch() -> None:
        args: list[Any] = [lambda: 1] if mode == "waterfall" else []
        await getattr(root, mode)(events[mode], None, *args)

    task = asyncio.ensure_future(dispatch())
    await ticks(3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == [mode]
    assert reports.errors == []


@all_strays
async def test_stray_exit_at_a_mount_s_announcement_undoes_the_mount(
    root: Context, stray: BaseException
) -> None:
    listening = root.on(INTERNAL_PLUGIN, raising(stray))
    with pytest.raises(StrayExit):
        root.plugin(lambda ctx: None)
    listening.dispose()
    assert root.registry.size == 0


@all_strays
async def test_stray_exit_of_a_status_listener_leaves_the_transition_alone(
    root: Context, reports: Reports, stray: BaseException
) -> None:
    root.on(INTERNAL_STATUS, raising(stray))
    fiber = await root.plugin(lambda ctx: None)
    assert fiber.state is S.ACTIVE
    await fiber.dispose()
    assert fiber.state is S.DISPOSED
    assert {type(error) for error in reports.errors} == {StrayExit}


@all_strays
@pytest.mark.parametrize("later", [False, True])
async def test_stray_exit_of_an_update_listener_reaches_who_awaits_the_update(
    root: Context, stray: BaseException, later: bool
) -> None:
    def body(ctx: Context, config: object) -> None:
        ctx.on(INTERNAL_UPDATE, both(stray)[later])

    fiber = await root.plugin(body, 1)
    with pytest.raises(StrayExit):
        await fiber.update(2)
    assert fiber.state is S.ACTIVE


async def test_reporter_that_means_to_end_the_process_does_not(
    root: Context, caplog: pytest.LogCaptureFixture
) -> None:
    root.set_reporter(raising(SystemExit(1)))
    root.report(ValueError("told"))
    assert "the error reporter of a root context failed" in caplog.text


# interrupts


def test_interrupt_by_a_signal_fails_the_plugin_and_reaches_the_host() -> None:
    root = Context()
    reports = Reports()
    undone: list[object] = []

    async def body(ctx: Context) -> None:
        ctx.defer(lambda: undone.append(1))
        await asyncio.sleep(0)
        signal.raise_signal(signal.SIGINT)
        for _ in range(1_000):
            pass

    async def main() -> None:
        root.set_reporter(reports)
        await quiet(root.plugin(body))
        await asyncio.sleep(60)

    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    loop = asyncio.new_event_loop()
    try:
        task = loop.create_task(main())
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(task)
        task.cancel()
        with suppress(asyncio.CancelledError):
            loop.run_until_complete(task)

        async def end() -> None:
            await root.dispose()

        loop.run_until_complete(end())
    finally:
        signal.signal(signal.SIGINT, previous)
        loop.close()
    assert undone == [1]
    assert [type(error) for error in reports.errors] == [StrayExit]


def test_interrupt_that_a_plugin_raises_reaches_nobody_else() -> None:
    async def main() -> str:
        root = Context()
        root.set_reporter(Reports())
        fiber = root.plugin(raising_later(KeyboardInterrupt()))
        await quiet(fiber)
        await ticks()
        state = fiber.state.label
        await root.dispose()
        return state

    assert asyncio.run(main()) == "failed"


# coroutines that are closed


def test_kernel_coroutines_that_are_closed_end_quietly(recwarn: pytest.WarningsRecorder) -> None:
    root = Context()
    loop = asyncio.new_event_loop()
    never = loop.create_future()

    async def wait() -> None:
        await never

    async def items() -> AsyncIterator[Callable[[], object]]:
        try:
            yield wait
            await never
        finally:
            await asyncio.sleep(0)

    async def main() -> None:
        root.plugin(lambda ctx: wait())
        root.effect(wait)
        root.effect(items)
        root.defer(wait).dispose()
        root.spawn(wait(), "spawned")
        await ticks()

    loop.run_until_complete(main())
    for task in asyncio.all_tasks(loop):
        task.get_coro().close()  # type: ignore[union-attr]
        task.cancel()
    loop.run_until_complete(ticks(2))
    loop.close()
    assert [str(item.message) for item in recwarn.list] == []


async def test_optional_need_with_a_stray_check_does_not_gate(
    root: Context, reports: Reports
) -> None:
    root.provide("foo", 1, check=raising(SystemExit()))
    body: Any = plugin(inject=[Inject.optional("foo")])(lambda ctx: None)
    fiber = await root.plugin(body)
    assert fiber.state is S.ACTIVE
