"""Leases: an unload waits for the work in flight through its plugin, and never for itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from kernel_support import Reports, join, provider, ticks

from dsh.kernel import (
    Context,
    Fiber,
    FiberState,
    InactiveEffect,
    LeaseExpired,
    ReentrantAwait,
    standing_aside,
)

Log = list[object]
S = FiberState


class Work:
    """Work in flight through a plugin, that ends when it is told to."""

    def __init__(self, fiber: Fiber, label: str = "work") -> None:
        self.fiber, self.label = fiber, label
        self.end = asyncio.Event()
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        with self.fiber.lease(self.label):
            await self.end.wait()


@asynccontextmanager
async def in_flight(fiber: Fiber, label: str = "work") -> AsyncIterator[Work]:
    work = Work(fiber, label)
    await ticks(1)
    yield work
    work.end.set()
    await work.task


@pytest.fixture(autouse=True)
def _no_grace(root: Context) -> None:
    """A wait that should not be is a test that hangs, not one that is slow."""
    root.set_lease_grace(3600)


def undone(log: Log, tag: str) -> Callable[[Context], Any]:
    return lambda ctx: lambda: log.append(tag)


# the wait


async def test_a_disposal_waits_for_the_work_in_flight(root: Context, log: Log) -> None:
    fiber = await root.plugin(undone(log, "undone"))
    async with in_flight(fiber):
        disposal = fiber.dispose()
        await ticks()
        assert fiber.state is S.ACTIVE
        assert fiber.leases == ("work",)
        log.append("end")
    await disposal

    assert log == ["end", "undone"]
    assert fiber.leases == ()


async def test_a_restart_waits_for_the_work_in_flight(root: Context, log: Log) -> None:
    def body(ctx: Context) -> Callable[[], None]:
        log.append("run")
        return lambda: log.append("undone")

    fiber = await root.plugin(body)
    async with in_flight(fiber):
        restart = fiber.restart()
        await ticks()
        assert log == ["run"]
    await restart

    assert log == ["run", "undone", "run"]


async def test_services_it_loaded_against_stay_readable_while_it_waits(
    root: Context, log: Log
) -> None:
    source = await root.plugin(provider(1))

    def body(ctx: Context) -> Callable[[], None]:
        return lambda: log.append("dependant")

    body.inject = ["foo"]  # type: ignore[attr-defined]
    fiber = await root.plugin(body)
    source.ctx.defer(lambda: log.append("provider"))
    async with in_flight(fiber):
        disposal = source.dispose()
        await ticks()
        assert source.state is S.UNLOADING
        assert fiber.state is S.ACTIVE
        assert fiber.ctx.require("foo") == 1
        assert log == []
    await disposal

    assert log == ["dependant", "provider"]


async def test_dependants_of_what_is_retiring_work_on(root: Context, log: Log) -> None:
    source = await root.plugin(provider(1))
    dependant = await root.inject(["foo"], undone(log, "dependant"))
    async with in_flight(source):
        disposal = source.dispose()
        await ticks()
        assert dependant.state is S.ACTIVE
        assert dependant.ctx.require("foo") == 1
    await disposal

    assert dependant.state is S.PENDING


async def test_a_service_that_comes_back_in_the_meantime_ends_the_retirement(
    root: Context, log: Log
) -> None:
    label = root.isolate("foo").label_of("foo")
    assert label is not None
    root.provide("foo", 1)
    anchor = root.anchor()
    runs: Log = []

    def body(ctx: Context) -> Callable[[], None]:
        runs.append(ctx.stop)
        return lambda: log.append("undone")

    body.inject = ["foo"]  # type: ignore[attr-defined]
    fiber = await anchor.plugin(body)
    async with in_flight(fiber):
        anchor.rebase(isolate={"foo": label})
        await ticks()
        anchor.rebase()
        await ticks()
    await fiber

    assert (len(runs), log) == (1, [])


async def test_effects_may_be_registered_while_work_is_in_flight(root: Context, log: Log) -> None:
    fiber = await root.plugin(undone(log, "body"))
    async with in_flight(fiber):
        disposal = fiber.dispose()
        await ticks(2)
        fiber.ctx.defer(lambda: log.append("late"))
        child = await fiber.ctx.plugin(undone(log, "child"))
        task = fiber.ctx.spawn(asyncio.Event().wait(), "late")
        assert child.state is S.ACTIVE
    with pytest.raises(InactiveEffect):
        fiber.ctx.defer(lambda: None)
    await disposal

    assert log == ["child", "late", "body"]
    assert task.cancelled()


async def test_the_stop_signal_is_silent_until_the_work_has_ended(root: Context) -> None:
    parent = await root.plugin(lambda ctx: None)
    fiber = await parent.ctx.plugin(lambda ctx: None)
    stop, above = fiber.ctx.stop, parent.ctx.stop
    async with in_flight(fiber):
        disposal = parent.dispose()
        await ticks()
        assert above.aborted
        assert not stop.aborted
        assert not fiber.ctx.stop.aborted
    await disposal

    assert stop.aborted


async def test_the_stop_signal_of_a_long_setup_fires_at_once(root: Context, log: Log) -> None:
    async def body(ctx: Context) -> None:
        await ctx.stop.wait()
        log.append("stopped")

    fiber = root.plugin(body)
    await ticks(3)
    await fiber.dispose()

    assert log == ["stopped"]


async def test_no_lease_is_given_by_a_plugin_that_goes(root: Context) -> None:
    async def slow() -> None:
        await ticks(5)

    fiber = await root.plugin(lambda ctx: slow)
    async with in_flight(fiber):
        disposal = fiber.dispose()
        with pytest.raises(InactiveEffect), fiber.lease("late"):
            pass
    await ticks(2)
    assert fiber.state is S.UNLOADING
    with pytest.raises(InactiveEffect), fiber.lease("late"):
        pass
    await disposal
    with pytest.raises(InactiveEffect), fiber.lease("late"):
        pass


async def test_a_plugin_that_restarts_may_still_be_used_until_it_does(root: Context) -> None:
    fiber = await root.plugin(lambda ctx: None)
    async with in_flight(fiber, "first") as first:
        restart = fiber.restart()
        async with in_flight(fiber, "second"):
            first.end.set()
            await ticks()
            assert fiber.leases == ("second",)
            assert fiber.state is S.ACTIVE
    await restart


async def test_a_lease_serves_for_one_with_statement(root: Context) -> None:
    fiber = await root.plugin(lambda ctx: None)
    lease = fiber.lease("once")
    with lease:
        pass
    with pytest.raises(RuntimeError, match="once"), lease:
        pass


# the grace


async def test_after_the_grace_it_goes_on_and_says_what_was_left(
    root: Context, log: Log, reports: Reports
) -> None:
    root.set_lease_grace(0.01)

    def slow_tool(ctx: Context) -> Callable[[], None]:
        return lambda: log.append("undone")

    fiber = await root.plugin(slow_tool)
    async with in_flight(fiber, "tool read"), in_flight(fiber, "tool write"):
        await fiber.dispose()
        assert fiber.state is S.DISPOSED

    [error] = reports.errors
    assert isinstance(error, LeaseExpired)
    assert error.labels == ("tool read", "tool write")
    assert "'slow_tool' is unloaded with work still in flight after 0.01 s: tool read" in str(error)
    assert reports.owners == ["slow_tool"]


async def test_an_expired_lease_does_not_hold_the_next_activation(
    root: Context, reports: Reports
) -> None:
    root.set_lease_grace(0.01)
    fiber = await root.plugin(lambda ctx: None)
    async with in_flight(fiber):
        await fiber.restart()
        root.set_lease_grace(3600)
        assert fiber.leases == ()
        await fiber.restart()
    assert len(reports.errors) == 1


# no wait for itself


async def test_work_that_disposes_of_its_own_plugin_does_not_wait_for_itself(
    root: Context, log: Log
) -> None:
    fiber = await root.plugin(undone(log, "undone"))
    with fiber.lease("own"):
        await fiber.dispose()
        log.append("went on")

    assert log == ["undone", "went on"]


async def test_work_of_others_is_still_waited_for(root: Context, log: Log) -> None:
    fiber = await root.plugin(undone(log, "undone"))
    async with in_flight(fiber):

        async def leave() -> None:
            with fiber.lease("own"):
                await fiber.dispose()

        leaving = asyncio.create_task(leave())
        await ticks()
        assert log == []
    await leaving

    assert log == ["undone"]


async def test_tasks_started_inside_a_lease_count_as_part_of_it(root: Context) -> None:
    fiber = await root.plugin(lambda ctx: None)
    with fiber.lease("own"):
        await asyncio.create_task(join(fiber.restart()))
        await root.spawn(join(fiber.dispose()), "elsewhere")


async def test_work_may_join_what_waits_for_its_plugin(root: Context, log: Log) -> None:
    source = await root.plugin(provider(1))
    fiber = await root.inject(["foo"], undone(log, "dependant"))
    with fiber.lease("through a dependant"):
        await source.restart()
    await fiber
    with fiber.lease("through an ancestor"):
        await root.dispose()

    assert log == ["dependant", "dependant"]


async def test_work_may_withdraw_a_service_that_its_plugin_holds(root: Context, log: Log) -> None:
    provision = root.provide("foo", 1)
    fiber = await root.inject(["foo"], undone(log, "dependant"))
    with fiber.lease("own"):
        await provision.dispose()

    assert log == ["dependant"]


async def test_work_that_joins_later_is_left_out_from_then_on(root: Context, log: Log) -> None:
    fiber = await root.plugin(undone(log, "undone"))
    with fiber.lease("own"):
        disposal = fiber.dispose()
        await ticks()
        assert log == []
        await disposal
        assert log == ["undone"]


async def test_a_body_that_awaits_its_own_disposal_under_a_lease_is_told(
    root: Context, log: Log
) -> None:
    async def body(ctx: Context) -> None:
        with ctx.fiber.lease("own"), pytest.raises(ReentrantAwait):
            await ctx.fiber.dispose()
        log.append("went on")

    fiber = root.plugin(body)
    await ticks()

    assert log == ["went on"]
    assert fiber.state is S.DISPOSED


async def test_work_that_stands_aside_holds_nobody_meanwhile(root: Context, log: Log) -> None:
    fiber = await root.plugin(undone(log, "undone"))
    queue: asyncio.Queue[Fiber] = asyncio.Queue()

    async def worker() -> None:
        await (await queue.get()).dispose()
        answered.set()

    answered = asyncio.Event()
    working = asyncio.create_task(worker())
    with fiber.lease("own"):
        queue.put_nowait(fiber)
        await ticks()
        assert log == []
        with standing_aside():
            await answered.wait()
    await working

    assert log == ["undone"]


async def test_work_that_stands_aside_no_more_is_waited_for_again(root: Context, log: Log) -> None:
    fiber = await root.plugin(undone(log, "undone"))
    with fiber.lease("own"):
        with standing_aside():
            pass
        disposal = fiber.dispose()
        await ticks()
        assert log == []
    await disposal


async def test_a_lease_may_name_the_plugin_whose_unload_ends_the_work(
    root: Context, log: Log
) -> None:
    holder = await root.plugin(lambda ctx: None)
    tool = await root.plugin(undone(log, "tool undone"))
    end = asyncio.Event()

    async def turn() -> None:
        with tool.lease("turn", owner=holder):
            await end.wait()

    task = asyncio.create_task(turn())  # nobody's
    await ticks()
    holder.ctx.defer(end.set)
    root.defer(lambda: None)

    await root.dispose()
    await task

    assert log == ["tool undone"]


# teardown of the tree


def runner(tool: Fiber, log: Log) -> Callable[[Context], None]:
    """A plugin with a task that works through ``tool`` until it is cancelled."""

    async def turn() -> None:
        with tool.lease("turn"):
            try:
                await asyncio.Event().wait()
            finally:
                log.append("turn ended")

    return lambda ctx: ctx.spawn(turn(), "turn") and None


@pytest.mark.parametrize("mounted_first", ["tool", "runner"])
async def test_work_that_the_same_teardown_cancels_does_not_hold_it(
    root: Context, log: Log, mounted_first: str
) -> None:
    holder = await root.plugin(lambda ctx: None)
    tool = await root.plugin(undone(log, "tool undone"))
    where = holder.ctx if mounted_first == "runner" else root
    await where.plugin(runner(tool, log))
    await ticks()

    await root.dispose()

    assert sorted(map(str, log)) == ["tool undone", "turn ended"]


@pytest.mark.parametrize("mounted_first", ["tool", "runner"])
async def test_nor_does_it_when_the_two_are_torn_down_one_after_the_other(
    root: Context, log: Log, mounted_first: str
) -> None:
    first = await root.plugin(lambda ctx: None)
    root.defer(lambda: None)
    second = await root.plugin(lambda ctx: None)
    one, other = (first, second) if mounted_first == "tool" else (second, first)
    tool = await one.ctx.plugin(undone(log, "tool undone"))
    await other.ctx.plugin(runner(tool, log))
    await ticks()

    await root.dispose()

    assert sorted(map(str, log)) == ["tool undone", "turn ended"]


async def test_a_wait_that_began_before_the_teardown_ends_with_it(root: Context, log: Log) -> None:
    first = await root.plugin(lambda ctx: None)
    root.defer(lambda: None)
    tool = await root.plugin(undone(log, "tool undone"))
    await first.ctx.plugin(runner(tool, log))
    await ticks()
    gone = tool.dispose()
    await ticks()
    assert log == []

    await root.dispose()
    await gone

    assert log == ["tool undone", "turn ended"]


async def test_work_of_a_dependant_that_is_torn_down_first_is_waited_for(
    root: Context, log: Log
) -> None:
    tool = await root.plugin(undone(log, "tool undone"))
    await root.plugin(runner(tool, log))
    await ticks()

    await root.dispose()

    assert log == ["turn ended", "tool undone"]


async def test_a_reload_waits_for_the_turn_of_another_plugin(root: Context, log: Log) -> None:
    tool = await root.plugin(undone(log, "tool undone"))
    other = await root.plugin(runner(tool, log))
    await ticks()
    restart = tool.restart()
    await ticks()
    assert log == []
    await other.dispose()
    await restart

    assert log == ["turn ended", "tool undone"]


async def test_two_plugins_that_work_through_each_other_are_torn_down(
    root: Context, log: Log
) -> None:
    fibers: list[Fiber] = []

    def body(number: int) -> Callable[[Context], None]:
        async def turn() -> None:
            await ticks(2)
            with fibers[1 - number].lease("turn"):
                await asyncio.Event().wait()

        return lambda ctx: ctx.spawn(turn(), f"turn {number}") and None

    fibers += [await root.plugin(body(0)), await root.plugin(body(1))]
    await ticks()

    await root.dispose()

    assert [fiber.state for fiber in fibers] == [S.DISPOSED, S.DISPOSED]


async def test_a_task_of_the_plugin_itself_is_waited_for_but_not_at_the_end(
    root: Context, log: Log
) -> None:
    ends = [asyncio.Event(), asyncio.Event()]

    def body(ctx: Context) -> None:
        async def turn(end: asyncio.Event) -> None:
            with ctx.fiber.lease("turn"):
                await end.wait()
            log.append("turn ended")

        ctx.spawn(turn(ends.pop()), "turn")

    end = ends[-1]
    fiber = await root.plugin(body)
    await ticks()
    restart = fiber.restart()
    await ticks()
    assert log == []
    end.set()
    await restart
    await ticks()

    await root.dispose()
    assert log == ["turn ended"]


async def test_the_root_waits_for_no_work_below_it(root: Context, log: Log) -> None:
    await root.plugin(runner(root.fiber, log))
    await ticks()

    await root.dispose()

    assert log == ["turn ended"]
    assert root.fiber.leases == ()


async def test_a_loop_that_ends_does_not_wait(log: Log) -> None:
    root = Context()
    fiber = await root.plugin(undone(log, "undone"))

    async def hang() -> None:
        with fiber.lease("hang"):
            await asyncio.Event().wait()

    task = asyncio.create_task(hang())
    await ticks()
    disposal = fiber.dispose()
    await ticks(2)
    driver = fiber._driver
    assert driver is not None
    driver.cancel()
    await asyncio.wait([driver])
    task.cancel()
    await asyncio.wait([task])
    await disposal

    assert log == ["undone"]


async def test_leases_leave_nothing_behind(root: Context) -> None:
    before = root.census()
    for _ in range(3):
        fiber = await root.plugin(lambda ctx: None)
        async with in_flight(fiber):
            disposal = fiber.dispose()
        await disposal

    assert root.census() == before
    assert not root.fiber.kernel.draining
    assert not root.fiber.kernel.joins
