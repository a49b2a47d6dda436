"""Events: the modes, order, errors, snapshots, filters, supervision."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from kernel_support import Reports, join, ticks

from dsh.kernel import (
    INTERNAL_DISPATCH,
    Bail,
    Context,
    Dispatching,
    Effect,
    Emit,
    Event,
    ModeError,
    Next,
    Parallel,
    ReentrantAwait,
    Serial,
    Service,
    SyncNext,
    Waterfall,
    WaterfallSync,
    plugin,
)


@dataclass(slots=True)
class Number:
    """A payload."""

    value: int = 0


TOLD = Emit[Number]("test/told")
CONTAINED = Emit[Number]("test/contained", errors="contain")
VETOED = Emit[Number]("test/vetoed", errors="veto")
TOGETHER = Parallel[Number]("test/together")
ASKED = Serial[Number, object]("test/asked")
ASKED_SYNC = Bail[Number, object]("test/asked-sync")
AROUND = Waterfall[Number, int]("test/around")
AROUND_SYNC = WaterfallSync[Number, int]("test/around-sync")
N = Number()


def writes(log: list[object], what: object) -> Callable[[object], None]:
    return lambda _: log.append(what)


def raises(text: str) -> Callable[[object], None]:
    def listener(_: object) -> None:
        raise ValueError(text)

    return listener


# emit


async def test_emit_runs_in_order_of_registration_with_prepended_first(
    root: Context, log: list[object]
) -> None:
    root.on(TOLD, writes(log, 1))
    root.on(TOLD, writes(log, 2))
    root.on(TOLD, writes(log, 0), prepend=True)
    root.on(TOLD, writes(log, -1), prepend=True)
    root.emit(TOLD, N)
    assert log == [-1, 0, 1, 2]


async def test_one_function_registered_twice_is_two_registrations(
    root: Context, log: list[object]
) -> None:
    listener = writes(log, "x")
    first, second = root.on(TOLD, listener), root.on(TOLD, listener)
    root.emit(TOLD, N)
    first.dispose()
    root.emit(TOLD, N)
    second.dispose()
    root.emit(TOLD, N)
    assert log == ["x"] * 3
    assert root.listener_count() == 0


async def test_emit_runs_all_and_raises_one_error_as_it_is(
    root: Context, log: list[object]
) -> None:
    root.on(TOLD, raises("one"))
    root.on(TOLD, writes(log, "after"))
    with pytest.raises(ValueError, match="one"):
        root.emit(TOLD, N)
    assert log == ["after"]


async def test_emit_raises_several_errors_as_a_group(root: Context) -> None:
    root.on(TOLD, raises("one"))
    root.on(TOLD, raises("two"))
    with pytest.raises(ExceptionGroup) as caught:
        root.emit(TOLD, N)
    assert [str(error) for error in caught.value.exceptions] == ["one", "two"]


async def test_contained_emit_reports_each_failure_with_its_owner(
    root: Context, reports: Reports, log: list[object]
) -> None:
    await root.plugin(plugin(name="frail")(lambda ctx: ctx.on(CONTAINED, raises("one"))))
    root.on(CONTAINED, raises("two"))
    root.on(CONTAINED, writes(log, "after"))
    root.emit(CONTAINED, N)
    assert (reports.texts, reports.owners, log) == (["one", "two"], ["frail", "root"], ["after"])


async def test_veto_stops_at_the_first_error_which_reaches_the_caller(
    root: Context, log: list[object]
) -> None:
    root.on(VETOED, writes(log, "before"))
    root.on(VETOED, raises("no"))
    root.on(VETOED, writes(log, "after"))
    with pytest.raises(ValueError, match="no"):
        root.emit(VETOED, N)
    assert log == ["before"]


async def test_async_emit_listener_is_supervised_and_reported_with_its_owner(
    root: Context, reports: Reports, caplog: pytest.LogCaptureFixture
) -> None:
    async def listener(_: Number) -> None:
        await ticks(2)
        raise ValueError("later")

    await root.plugin(plugin(name="slow")(lambda ctx: ctx.on(TOLD, listener)))
    root.emit(TOLD, N)
    await ticks()
    gc.collect()
    await ticks()
    assert (reports.texts, reports.owners) == (["later"], ["slow"])
    assert caplog.records == []


async def test_unload_awaits_async_emit_listeners_of_the_plugin(
    root: Context, log: list[object]
) -> None:
    gate = asyncio.Event()

    async def listener(_: Number) -> None:
        await gate.wait()
        log.append("done")

    fiber = await root.plugin(lambda ctx: ctx.on(TOLD, listener))
    root.emit(TOLD, N)
    disposal = asyncio.ensure_future(join(fiber.dispose()))
    await ticks()
    assert not disposal.done()
    gate.set()
    await disposal
    assert log == ["done"]


async def test_async_emit_listener_that_awaits_its_own_unload_raises(
    root: Context, reports: Reports
) -> None:
    def body(ctx: Context) -> None:
        async def listener(_: Number) -> None:
            await ctx.fiber.dispose()

        ctx.on(TOLD, listener)

    fiber = await root.plugin(body)
    root.emit(TOLD, N)
    await ticks()
    await asyncio.wait_for(join(fiber.dispose()), 2)
    assert [type(error) for error in reports.errors] == [ReentrantAwait]


async def test_emit_listener_that_returns_a_handle_only_requests(
    root: Context, reports: Reports
) -> None:
    def body(ctx: Context) -> None:
        ctx.on(TOLD, lambda _: ctx.fiber.dispose())
        ctx.on(TOLD, lambda _: root.plugin(lambda inner: None))

    fiber = await root.plugin(body)
    root.emit(TOLD, N)
    await ticks()
    assert (fiber.uid, root.registry.size, reports.errors) == (None, 1, [])


async def test_prepared_emit_fixes_listeners_and_checks_before_the_commit(
    root: Context, log: list[object]
) -> None:
    root.on(TOLD, writes(log, "early"))
    run = root.prepare(TOLD, N)
    root.on(TOLD, writes(log, "late"))
    log.append("commit")
    run()
    assert log == ["commit", "early"]

    def forbid(event: Dispatching) -> None:
        raise ValueError(f"{event.name} is forbidden")

    root.on(INTERNAL_DISPATCH, forbid)
    with pytest.raises(ValueError, match="test/told is forbidden"):
        root.prepare(TOLD, N)
    run()
    assert log == ["commit", "early", "early"]


async def test_emit_without_listeners_or_payload_does_nothing(root: Context) -> None:
    root.emit(TOLD, N)
    root.emit(Emit[None]("test/nothing"))


# parallel


async def test_parallel_without_listeners_resolves(root: Context) -> None:
    await root.parallel(TOGETHER, N)


async def test_parallel_runs_together_and_keeps_every_error(
    root: Context, log: list[object]
) -> None:
    gate = asyncio.Event()

    async def waits(_: Number) -> None:
        await gate.wait()
        log.append("waited")

    async def fails(_: Number) -> None:
        gate.set()
        raise ValueError("async")

    root.on(TOGETHER, raises("sync"))
    root.on(TOGETHER, waits)
    root.on(TOGETHER, fails)
    with pytest.raises(ExceptionGroup) as caught:
        await root.parallel(TOGETHER, N)
    assert sorted(str(error) for error in caught.value.exceptions) == ["async", "sync"]
    assert log == ["waited"]


async def test_parallel_keeps_a_single_error_in_a_group(root: Context) -> None:
    root.on(TOGETHER, raises("alone"))
    with pytest.raises(ExceptionGroup) as caught:
        await root.parallel(TOGETHER, N)
    assert len(caught.value.exceptions) == 1


async def test_cancelling_parallel_cancels_and_awaits_its_listeners(
    root: Context, log: list[object]
) -> None:
    async def listener(_: Number) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await ticks(2)
            log.append("ended")

    root.on(TOGETHER, listener)
    task = asyncio.ensure_future(root.parallel(TOGETHER, N))
    await ticks()
    task.cancel()
    await asyncio.wait([task])
    assert (task.cancelled(), log) == (True, ["ended"])


# serial and bail


@pytest.mark.parametrize("answer", [0, "", [], "yes"])
async def test_serial_and_bail_stop_at_the_first_answer(
    root: Context, log: list[object], answer: object
) -> None:
    async def late(_: Number) -> object:
        return answer

    root.on(ASKED, lambda _: None)
    root.on(ASKED, lambda _: False)
    root.on(ASKED, late)
    root.on(ASKED, writes(log, "too far"))
    root.on(ASKED_SYNC, lambda _: None)
    root.on(ASKED_SYNC, lambda _: False)
    root.on(ASKED_SYNC, lambda _: answer)
    root.on(ASKED_SYNC, writes(log, "too far"))
    assert await root.serial(ASKED, N) == answer
    assert root.bail(ASKED_SYNC, N) == answer
    assert log == []


async def test_serial_and_bail_without_an_answer_are_none(root: Context) -> None:
    root.on(ASKED, lambda _: False)
    root.on(ASKED_SYNC, lambda _: False)
    assert await root.serial(ASKED, N) is None
    assert root.bail(ASKED_SYNC, N) is None


async def test_first_error_ends_serial_and_bail(root: Context, log: list[object]) -> None:
    root.on(ASKED, raises("serial"))
    root.on(ASKED, writes(log, "after"))
    root.on(ASKED_SYNC, raises("bail"))
    root.on(ASKED_SYNC, writes(log, "after"))
    with pytest.raises(ValueError, match="serial"):
        await root.serial(ASKED, N)
    with pytest.raises(ValueError, match="bail"):
        root.bail(ASKED_SYNC, N)
    assert log == []


async def test_bail_refuses_an_awaitable_answer(root: Context) -> None:
    async def listener(_: Number) -> object:
        return 1

    root.on(ASKED_SYNC, listener)
    with pytest.raises(TypeError, match="bail is synchronous"):
        root.bail(ASKED_SYNC, N)


# waterfall


async def test_waterfall_nests_first_registered_outermost(root: Context, log: list[object]) -> None:
    async def outer(event: Number, next: Next[int]) -> int:
        log.append("outer")
        return 1 + await next()

    def sync_listener(event: Number, next: Next[int]) -> Any:
        log.append("inner")
        return next()

    root.on(AROUND, outer)
    root.on(AROUND, sync_listener)
    assert await root.waterfall(AROUND, N, lambda: 3) == 4
    assert log == ["outer", "inner"]


async def test_waterfall_one_plus_one_plus_two_is_four(root: Context) -> None:
    async def add_one(event: Number, next: Next[int]) -> int:
        return 1 + await next()

    async def two() -> int:
        return 2

    root.on(AROUND, add_one)
    root.on(AROUND, add_one)
    assert await root.waterfall(AROUND, N, two) == 4
    root.on(AROUND_SYNC, lambda event, go_on: 1 + go_on())
    root.on(AROUND_SYNC, lambda event, go_on: 1 + go_on())
    assert root.waterfall_sync(AROUND_SYNC, N, lambda: 2) == 4


async def test_listener_that_does_not_go_on_stops_the_rest_and_the_inner(
    root: Context, log: list[object]
) -> None:
    async def passes(event: Number, next: Next[int]) -> int:
        log.append("passes")
        return await next()

    root.on(AROUND, passes)
    root.on(AROUND, passes)
    root.on(AROUND, lambda event, go_on: 7)
    root.on(AROUND, passes)
    assert await root.waterfall(AROUND, N, lambda: log.append("inner") or 0) == 7
    assert log == ["passes", "passes"]


async def test_next_called_twice_runs_the_same_tail_again(root: Context, log: list[object]) -> None:
    async def retries(event: Number, next: Next[int]) -> int:
        return await next() + await next()

    async def counts(event: Number, next: Next[int]) -> int:
        log.append("tail")
        return await next()

    root.on(AROUND, retries)
    root.on(AROUND, counts)
    assert await root.waterfall(AROUND, N, lambda: 5) == 10
    assert log == ["tail", "tail"]

    def retries_sync(event: Number, next: SyncNext[int]) -> int:
        return next() + next()

    root.on(AROUND_SYNC, retries_sync)
    root.on(AROUND_SYNC, lambda event, go_on: go_on())
    assert root.waterfall_sync(AROUND_SYNC, N, lambda: 5) == 10


async def test_waterfall_request_may_be_edited_on_the_way(root: Context) -> None:
    async def edits(event: Number, next: Next[int]) -> int:
        event.value = 9
        return await next()

    request = Number(1)
    root.on(AROUND, edits)
    assert await root.waterfall(AROUND, request, lambda: request.value) == 9


async def test_waterfall_error_propagates_to_the_outer_listener(root: Context) -> None:
    async def rescues(event: Number, next: Next[int]) -> int:
        try:
            return await next()
        except ValueError:
            return -1

    def inner() -> int:
        raise ValueError("inner")

    root.on(AROUND, rescues)
    assert await root.waterfall(AROUND, N, inner) == -1


async def test_waterfall_of_streams_passes_async_iterators_through(root: Context) -> None:
    stream = Waterfall[Number, AsyncIterator[int]]("test/stream")

    async def numbers() -> AsyncIterator[int]:
        yield 1
        yield 2

    async def doubles(event: Number, next: Next[AsyncIterator[int]]) -> AsyncIterator[int]:
        source = await next()

        async def doubled() -> AsyncIterator[int]:
            async for item in source:
                yield item * 2

        return doubled()

    root.on(stream, doubles)
    found = [item async for item in await root.waterfall(stream, N, numbers)]
    assert found == [2, 4]


# modes, snapshots, once


async def test_each_mode_refuses_events_of_another(root: Context) -> None:
    dispatches: list[tuple[str, Callable[[Any], Any]]] = [
        ("emit", lambda event: root.emit(event, N)),
        ("prepare", lambda event: root.prepare(event, N)),
        ("bail", lambda event: root.bail(event, N)),
        ("waterfall", lambda event: root.waterfall(event, N, lambda: 0)),
        ("waterfall_sync", lambda event: root.waterfall_sync(event, N, lambda: 0)),
    ]
    events: list[Event[Any]] = [TOLD, TOGETHER, ASKED, ASKED_SYNC, AROUND, AROUND_SYNC]
    for used, dispatch in dispatches:
        for event in events:
            if event.mode == used or (used == "prepare" and event.mode == "emit"):
                continue
            with pytest.raises(ModeError, match=f"is declared as {event.mode}"):
                dispatch(event)
    with pytest.raises(ModeError):
        await root.parallel(TOLD, N)  # type: ignore[arg-type]
    with pytest.raises(ModeError):
        await root.serial(TOLD, N)  # type: ignore[arg-type]


async def test_listeners_are_fixed_when_dispatch_starts(root: Context, log: list[object]) -> None:
    effects: list[Effect] = []

    def first(_: Number) -> None:
        log.append("first")
        effects[1].dispose()
        root.on(TOLD, writes(log, "added"))

    effects.append(root.on(TOLD, first))
    effects.append(root.on(TOLD, writes(log, "second")))
    root.emit(TOLD, N)
    assert log == ["first", "second"]
    effects[0].dispose()
    root.emit(TOLD, N)
    assert log == ["first", "second", "added"]


async def test_listener_may_dispose_of_itself_and_emit_the_same_event(
    root: Context, log: list[object]
) -> None:
    effects: list[Effect] = []

    def listener(event: Number) -> None:
        log.append(event.value)
        effects[0].dispose()
        root.emit(TOLD, Number(event.value + 1))

    effects.append(root.on(TOLD, listener))
    root.on(TOLD, lambda event: log.append(("other", event.value)))
    root.emit(TOLD, N)
    assert log == [0, ("other", 1), ("other", 0)]


async def test_once_is_removed_before_it_runs_even_under_recursion(
    root: Context, log: list[object]
) -> None:
    def listener(event: Number) -> None:
        log.append(event.value)
        root.emit(TOLD, Number(event.value + 1))

    effect = root.once(TOLD, listener)
    root.emit(TOLD, N)
    root.emit(TOLD, N)
    assert (log, effect.done, root.listener_count("test/told")) == ([0], True, 0)


async def test_once_in_a_waterfall_steps_aside_when_it_is_spent(root: Context) -> None:
    async def recursive(event: Number, next: Next[int]) -> int:
        if event.value == 0:
            await root.waterfall(AROUND, Number(1), lambda: 0)
        return await next()

    calls: list[int] = []

    async def single(event: Number, next: Next[int]) -> int:
        calls.append(event.value)
        return 10 + await next()

    root.on(AROUND, recursive)
    root.once(AROUND, single)
    assert await root.waterfall(AROUND, N, lambda: 1) == 1
    assert calls == [1]


async def test_listening_by_wire_name_is_the_same_event(root: Context, log: list[object]) -> None:
    root.on("test/told", writes(log, "by name"))
    root.emit(TOLD, N)
    assert log == ["by name"]


async def test_listeners_go_with_their_plugin(root: Context, log: list[object]) -> None:
    fiber = await root.plugin(lambda ctx: ctx.on(TOLD, writes(log, "x")))
    await fiber.dispose()
    root.emit(TOLD, N)
    assert (log, root.listener_count()) == ([], 0)


# targets


class Only:
    """A dispatch target with a filter."""

    def __init__(self, accepts: bool) -> None:
        self.accepts = accepts

    def accepts_listener(self, ctx: Context) -> bool:
        return self.accepts


@pytest.mark.parametrize(
    ("target", "reached"),
    [(Only(True), True), (Only(False), False), (object(), True), (None, True)],
)
async def test_target_filter_holds_in_every_mode(
    root: Context, log: list[object], target: object, reached: bool
) -> None:
    async def around(event: Number, next: Next[int]) -> int:
        log.append("waterfall")
        return await next()

    def around_sync(event: Number, next: SyncNext[int]) -> int:
        log.append("waterfall_sync")
        return next()

    root.on(TOLD, writes(log, "emit"))
    root.on(TOGETHER, writes(log, "parallel"))
    root.on(ASKED, writes(log, "serial"))
    root.on(ASKED_SYNC, writes(log, "bail"))
    root.on(AROUND, around)
    root.on(AROUND_SYNC, around_sync)
    root.on(TOLD, writes(log, "everywhere"), everywhere=True)
    root.emit(TOLD, N, target)
    await root.parallel(TOGETHER, N, target)
    await root.serial(ASKED, N, target)
    root.bail(ASKED_SYNC, N, target)
    await root.waterfall(AROUND, N, lambda: 0, target)
    root.waterfall_sync(AROUND_SYNC, N, lambda: 0, target)
    modes = ["parallel", "serial", "bail", "waterfall", "waterfall_sync"]
    assert log == (["emit", "everywhere", *modes] if reached else ["everywhere"])


async def test_isolated_service_as_target_reaches_only_its_scope(
    root: Context, log: list[object]
) -> None:
    class Radio(Service):
        name = "radio"

        def send(self) -> None:
            self.ctx.emit(TOLD, N, self)

    inside = root.isolate("radio")
    await inside.plugin(Radio)
    root.on(TOLD, writes(log, "outer"))
    inside.on(TOLD, writes(log, "inner"))
    root.on(TOLD, writes(log, "everywhere"), everywhere=True)
    inside.require(Radio).send()
    assert log == ["inner", "everywhere"]


# internal/dispatch


async def test_dispatch_check_sees_mode_name_payload_and_target(root: Context) -> None:
    seen: list[object] = []
    root.on(
        INTERNAL_DISPATCH,
        lambda event: seen.append((event.mode, event.name, event.payload, event.target)),
    )
    target = Only(True)
    root.emit(TOLD, N, target)
    await root.parallel(TOGETHER, N)
    await root.serial(ASKED, N)
    root.bail(ASKED_SYNC, N)
    await root.waterfall(AROUND, N, lambda: 0)
    assert seen == [
        ("emit", "test/told", N, target),
        ("parallel", "test/together", N, None),
        ("serial", "test/asked", N, None),
        ("bail", "test/asked-sync", N, None),
        ("waterfall", "test/around", N, None),
    ]


async def test_dispatch_check_reaches_the_dispatcher_and_stops_the_event(
    root: Context, log: list[object]
) -> None:
    root.on(INTERNAL_DISPATCH, raises("wrong carrier"))
    root.on(TOLD, writes(log, "told"))
    with pytest.raises(ValueError, match="wrong carrier"):
        root.emit(TOLD, N)
    assert log == []
