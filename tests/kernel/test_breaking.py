"""Attacks on the kernel: closing loops, wrong threads, cancelled waiters, unruly generators."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from kernel_support import Reports, join, quiet, ticks, until

from dsh.kernel import (
    INTERNAL_PLUGIN,
    INTERNAL_STATUS,
    Context,
    Effect,
    Emit,
    Fiber,
    FiberState,
    InactiveEffect,
    Parallel,
    ReentrantAwait,
    Service,
    WrongLoop,
    bind_scope_parent,
    create_scope,
    plugin,
    scope_target,
)

PING = Emit[None]("test/ping")
S = FiberState


class Key:
    """A scope key."""


# loops that end


def end_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Do what ``asyncio.run`` does at its end."""

    async def gather() -> None:
        await asyncio.gather(*tasks, return_exceptions=True)

    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    loop.run_until_complete(gather())


@pytest.mark.parametrize("ticked", [0, 1, 2, 3])
def test_loop_that_ends_at_any_tick_undoes_what_was_registered(ticked: int) -> None:
    root, log, start = Context(), [], Context().census()
    loop = asyncio.new_event_loop()

    async def setup() -> Callable[[], object]:
        log.append("set up")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return lambda: log.append("undone")

    async def undo() -> None:
        log.append("freed")

    async def main() -> None:
        async def body(ctx: Context) -> None:
            ctx.defer(undo)
            log.append("held")
            ctx.effect(setup)
            await asyncio.sleep(0)

        fiber = root.plugin(body)
        root.effect(setup)
        root.defer(undo).dispose()
        log.append("held")
        await ticks(ticked)
        if ticked == 2:
            fiber.dispose()

    async def end() -> None:
        await root.dispose()

    loop.run_until_complete(main())
    end_loop(loop)
    loop.run_until_complete(end())
    loop.close()
    assert log.count("held") == log.count("freed")
    assert log.count("undone") <= log.count("set up")
    assert root.census() == start


async def test_kernel_work_cancelled_before_its_first_step_leaves_nothing_undone(
    root: Context, log: list[object]
) -> None:
    async def setup() -> Callable[[], object]:
        log.append("set up")
        return lambda: log.append("undone")

    async def undo() -> None:
        log.append("freed")

    before = asyncio.all_tasks()
    fiber = root.plugin(lambda ctx: log.append("never"))
    effect = root.effect(setup)
    disposal = root.defer(undo).dispose()
    for task in asyncio.all_tasks() - before:
        task.cancel()
    await ticks()
    assert (fiber.state, effect.done, disposal.done) == (S.PENDING, False, True)
    assert not root.fiber.kernel.tasks
    await fiber.dispose()
    await effect.dispose()
    assert fiber.state is S.DISPOSED
    assert log == ["set up", "freed", "undone"]


@pytest.mark.parametrize("late", [0, 3])
async def test_setup_that_a_loop_s_end_cancels_ends_without_a_report(
    root: Context, reports: Reports, late: int
) -> None:
    before = asyncio.all_tasks()
    effect = root.effect(lambda: asyncio.sleep(60))
    await ticks(late)
    (task,) = asyncio.all_tasks() - before
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await effect
    assert effect.done
    assert reports.errors == []


async def test_task_cancelled_before_its_first_step_warns_of_nothing(
    root: Context, recwarn: pytest.WarningsRecorder
) -> None:
    ended: list[str] = []

    async def work() -> None:
        ended.append("ran")

    root.spawn(work(), "spawned").cancel()
    soft = plugin(cancel_setup=True)(lambda ctx: work())
    fiber = root.plugin(soft)
    await until(lambda: fiber._setup is not None or fiber.state is S.ACTIVE)
    await fiber.dispose()
    await ticks()
    assert ended == []
    assert [str(item.message) for item in recwarn.list] == []


async def test_listener_in_progress_is_not_closed_under_a_dispatch_cancelled_twice(
    root: Context, log: list[object]
) -> None:
    event, go = Parallel[None]("test/parallel"), asyncio.Event()

    async def stubborn(_: None) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await go.wait()
            log.append("ended by itself")

    root.on(event, stubborn)
    dispatch = asyncio.ensure_future(root.parallel(event, None))
    for _ in range(2):
        await ticks()
        dispatch.cancel()
    with pytest.raises(asyncio.CancelledError):
        await dispatch
    go.set()
    await ticks()
    assert log == ["ended by itself"]


# threads and missing loops


def in_thread(call: Callable[[], object]) -> BaseException | None:
    caught: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return caught[0] if caught else None


@pytest.mark.parametrize("what", ["fiber", "root", "effect", "restart", "update"])
async def test_request_from_another_thread_is_refused_before_it_changes_anything(
    root: Context, log: list[object], what: str
) -> None:
    async def undo() -> None:
        log.append("undone")

    fiber = await root.plugin(lambda ctx: ctx.defer(undo))
    effect = root.defer(lambda: log.append("effect"))
    calls: dict[str, Callable[[], object]] = {
        "fiber": fiber.dispose,
        "root": root.dispose,
        "effect": effect.dispose,
        "restart": fiber.restart,
        "update": lambda: fiber.update(1),
    }

    assert isinstance(in_thread(calls[what]), WrongLoop)

    await ticks()
    assert (fiber.state, effect.done, log) == (S.ACTIVE, False, [])
    assert root.fiber._target == root.fiber._loaded
    await root.dispose()
    assert log == ["effect", "undone"]


def test_mount_without_a_loop_leaves_nothing() -> None:
    root, undone = Context(), []
    root.provide("foo", 1)
    start = root.census()
    with pytest.raises(WrongLoop):
        root.plugin(lambda ctx: None)
    with pytest.raises(WrongLoop):
        root.inject(["foo"], lambda ctx: None)
    assert root.census() == start

    def defer(ctx: Context) -> None:
        if ctx.fiber.uid is not None:
            ctx.defer(lambda: undone.append(1))

    announced = root.on(INTERNAL_PLUGIN, lambda event: defer(event.fiber.ctx))
    with pytest.raises(WrongLoop):
        root.plugin(lambda ctx: None)
    announced.dispose()
    assert undone == [1]
    assert root.census() == start


def test_service_that_would_start_plugins_without_a_loop_is_refused_and_works_later() -> None:
    root, ran = Context(), []
    waiting = root.inject(["foo"], lambda ctx: ran.append(ctx.foo))
    with pytest.raises(WrongLoop):
        root.provide("foo", 1)
    assert root.get("foo", strict=False) is None
    assert waiting.state is S.PENDING

    async def main() -> None:
        root.provide("foo", 2)
        await waiting
        await root.dispose()

    asyncio.run(main())
    assert ran == [2]


# waiters


@pytest.mark.parametrize("delay", range(8))
async def test_waiter_cancelled_at_any_tick_leaves_the_transition_alone(
    root: Context, log: list[object], delay: int
) -> None:
    async def setup() -> Callable[[], Any]:
        await ticks(2)
        log.append("set up")
        return lambda: undo()

    async def undo() -> None:
        await ticks(2)
        log.append("undone")

    fiber = root.plugin(lambda ctx: ctx.effect(setup))
    effect = root.effect(setup)
    waits: list[Any] = [fiber, fiber.restart(), effect, fiber.dispose(), effect.dispose()]
    waiters = [asyncio.ensure_future(join(each)) for each in waits]
    await ticks(delay)
    for waiter in waiters:
        waiter.cancel()
    await asyncio.gather(*waiters, return_exceptions=True)
    await fiber.dispose()
    await root.dispose()
    assert log.count("set up") == log.count("undone") >= 1
    assert fiber._waits is None


async def test_concurrent_disposals_all_join_one_end(root: Context, log: list[object]) -> None:
    async def undo() -> None:
        await ticks(3)
        log.append("undone")

    fiber = await root.plugin(lambda ctx: ctx.defer(undo))

    async def dispose() -> tuple[str, int]:
        await fiber.dispose()
        return fiber.state.label, len(log)

    ends = await asyncio.gather(*(dispose() for _ in range(5)), join(root.dispose()))
    assert ends[:5] == [("disposed", 1)] * 5


@pytest.mark.parametrize("where", ["status", "undo", "check", "setup", "service"])
async def test_disposal_from_anywhere_ends_disposed(
    root: Context, reports: Reports, where: str
) -> None:
    holder: list[Fiber] = []

    def go(*_: object) -> bool:
        if holder:
            holder[0].dispose()
        return True

    if where == "status":
        root.on(INTERNAL_STATUS, go)
    elif where == "service":
        root.on("internal/service", go)
    root.provide("foo", 1, check=go if where == "check" else None)

    def body(ctx: Context) -> None:
        ctx.provide("bar", 1)
        ctx.defer(go if where == "undo" else lambda: None)
        ctx.effect(lambda: go() and None if where == "setup" else None)

    holder.append(root.inject(["foo"], body))
    fiber = holder[0]
    if where == "undo":
        await fiber
        fiber.restart()
    await quiet(fiber)
    if where == "check":
        fiber.refresh()
    await fiber.dispose()
    assert fiber.state is S.DISPOSED
    assert root.get("bar", strict=False) is None
    assert reports.errors == []


async def test_service_provided_in_an_undo_is_refused_and_one_withdrawn_there_is_free(
    root: Context, reports: Reports
) -> None:
    spare: list[Effect] = [root.provide("spare", 1)]

    def body(ctx: Context) -> None:
        ctx.defer(lambda: ctx.provide("late", 1))
        ctx.defer(lambda: spare.pop().dispose())

    user = await root.inject(["spare"], lambda ctx: None)
    fiber = await root.plugin(body)
    await fiber.dispose()
    await user
    assert user.state is S.PENDING
    assert [type(error) for error in reports.errors] == [InactiveEffect]
    root.provide("spare", 2)
    await user
    assert user.state is S.ACTIVE


async def test_circle_that_closes_while_others_wait_already_is_broken_once(
    root: Context, reports: Reports
) -> None:
    gate = asyncio.Event()
    fibers: dict[str, Fiber] = {}

    def waits_for(name: str) -> Callable[[Context], None]:
        async def undo() -> None:
            await fibers[name].dispose()

        return lambda ctx: ctx.defer(undo) and None

    async def parent(ctx: Context) -> None:
        fibers["child"] = ctx.plugin(waits_for("other"))
        ctx.defer(gate.wait)

    fibers["parent"] = await root.plugin(parent)
    fibers["other"] = await root.plugin(waits_for("parent"))
    await fibers["child"]
    for name in ("parent", "other", "child"):
        fibers[name].dispose()
        await ticks()
    gate.set()
    await until(lambda: not root.fiber.kernel.tasks)

    assert {fiber.state for fiber in fibers.values()} == {S.DISPOSED}
    assert [type(error) for error in reports.errors] == [ReentrantAwait]
    assert not root.fiber.kernel.joins


async def test_task_that_outlives_the_body_it_came_from_makes_no_circle(root: Context) -> None:
    gate, again = asyncio.Event(), asyncio.Event()
    tasks: list[asyncio.Future[Any]] = []

    async def other(ctx: Context) -> None:
        await gate.wait()
        await first

    async def body(ctx: Context) -> None:
        if tasks:
            await again.wait()
        else:
            tasks.append(asyncio.ensure_future(join(second)))
            await asyncio.sleep(0)

    second = root.plugin(other)
    first = await root.plugin(body)
    first.restart()
    await until(lambda: first.state is S.LOADING)
    gate.set()
    await ticks()
    assert (second.state, second.error) == (S.LOADING, None)

    again.set()
    await asyncio.gather(second.wait(), *tasks)
    assert (first.state, second.state) == (S.ACTIVE, S.ACTIVE)


# generators


async def test_generator_that_will_not_close_is_reported_and_its_error_kept(
    root: Context, reports: Reports, log: list[object]
) -> None:
    def stubborn() -> Iterator[Callable[[], object] | int]:
        try:
            yield lambda: log.append("undone")
            yield 42
        finally:
            yield lambda: None

    async def stubborn_later() -> AsyncIterator[Callable[[], object] | int]:
        try:
            yield lambda: log.append("undone")
            yield 42
        finally:
            yield lambda: None

    with pytest.raises(TypeError, match="int"):
        root.effect(stubborn)
    with pytest.raises(TypeError, match="int"):
        await root.effect(stubborn_later)
    assert log == ["undone", "undone"]
    assert [text for text in reports.texts if "ignored GeneratorExit" in text] == [
        "generator ignored GeneratorExit",
        "async generator ignored GeneratorExit",
    ]


async def test_generator_whose_finally_raises_keeps_the_first_error_and_undoes(
    root: Context, reports: Reports, log: list[object]
) -> None:
    def setup() -> Iterator[Callable[[], object] | int]:
        try:
            yield lambda: log.append("undone")
            yield 42
        finally:
            raise KeyError("finally")

    with pytest.raises(TypeError, match="int"):
        root.effect(setup)
    assert log == ["undone"]
    assert [type(error) for error in reports.errors] == [KeyError]


async def test_fixture_like_effect_whose_teardown_raises_does_not_stop_the_others(
    root: Context, reports: Reports, log: list[object]
) -> None:
    async def setup() -> AsyncIterator[None]:
        yield
        raise SystemExit

    def body(ctx: Context) -> None:
        ctx.defer(lambda: log.append("last"))
        ctx.effect(setup)

    fiber = await root.plugin(body)
    await ticks()
    await fiber.dispose()
    assert (log, len(reports.errors)) == (["last"], 1)


# depth


async def test_deep_nesting_of_plugins_effects_and_listeners_does_not_recurse(
    root: Context, log: list[object]
) -> None:
    made = 0

    def body(ctx: Context) -> Any:
        nonlocal made
        made += 1
        ctx.on(PING, lambda _: None)
        return ctx.plugin(lambda inner: body(inner)) if made < 300 else None

    fiber = root.plugin(body)
    for number in range(10_000):
        root.defer(lambda number=number: log.append(number))
    await until(lambda: made == 300)
    await fiber
    before = root.listener_count(PING.name)
    await root.dispose()
    assert before == 300
    assert root.listener_count(PING.name) == 0
    assert log == list(range(9_999, -1, -1))


# routes that carriers remember


async def test_routes_follow_listeners_links_and_everywhere(
    root: Context, log: list[object]
) -> None:
    child, mother, other = Key(), Key(), Key()
    binding = bind_scope_parent(child, mother)
    scopes = {"child": create_scope(root, child), "mother": create_scope(root, mother)}
    scopes["other"] = create_scope(root, other)
    target = scope_target(root, child)

    def heard() -> list[object]:
        log.clear()
        root.emit(PING, None, target)
        return list(log)

    effects = {
        name: scope.ctx.on(PING, lambda _, name=name: log.append(name))
        for name, scope in scopes.items()
    }
    assert heard() == heard() == ["child", "mother"]
    binding.rebind(other)
    assert heard() == ["child", "other"]
    await effects["child"].dispose()
    assert heard() == ["other"]
    scopes["mother"].ctx.on(PING, lambda _: log.append("all"), everywhere=True, prepend=True)
    assert heard() == ["all", "other"]
    await scopes["other"].dispose()
    assert heard() == ["all"]
    assert root.fiber.kernel.hub.slots[PING.name].routes


async def test_filter_that_may_change_its_mind_is_asked_each_time(
    root: Context, log: list[object]
) -> None:
    class Moody:
        yes = True

        def accepts_listener(self, ctx: Context) -> bool:
            return self.yes

    moody, key = Moody(), Key()
    root.on(PING, lambda _: log.append("heard"))
    for target in (scope_target(moody, key), scope_target(scope_target(moody, key), key)):
        moody.yes = True
        root.emit(PING, None, target)
        moody.yes = False
        root.emit(PING, None, target)
    assert log == ["heard", "heard"]


async def test_service_that_decides_its_own_scope_is_asked_each_time(
    root: Context, log: list[object]
) -> None:
    class Moody(Service):
        name = "moody"
        yes = True

        def same_scope(self, ctx: Context) -> bool:
            return self.yes

    await root.plugin(Moody)
    root.on(PING, lambda _: log.append("heard"))
    target = scope_target(root.require(Moody), Key())
    root.emit(PING, None, target)
    Moody.yes = False
    root.emit(PING, None, target)
    assert log == ["heard"]


async def test_remembered_routes_keep_no_carrier_alive_and_stay_few(root: Context) -> None:
    key = Key()
    root.on(PING, lambda _: None)
    carriers = [scope_target(root, key) for _ in range(1_000)]
    for carrier in carriers:
        root.emit(PING, None, carrier)
    gone = weakref.ref(carriers.pop())
    del carrier
    assert len(root.fiber.kernel.hub.slots[PING.name].routes) <= 256
    assert gone() is None
