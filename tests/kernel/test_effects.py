"""Effects: shapes, order of undo, failure of setup and undo, ownership, labels."""

from __future__ import annotations

import asyncio
import contextvars
import gc
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
from kernel_support import Reports, join, quiet, ticks

from dsh.kernel import (
    Context,
    Effect,
    EffectInfo,
    FiberState,
    InactiveEffect,
    InvalidEffect,
    ReentrantAwait,
    plugin,
)


def writes(log: list[object], what: object) -> Callable[[], None]:
    return lambda: log.append(what)


# synchronous shapes


async def test_callable_is_the_undo_and_runs_once(root: Context, log: list[object]) -> None:
    effect = root.effect(lambda: writes(log, "undo"))
    assert (log, effect.done) == ([], False)
    effect.dispose()
    effect.dispose()
    assert (log, effect.done) == (["undo"], True)


async def test_generator_yields_are_undone_last_first_with_nested_effects_in_place(
    root: Context, log: list[object]
) -> None:
    def setup() -> Iterator[Any]:
        yield writes(log, 1)
        yield root.effect(lambda: writes(log, 2), "inner")
        yield writes(log, 3)

    effect = root.effect(setup, "outer")
    assert root.fiber.effects() == [EffectInfo("outer", (EffectInfo("inner"),))]
    effect.dispose()
    effect.dispose()
    assert log == [3, 2, 1]
    assert root.fiber.effects() == []


async def test_collected_effect_disposed_alone_is_not_undone_again(
    root: Context, log: list[object]
) -> None:
    inner: list[Effect] = []

    def setup() -> Iterator[Any]:
        inner.append(root.effect(lambda: writes(log, "inner"), "inner"))
        yield inner[0]

    outer = root.effect(setup, "outer")
    inner[0].dispose()
    assert outer.children == ()
    outer.dispose()
    assert log == ["inner"]


async def test_effect_returned_by_a_setup_is_collected(root: Context, log: list[object]) -> None:
    outer = root.effect(lambda: root.effect(lambda: writes(log, "inner"), "inner"), "outer")
    assert [str(info) for info in root.fiber.effects()] == ["outer (inner)"]
    outer.dispose()
    assert log == ["inner"]


async def test_collected_child_plugin_goes_with_the_effect(
    root: Context, log: list[object]
) -> None:
    effect = root.effect(lambda: root.plugin(lambda ctx: writes(log, "child")))
    await ticks()
    await effect.dispose()
    assert log == ["child"]
    assert root.registry.size == 0


async def test_context_manager_is_entered_in_setup_and_left_without_exception(
    root: Context, log: list[object]
) -> None:
    @contextmanager
    def resource() -> Iterator[str]:
        log.append("enter")
        yield "value"
        log.append("exit")

    effect = root.effect(resource)
    assert log == ["enter"]
    effect.dispose()
    assert log == ["enter", "exit"]
    assert root.enter(resource()) == "value"
    await root.dispose()
    assert log == ["enter", "exit"] * 2


async def test_bare_yield_is_set_up_and_torn_down_like_a_fixture(
    root: Context, log: list[object], reports: Reports
) -> None:
    def setup() -> Iterator[None]:
        log.append("up")
        yield
        log.append("down")

    async def setup_async() -> AsyncIterator[None]:
        log.append("async up")
        yield
        log.append("async down")

    first = root.effect(setup)
    second = await root.effect(setup_async)
    assert log == ["up", "async up"]
    await second.dispose()
    await first.dispose()
    assert log == ["up", "async up", "async down", "down"]
    assert reports.errors == []


async def test_none_is_an_effect_without_undo(root: Context) -> None:
    effect = root.effect(lambda: None, "nothing")
    assert not effect.done
    effect.dispose()
    assert effect.done


async def test_coroutine_function_as_undo_is_awaited(root: Context, log: list[object]) -> None:
    async def undo() -> None:
        await ticks(2)
        log.append("undone")

    effect = root.effect(lambda: undo)
    await effect.dispose()
    assert log == ["undone"]
    await root.defer(undo).dispose()
    assert log == ["undone"] * 2


async def test_sync_undo_runs_inline_and_the_first_async_one_hands_over_the_rest(
    root: Context, log: list[object]
) -> None:
    gate = asyncio.Event()

    async def slow() -> None:
        await gate.wait()
        log.append("slow")

    def setup() -> Iterator[Any]:
        yield writes(log, "first")
        yield slow
        yield writes(log, "last")

    disposal = root.effect(setup).dispose()
    assert log == ["last"]
    await ticks()
    assert (log, disposal.done) == (["last"], False)
    gate.set()
    await disposal
    assert log == ["last", "slow", "first"]


async def test_undos_left_after_one_that_raises_still_run(
    root: Context, log: list[object], reports: Reports
) -> None:
    def fail() -> None:
        raise ValueError("sync undo")

    async def fail_async() -> None:
        raise ValueError("async undo")

    def setup() -> Iterator[Any]:
        yield writes(log, 1)
        yield fail
        yield fail_async
        yield writes(log, 2)

    await root.effect(setup, "frail").dispose()
    assert log == [2, 1]
    assert (reports.texts, reports.labels) == (["async undo", "sync undo"], ["frail"] * 2)


# failure of setup


async def test_throw_in_sync_setup_raises_undoes_and_leaves_no_entry(
    root: Context, log: list[object]
) -> None:
    def setup() -> Iterator[Any]:
        yield writes(log, 1)
        yield writes(log, 2)
        raise ValueError("in setup")

    before = root.census()
    with pytest.raises(ValueError, match="in setup"):
        root.effect(setup, "broken")
    assert log == [2, 1]
    assert root.census() == before


async def test_throw_in_async_setup_raises_when_awaited_and_is_reported(
    root: Context, log: list[object], reports: Reports
) -> None:
    async def setup() -> AsyncIterator[Any]:
        yield writes(log, 1)
        raise ValueError("in async setup")

    before = root.census()
    effect = root.effect(setup, "broken")
    with pytest.raises(ValueError, match="in async setup"):
        await effect
    assert (log, effect.done, reports.labels) == ([1], True, ["broken"])
    assert root.census() == before


async def test_failed_async_setup_that_nobody_awaits_warns_of_nothing(
    root: Context, reports: Reports, caplog: pytest.LogCaptureFixture
) -> None:
    async def setup() -> None:
        raise ValueError("unseen")

    root.effect(setup)
    await ticks()
    gc.collect()
    await ticks()
    assert reports.texts == ["unseen"]
    assert caplog.records == []


@pytest.mark.parametrize("value", [42, "text", [1], object()])
async def test_what_cannot_be_undone_is_refused(root: Context, value: object) -> None:
    before = root.census()
    with pytest.raises(InvalidEffect, match="invalid effect 'odd': got"):
        root.effect(lambda: value, "odd")  # type: ignore[arg-type,return-value]
    with pytest.raises(TypeError, match="invalid effect"):
        root.effect(value)  # type: ignore[arg-type]
    assert root.census() == before


async def test_invalid_yield_raises_rolls_back_and_closes_the_generator(
    root: Context, log: list[object], reports: Reports
) -> None:
    def setup() -> Iterator[Any]:
        try:
            yield writes(log, "undone")
            yield 42
        finally:
            log.append("closed")

    async def setup_async() -> AsyncIterator[Any]:
        try:
            yield writes(log, "async undone")
            yield 42
        finally:
            log.append("async closed")

    with pytest.raises(TypeError, match="got int"):
        root.effect(setup)
    with pytest.raises(TypeError, match="got int"):
        await root.effect(setup_async)
    assert log == ["closed", "undone", "async closed", "async undone"]


# asynchronous setup


async def test_async_setup_disposed_early_completes_and_is_then_undone(
    root: Context, log: list[object]
) -> None:
    async def setup() -> Callable[[], None]:
        await ticks(3)
        log.append("setup")
        return writes(log, "undo")

    effect = root.effect(setup)
    await effect.dispose()
    assert log == ["setup", "undo"]


class Steps:
    """An asynchronous generator whose steps the test lets through one by one."""

    def __init__(self, log: list[object]) -> None:
        self.log = log
        self.gates = [asyncio.Event() for _ in range(3)]

    async def __call__(self) -> AsyncIterator[Callable[[], None]]:
        try:
            for number, gate in enumerate(self.gates):
                await gate.wait()
                self.log.append(number + 1)
                yield writes(self.log, -(number + 1))
        finally:
            self.log.append("closed")


@pytest.mark.parametrize(
    ("passed", "expected"),
    [(0, [1, "closed", -1]), (1, [1, 2, "closed", -2, -1])],
)
async def test_async_generator_disposed_stops_after_the_item_in_progress(
    root: Context, log: list[object], passed: int, expected: list[object]
) -> None:
    steps = Steps(log)
    effect = root.effect(steps)
    for gate in steps.gates[:passed]:
        gate.set()
    await ticks()
    disposal = effect.dispose()
    for gate in steps.gates:
        gate.set()
    await disposal
    assert log == expected


async def test_async_generator_awaited_then_disposed_undoes_all_in_reverse(
    root: Context, log: list[object]
) -> None:
    steps = Steps(log)
    for gate in steps.gates:
        gate.set()
    effect = await root.effect(steps)
    await effect.dispose()
    assert log == [1, 2, 3, "closed", -3, -2, -1]


async def test_async_context_manager_is_entered_and_left(root: Context, log: list[object]) -> None:
    @asynccontextmanager
    async def resource() -> AsyncIterator[str]:
        log.append("enter")
        yield "value"
        log.append("exit")

    effect = await root.effect(resource)
    await effect.dispose()
    assert log == ["enter", "exit"]
    assert await root.enter_async(resource(), "resource") == "value"
    assert [info.label for info in root.fiber.effects()] == ["resource"]
    await root.dispose()
    assert log == ["enter", "exit"] * 2


async def test_unload_waits_for_a_setup_in_progress_and_undoes_it(
    root: Context, log: list[object]
) -> None:
    gate = asyncio.Event()

    async def setup() -> Callable[[], None]:
        await gate.wait()
        log.append("setup")
        return writes(log, "undo")

    def body(ctx: Context) -> None:
        ctx.effect(setup)

    fiber = await root.plugin(body)
    disposal = asyncio.ensure_future(join(fiber.dispose()))
    await ticks()
    assert not disposal.done()
    gate.set()
    await disposal
    assert log == ["setup", "undo"]


async def test_owner_joins_an_undo_that_someone_else_started(
    root: Context, log: list[object]
) -> None:
    gate, effects = asyncio.Event(), []

    async def undo() -> None:
        await gate.wait()
        log.append("undone")

    fiber = await root.plugin(lambda ctx: effects.append(ctx.effect(lambda: undo)))
    effects[0].dispose()
    assert effects[0].dispose().done
    disposal = asyncio.ensure_future(join(fiber.dispose()))
    await ticks()
    assert not disposal.done()
    gate.set()
    await disposal
    assert log == ["undone"]


async def test_awaiting_an_effect_from_inside_its_own_setup_raises(
    root: Context, reports: Reports
) -> None:
    holder: list[Effect] = []

    async def setup() -> None:
        await holder[0]

    async def setup_disposing() -> None:
        await holder[1].dispose()

    holder.append(root.effect(setup))
    holder.append(root.effect(setup_disposing))
    for effect in holder:
        with pytest.raises(ReentrantAwait):
            await asyncio.wait_for(effect, 2)


async def test_awaiting_the_owner_s_disposal_from_inside_a_setup_raises(
    root: Context, reports: Reports
) -> None:
    effects: list[Effect] = []

    def body(ctx: Context) -> None:
        async def setup() -> None:
            await ctx.fiber.dispose()

        effects.append(ctx.effect(setup))

    fiber = await root.plugin(body)
    with pytest.raises(ReentrantAwait):
        await asyncio.wait_for(effects[0], 2)
    await fiber.dispose()


async def test_setup_runs_in_the_caller_s_context_variables(root: Context) -> None:
    who: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="root")
    seen: list[str] = []

    async def setup() -> None:
        seen.append(who.get())

    who.set("caller")
    await root.effect(setup)
    assert seen == ["caller"]


# tasks


async def test_spawned_task_is_cancelled_and_awaited_on_unload(
    root: Context, log: list[object]
) -> None:
    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await ticks(3)
            log.append("ended")

    def body(ctx: Context) -> None:
        ctx.spawn(work(), "worker")

    fiber = await root.plugin(body)
    await ticks()
    assert [info.label for info in fiber.effects()] == ['ctx.spawn("worker")']
    await fiber.dispose()
    assert log == ["ended"]


async def test_spawned_task_that_ends_leaves_no_effect_and_its_result(root: Context) -> None:
    async def work() -> int:
        return 7

    task = root.spawn(work(), "worker")
    assert await task == 7
    await ticks()
    assert root.census().effects == 0


async def test_failure_of_a_spawned_task_is_reported_and_the_fiber_lives(
    root: Context, reports: Reports
) -> None:
    async def work() -> None:
        raise ValueError("worker died")

    @plugin(name="boss")
    def body(ctx: Context) -> None:
        ctx.spawn(work(), "worker")

    fiber = await root.plugin(body)
    await ticks()
    assert fiber.state is FiberState.ACTIVE
    assert (reports.texts, reports.owners) == (["worker died"], ["boss"])


async def test_failure_of_a_critical_task_fails_the_fiber(
    root: Context, reports: Reports, log: list[object]
) -> None:
    gate = asyncio.Event()

    async def work() -> None:
        await gate.wait()
        raise ValueError("essential")

    def body(ctx: Context) -> Callable[[], None]:
        ctx.spawn(work(), "worker", critical=True)
        return writes(log, "undone")

    fiber = await root.plugin(body)
    gate.set()
    await ticks()
    await quiet(fiber)
    assert (fiber.state, log) == (FiberState.FAILED, ["undone"])
    with pytest.raises(ValueError, match="essential"):
        await fiber


async def test_returning_a_spawned_task_does_not_wait_for_it(root: Context) -> None:
    async def forever() -> None:
        await asyncio.Event().wait()

    fiber = await asyncio.wait_for(root.plugin(lambda ctx: ctx.spawn(forever(), "worker")), 2)
    assert fiber.state is FiberState.ACTIVE
    await fiber.dispose()


async def test_task_may_dispose_of_its_own_plugin(root: Context, log: list[object]) -> None:
    async def work(ctx: Context) -> None:
        try:
            await ctx.fiber.dispose()
        finally:
            log.append("task over")

    fiber = await root.plugin(lambda ctx: ctx.spawn(work(ctx), "worker"))
    await ticks(20)
    assert (fiber.state, log) == (FiberState.DISPOSED, ["task over"])


async def test_spawn_on_a_gone_plugin_is_refused_without_warnings(root: Context) -> None:
    async def work() -> None: ...

    fiber = await root.plugin(lambda ctx: None)
    await fiber.dispose()
    with pytest.raises(InactiveEffect):
        fiber.ctx.spawn(work(), "worker")


# labels


async def test_labels_show_owner_level_live_effects_only(root: Context) -> None:
    async def work() -> None:
        await asyncio.Event().wait()

    root.on("some/event", lambda _: None)
    root.provide("foo", 1)
    root.plugin(lambda ctx: None)
    root.effect(lambda: None, "labelled")
    root.effect(lambda: None)
    root.defer(lambda: None)
    root.spawn(work(), "worker")
    gone = root.effect(lambda: None, "gone")
    gone.dispose()
    assert [info.label for info in root.fiber.effects()] == [
        'ctx.on("some/event")',
        'ctx.provide("foo")',
        "ctx.plugin()",
        "labelled",
        'ctx.spawn("worker")',
    ]
    await ticks()


async def test_effects_refused_inside_a_disposed_plugin_say_who_and_why(root: Context) -> None:
    fiber = await root.plugin(plugin(name="gone")(lambda ctx: None))
    await fiber.dispose()
    with pytest.raises(InactiveEffect, match="plugin 'gone' is disposed"):
        fiber.ctx.effect(lambda: None)
