"""The fiber machine: states, transitions, failure, disposal, update, waiting."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from kernel_support import Reports, join, provider, quiet, ticks, until

from dsh.base.signal import AbortedError
from dsh.kernel import (
    INTERNAL_CONFIG,
    INTERNAL_JOIN,
    INTERNAL_PLUGIN,
    INTERNAL_STATUS,
    INTERNAL_UPDATE,
    Context,
    Effect,
    Emit,
    Fiber,
    FiberAnnounced,
    FiberState,
    InactiveEffect,
    Inject,
    InvalidPlugin,
    ReentrantAwait,
    StrayExit,
    UpdateRequested,
    ValidationError,
    WrongLoop,
    plugin,
)

PING = Emit[None]("test/ping")
S = FiberState


# states and targets


async def test_state_numbers_and_labels_are_wire_facts() -> None:
    assert [(state.value, state.label) for state in S] == [
        (0, "pending"),
        (1, "loading"),
        (2, "active"),
        (3, "failed"),
        (4, "disposed"),
        (5, "unloading"),
    ]


async def test_mount_is_loading_at_once_and_runs_after_a_tick(
    root: Context, log: list[object]
) -> None:
    fiber = root.plugin(lambda ctx: log.append("body"))
    assert (fiber.state, log) == (S.LOADING, [])
    assert await fiber is fiber
    assert (fiber.state, log) == (S.ACTIVE, ["body"])


async def test_inject_waits_and_a_loading_provider_does_not_count(
    root: Context, log: list[object]
) -> None:
    gate = asyncio.Event()

    async def slow(ctx: Context) -> None:
        ctx.provide("foo", 1)
        await gate.wait()

    user = root.inject(["foo"], lambda ctx: log.append(ctx.foo))
    await user
    assert user.state is S.PENDING
    giver = root.plugin(slow)
    await ticks()
    assert (giver.state, user.state, log) == (S.LOADING, S.PENDING, [])
    gate.set()
    await giver
    await user
    assert log == [1]


async def test_losing_a_service_while_loading_ends_the_body_then_unloads(
    root: Context, log: list[object]
) -> None:
    gate = asyncio.Event()

    async def body(ctx: Context) -> Callable[[], None]:
        log.append(("start", ctx.foo))
        await gate.wait()
        log.append("end")
        return lambda: log.append("undo")

    giver = await root.plugin(provider(1))
    user = root.inject(["foo"], body)
    await ticks()
    giver.dispose()
    await ticks()
    assert (user.state, log) == (S.LOADING, [("start", 1)])
    gate.set()
    await user
    assert (user.state, log) == (S.PENDING, [("start", 1), "end", "undo"])


async def test_service_back_before_the_unload_ends_leads_to_active_again(
    root: Context, log: list[object]
) -> None:
    gate = asyncio.Event()

    def body(ctx: Context) -> Callable[[], Any]:
        log.append(ctx.foo)

        async def undo() -> None:
            await gate.wait()

        return undo

    first = root.provide("foo", 1)
    user = await root.inject(["foo"], body)
    first.dispose()
    await ticks()
    assert user.state is S.UNLOADING
    root.provide("foo", 2)
    await ticks()
    assert user.state is S.UNLOADING
    gate.set()
    await user
    assert (user.state, log) == (S.ACTIVE, [1, 2])


async def test_service_gone_and_provided_again_while_loading_reloads_with_the_new_value(
    root: Context, log: list[object]
) -> None:
    gate = asyncio.Event()

    async def body(ctx: Context) -> None:
        log.append(ctx.foo)
        await gate.wait()

    first = root.provide("foo", 1)
    user = root.inject(["foo"], body)
    await ticks()
    first.dispose()
    root.provide("foo", 2)
    await ticks()
    assert (user.state, log) == (S.LOADING, [1])
    gate.set()
    await user
    assert (user.state, log) == (S.ACTIVE, [1, 2])


async def test_an_equal_target_at_the_end_of_a_load_changes_nothing(
    root: Context, log: list[object]
) -> None:
    gate, ready = asyncio.Event(), [True]

    async def body(ctx: Context) -> None:
        log.append("body")
        await gate.wait()

    root.provide("foo", 1, check=lambda: ready[0])
    user = root.inject(["foo"], body)
    await ticks()
    ready[0] = False
    user.refresh()
    ready[0] = True
    user.refresh()
    gate.set()
    await user
    assert (user.state, log) == (S.ACTIVE, ["body"])


async def test_a_stale_load_that_never_ran_undoes_what_was_registered_while_pending(
    root: Context, log: list[object]
) -> None:
    def announce(event: FiberAnnounced) -> None:
        if event.fiber.uid is not None:
            event.fiber.ctx.defer(lambda: log.append("undone"))

    root.on(INTERNAL_PLUGIN, announce)
    held = root.provide("foo", 1)
    user = root.inject(["foo"], lambda ctx: log.append("body"))
    held.dispose()
    await user
    assert (user.state, log) == (S.PENDING, ["undone"])


async def test_disposal_during_the_unload_of_a_stale_load_ends_disposed(root: Context) -> None:
    async def undo() -> None:
        await ticks(5)

    held = root.provide("foo", 1)
    user = root.inject(["foo"], lambda ctx: None)
    user.ctx.defer(undo)
    held.dispose()
    await ticks(2)
    assert user.state is S.UNLOADING
    await user.dispose()
    assert user.state is S.DISPOSED


async def test_optional_service_never_gates_and_its_change_reloads(
    root: Context, log: list[object]
) -> None:
    user = await root.inject([Inject.optional("foo")], lambda ctx: log.append(ctx.get("foo")))
    assert user.state is S.ACTIVE
    giver = await root.plugin(provider(7))
    await user
    await giver.dispose()
    await user
    assert log == [None, 7, None]


@pytest.mark.parametrize("shape", ["itself", "child", "dependant"])
async def test_optional_service_that_rests_on_the_fiber_itself_does_not_reload_it(
    root: Context, log: list[object], shape: str
) -> None:
    async def body(ctx: Context) -> None:
        log.append(ctx.get("foo"))
        if shape == "itself":
            ctx.provide("foo", 1)
        elif shape == "child":
            await ctx.plugin(provider(1))
        else:
            ctx.provide("base", 0)

    def dependant(ctx: Context) -> None:
        ctx.provide("foo", ctx.base)

    root.inject(["base"], dependant)
    fiber = root.inject([Inject.optional("foo")], body)
    await ticks(50)
    assert (fiber.state, log) == (S.ACTIVE, [None])
    assert root.get("foo") is not None


async def test_optional_service_that_came_to_rest_on_its_user_is_kept(
    root: Context, log: list[object]
) -> None:
    @plugin(inject=[Inject.optional("red")])
    def user(ctx: Context) -> None:
        ctx.provide("green", 1)
        log.append(ctx.get("red"))

    first = await root.plugin(user)
    second = root.inject(["red", "green"], lambda ctx: None)
    second.ctx.plugin(provider(2, "red"))
    await until(lambda: not root.fiber.kernel.tasks)
    assert (second.state, log) == (S.ACTIVE, [None, 2])

    first.refresh()
    await first
    assert (second.state, log) == (S.ACTIVE, [None, 2])


async def test_withdrawing_one_service_unloads_only_its_dependants(root: Context) -> None:
    foo, _bar = root.provide("foo", 1), root.provide("bar", 2)
    a, b = root.inject(["foo"], lambda ctx: None), root.inject(["bar"], lambda ctx: None)
    await a
    await b
    await foo.dispose()
    assert (a.state, b.state) == (S.PENDING, S.ACTIVE)


# unloading


async def test_dependant_is_pending_only_after_its_cleanup_and_the_provider_awaits_that(
    root: Context, log: list[object]
) -> None:
    gate = asyncio.Event()

    async def undo() -> None:
        await gate.wait()
        log.append("dependant")

    def give(ctx: Context) -> None:
        ctx.defer(lambda: log.append("own"))
        ctx.provide("foo", 1)

    giver = await root.plugin(give)
    user = await root.inject(["foo"], lambda ctx: undo)
    disposal = asyncio.ensure_future(join(giver.dispose()))
    await ticks()
    assert (user.state, disposal.done(), log) == (S.UNLOADING, False, [])
    gate.set()
    await disposal
    assert (user.state, giver.state, log) == (S.PENDING, S.DISPOSED, ["dependant", "own"])


async def test_withdrawn_service_is_readable_in_cleanup_and_not_afterwards(
    root: Context, log: list[object]
) -> None:
    held: list[Context] = []

    def body(ctx: Context) -> Callable[[], None]:
        held.append(ctx)
        return lambda: log.append((ctx.foo, ctx.get("foo")))

    giver = await root.plugin(provider("value"))
    await root.inject(["foo"], body)
    await giver.dispose()
    assert log == [("value", "value")]
    with pytest.raises(AttributeError, match="in inactive context"):
        _ = held[0].foo


async def test_effects_are_undone_last_first_each_awaited_before_the_next(
    root: Context, log: list[object]
) -> None:
    def slow(name: str) -> Callable[[], Any]:
        async def undo() -> None:
            log.append(f"{name} begins")
            await ticks(3)
            log.append(f"{name} ends")

        return undo

    def body(ctx: Context) -> None:
        ctx.defer(slow("a"))
        ctx.defer(lambda: log.append("b"))
        ctx.defer(slow("c"))

    await (await root.plugin(body)).dispose()
    assert log == ["c begins", "c ends", "b", "a begins", "a ends"]


async def test_neighbouring_children_are_torn_down_together(
    root: Context, log: list[object]
) -> None:
    def child(name: str) -> Callable[[Context], Any]:
        async def undo() -> None:
            log.append(f"{name}+")
            await ticks(3)
            log.append(f"{name}-")

        return lambda ctx: undo

    async def body(ctx: Context) -> None:
        await ctx.plugin(child("a"))
        await ctx.plugin(child("b"))
        ctx.defer(lambda: log.append("between"))
        await ctx.plugin(child("c"))

    await (await root.plugin(body)).dispose()
    assert log == ["c+", "c-", "between", "b+", "a+", "b-", "a-"]


async def test_a_body_s_cleanup_runs_after_what_the_body_registered(
    root: Context, log: list[object]
) -> None:
    def body(ctx: Context) -> Callable[[], None]:
        ctx.defer(lambda: log.append("listener"))
        return lambda: log.append("close")

    await (await root.plugin(body)).dispose()
    assert log == ["listener", "close"]


async def test_an_undo_that_raises_is_reported_once_and_the_rest_still_runs(
    root: Context, reports: Reports, log: list[object]
) -> None:
    def fail() -> None:
        raise ValueError("no")

    @plugin(name="frail")
    def body(ctx: Context) -> None:
        ctx.defer(lambda: log.append("first"))
        ctx.defer(fail, "frail undo")

    fiber = await root.plugin(body)
    await fiber.dispose()
    assert (fiber.state, log) == (S.DISPOSED, ["first"])
    assert (reports.texts, reports.owners, reports.labels) == (["no"], ["frail"], ["frail undo"])


async def test_cancelling_who_awaits_a_disposal_leaves_the_cleanup_running(
    root: Context, log: list[object]
) -> None:
    gate = asyncio.Event()

    async def undo() -> None:
        await gate.wait()
        log.append("undone")

    fiber = await root.plugin(lambda ctx: undo)
    waiter = asyncio.ensure_future(join(fiber.dispose()))
    await ticks()
    waiter.cancel()
    await asyncio.wait([waiter])
    assert (waiter.cancelled(), fiber.state) == (True, S.UNLOADING)
    gate.set()
    await fiber.dispose()
    assert log == ["undone"]


async def test_a_provider_that_waits_for_itself_through_a_dependant_releases_it(
    root: Context, log: list[object], caplog: pytest.LogCaptureFixture
) -> None:
    giver = await root.plugin(provider(1))

    def body(ctx: Context) -> Callable[[], Any]:
        async def undo() -> None:
            await giver.dispose()
            log.append("dependant")

        return undo

    await root.inject(["foo"], body)
    await asyncio.wait_for(join(giver.dispose()), 2)
    await ticks()
    assert (giver.state, log) == (S.DISPOSED, ["dependant"])
    assert "without waiting for its dependant" in caplog.text


async def test_a_circle_of_services_through_a_child_is_released(
    root: Context, caplog: pytest.LogCaptureFixture
) -> None:
    async def undo() -> None:
        await ticks(3)

    @plugin(name="top", inject=["red"])
    def top(ctx: Context) -> Callable[[], Any]:
        return undo

    @plugin(name="middle", inject=["blue"])
    def middle(ctx: Context) -> Callable[[], Any]:
        ctx.provide("red", 1)
        return undo

    def bottom(ctx: Context) -> Callable[[], Any]:
        ctx.provide("blue", 1)
        return undo

    upper = root.plugin(top)
    lower = upper.ctx.plugin(bottom)
    root.plugin(middle)
    await until(lambda: upper.state is lower.state is S.ACTIVE)
    lower.restart()
    await ticks(2)
    await asyncio.wait_for(join(root.dispose()), 5)
    assert upper.state is lower.state is S.DISPOSED
    assert "without waiting for its dependant" in caplog.text


async def test_child_that_uses_its_parent_s_service_unloads_before_the_parent_s_resources(
    root: Context, log: list[object]
) -> None:
    async def body(ctx: Context) -> None:
        ctx.defer(lambda: log.append("resource"))
        ctx.provide("foo", 1)
        ctx.inject(["foo"], lambda inner: lambda: log.append("child"))

    fiber = await root.plugin(body)
    await ticks()
    await fiber.dispose()
    assert log == ["child", "resource"]


# failure


async def test_failed_body_is_undone_and_awaiting_raises_what_it_raised(
    root: Context, reports: Reports, log: list[object]
) -> None:
    def body(ctx: Context) -> None:
        ctx.defer(lambda: log.append("undone"))
        raise ValueError("broken")

    fiber = root.plugin(body)
    with pytest.raises(ValueError, match="broken"):
        await fiber
    with pytest.raises(ValueError, match="broken"):
        await fiber
    assert (fiber.state, log, reports.texts) == (S.FAILED, ["undone"], ["broken"])
    assert "mounted at" in "".join(getattr(fiber.error, "__notes__", []))


async def test_two_fibers_of_one_function_fail_independently(
    root: Context, reports: Reports
) -> None:
    def body(ctx: Context, config: bool) -> None:
        ctx.on(PING, lambda _: None)
        if config:
            raise ValueError("one of two")

    bad, good = root.plugin(body, True), root.plugin(body, False)
    await good
    await quiet(bad)
    assert (bad.state, good.state) == (S.FAILED, S.ACTIVE)
    assert len(reports.errors) == 1
    assert root.listener_count("test/ping") == 1


async def test_failed_fiber_tries_again_on_a_changed_service_restart_or_update(
    root: Context, reports: Reports, log: list[object]
) -> None:
    def body(ctx: Context, config: object) -> None:
        log.append((ctx.foo, config))
        if (ctx.foo, config) != (2, "ok"):
            raise ValueError("not yet")

    body.inject = ["foo"]  # type: ignore[attr-defined]
    held = root.provide("foo", 1)
    fiber = root.plugin(body, "bad")
    await quiet(fiber)
    assert fiber.state is S.FAILED
    fiber.refresh()
    await quiet(fiber)
    assert len(log) == 1
    with pytest.raises(ValueError, match="not yet"):
        await fiber.restart()
    await held.dispose()
    assert fiber.state is S.FAILED
    root.provide("foo", 2)
    await quiet(fiber)
    await fiber.update("ok")
    assert log == [(1, "bad"), (1, "bad"), (2, "bad"), (2, "ok")]
    assert (fiber.state, fiber.error) == (S.ACTIVE, None)


async def test_failed_fiber_that_is_restarted_without_its_services_is_pending(
    root: Context, reports: Reports
) -> None:
    def body(ctx: Context) -> None:
        raise ValueError("always")

    held = root.provide("foo", 1)
    fiber = root.inject(["foo"], body)
    await quiet(fiber)
    await held.dispose()
    assert fiber.state is S.FAILED
    await fiber.restart()
    assert (fiber.state, fiber.error) == (S.PENDING, None)


async def test_provider_that_provides_and_then_raises_leaves_no_service(
    root: Context, reports: Reports, log: list[object]
) -> None:
    def body(ctx: Context) -> None:
        ctx.provide("foo", 1)
        raise ValueError("after providing")

    user = root.inject(["foo"], lambda ctx: log.append("ran"))
    await quiet(root.plugin(body))
    assert root.get("foo", strict=False) is None
    assert (user.state, log) == (S.PENDING, [])
    root.provide("foo", 2)
    await user
    assert log == ["ran"]


async def test_body_that_raises_cancelled_error_fails_and_does_not_vanish(
    root: Context, reports: Reports
) -> None:
    async def body(ctx: Context) -> None:
        task = asyncio.ensure_future(asyncio.sleep(60))
        task.cancel()
        await task

    fiber = root.plugin(body)
    with pytest.raises(StrayExit, match="CancelledError") as caught:
        await fiber
    assert isinstance(caught.value.__cause__, asyncio.CancelledError)
    assert fiber.state is S.FAILED
    assert reports.errors == [caught.value]


# disposal


async def test_disposal_before_activation_never_runs_the_body(
    root: Context, log: list[object]
) -> None:
    fiber = root.plugin(lambda ctx: log.append("body"))
    await fiber.dispose()
    assert (fiber.state, fiber.uid, log) == (S.DISPOSED, None, [])


async def test_disposing_twice_runs_the_cleanup_once_and_joins(
    root: Context, log: list[object]
) -> None:
    async def undo() -> None:
        await ticks(3)
        log.append("undone")

    fiber = await root.plugin(lambda ctx: undo)
    first = fiber.dispose()
    await fiber.dispose()
    assert log == ["undone"]
    await first
    assert log == ["undone"]


async def test_nested_plugins_leave_nothing_and_mount_again_the_same(root: Context) -> None:
    def inner(ctx: Context) -> None:
        ctx.on(PING, lambda _: None)

    async def middle(ctx: Context) -> None:
        ctx.on(PING, lambda _: None)
        await ctx.plugin(inner)

    async def outer(ctx: Context) -> None:
        ctx.on(PING, lambda _: None)
        await ctx.plugin(middle)

    before = root.census()
    counts = []
    for _ in range(3):
        fiber = await root.plugin(outer)
        counts.append(root.census())
        assert (root.registry.size, root.listener_count("test/ping")) == (3, 3)
        await fiber.dispose()
        assert root.census() == before
    assert counts[0] == counts[1] == counts[2]


async def test_registry_delete_unloads_all_fibers_of_a_plugin(root: Context) -> None:
    def body(ctx: Context) -> None:
        ctx.on(PING, lambda _: None)

    fibers = [await root.plugin(body), await root.plugin(body)]
    runtime = root.registry.delete(body)
    assert runtime is not None
    assert not root.registry.has(body)
    for fiber in fibers:
        await fiber.dispose()
        assert fiber.state is S.DISPOSED
    again = await root.plugin(body)
    assert (again.state, root.listener_count("test/ping")) == (S.ACTIVE, 1)
    assert root.registry.delete(lambda ctx: None) is None


async def test_registering_on_a_disposed_context_is_refused(root: Context) -> None:
    fiber = await root.plugin(lambda ctx: None)
    await fiber.dispose()
    ctx = fiber.ctx
    for register in (
        lambda: ctx.plugin(lambda inner: None),
        lambda: ctx.effect(lambda: None),
        lambda: ctx.on(PING, lambda _: None),
        lambda: ctx.provide("foo", 1),
        lambda: ctx.defer(lambda: None),
        lambda: fiber.restart(),
        lambda: fiber.update(1),
    ):
        with pytest.raises(InactiveEffect, match="inactive context") as caught:
            register()
        assert caught.value.code == "INACTIVE_EFFECT"


async def test_registering_while_unloading_is_refused(root: Context) -> None:
    caught: list[BaseException] = []

    def body(ctx: Context) -> Callable[[], None]:
        def undo() -> None:
            try:
                ctx.on(PING, lambda _: None)
            except InactiveEffect as error:
                caught.append(error)

        return undo

    await (await root.plugin(body)).dispose()
    assert len(caught) == 1


async def test_disposing_the_root_undoes_all_and_leaves_it_active(log: list[object]) -> None:
    root = Context()
    child = await root.plugin(lambda ctx: lambda: log.append("child"))
    root.defer(lambda: log.append("own"), "labelled")
    await root.dispose()
    await root.fiber.dispose()
    assert (root.fiber.uid, root.fiber.state, child.uid) == (0, S.ACTIVE, None)
    assert sorted(map(str, log)) == ["child", "own"]
    assert root.fiber.effects() == []
    again = await root.plugin(lambda ctx: None)
    assert again.state is S.ACTIVE
    await root.dispose()


async def test_restart_from_inside_a_setup_ends_only_after_setup_and_its_cleanup(
    root: Context, log: list[object]
) -> None:
    gate, pending = asyncio.Event(), []

    async def setup() -> Callable[[], Any]:
        pending.append(root.fiber.restart())
        await gate.wait()
        log.append("setup")

        async def undo() -> None:
            await ticks(3)
            log.append("undo")

        return undo

    root.effect(setup)
    await ticks()
    joined = asyncio.ensure_future(join(pending[0]))
    await ticks()
    assert (joined.done(), log) == (False, [])
    gate.set()
    await joined
    assert log == ["setup", "undo"]
    assert root.fiber.state is S.ACTIVE


async def test_restart_from_a_sync_setup_that_raises_waits_for_its_async_cleanup(
    root: Context, log: list[object]
) -> None:
    pending: list[Any] = []

    def setup() -> Iterator[Callable[[], Any]]:
        async def undo() -> None:
            await ticks(5)
            log.append("undo")

        yield undo
        pending.append(root.fiber.restart())
        raise ValueError("after restart")

    with pytest.raises(ValueError, match="after restart"):
        root.effect(setup)
    await pending[0]
    assert log == ["undo"]
    assert root.fiber.effects() == []


async def test_registering_in_a_cleanup_during_restart_is_refused_and_the_root_is_active(
    root: Context, reports: Reports
) -> None:
    root.defer(lambda: root.on(PING, lambda _: None))
    await root.fiber.restart()
    assert (root.fiber.state, root.fiber.effects()) == (S.ACTIVE, [])
    assert [type(error) for error in reports.errors] == [InactiveEffect]


async def test_effects_registered_on_a_child_while_pending_and_loading_are_undone(
    root: Context, log: list[object]
) -> None:
    def announce(event: FiberAnnounced) -> None:
        if event.fiber.uid is not None:
            assert event.fiber.state is S.PENDING
            event.fiber.ctx.defer(lambda: log.append("pending"))

    root.on(INTERNAL_PLUGIN, announce)
    fiber = root.plugin(lambda ctx: None)
    assert fiber.state is S.LOADING
    fiber.ctx.defer(lambda: log.append("loading"))
    await fiber
    assert log == []
    await fiber.dispose()
    assert log == ["loading", "pending"]


async def test_names_added_to_inject_at_the_announcement_gate_the_first_activation(
    root: Context, log: list[object]
) -> None:
    def announce(event: FiberAnnounced) -> None:
        if event.fiber.uid is not None:
            event.fiber.inject["foo"] = None

    def body(ctx: Context) -> None:
        log.append(ctx.foo)

    on = root.on(INTERNAL_PLUGIN, announce)
    fiber = root.plugin(body)
    on.dispose()
    await fiber
    assert fiber.state is S.PENDING
    root.provide("foo", 5)
    await fiber
    assert log == [5]


async def test_an_error_of_internal_plugin_at_mount_undoes_the_mount(root: Context) -> None:
    def refuse(event: FiberAnnounced) -> None:
        if event.fiber.uid is not None:
            raise ValueError("refused")

    def body(ctx: Context) -> None: ...

    root.on(INTERNAL_PLUGIN, refuse)
    with pytest.raises(ValueError, match="refused"):
        root.plugin(body)
    assert not root.registry.has(body)
    assert [str(effect) for effect in root.fiber.effects()] == ['ctx.on("internal/plugin")']


async def test_an_error_of_internal_plugin_at_disposal_is_reported_and_starves_nobody(
    root: Context, reports: Reports, log: list[object]
) -> None:
    def fail(event: FiberAnnounced) -> None:
        if event.fiber.uid is None:
            raise ValueError("at disposal")

    root.on(INTERNAL_PLUGIN, fail)
    root.on(INTERNAL_PLUGIN, lambda event: log.append(event.fiber.uid))
    fiber = await root.plugin(lambda ctx: None)
    await fiber.dispose()
    assert (fiber.state, log[-1], reports.texts) == (S.DISPOSED, None, ["at disposal"])


async def test_parent_disposed_at_a_child_s_announcement_waits_for_the_child_s_cleanup(
    root: Context, log: list[object]
) -> None:
    children: list[Fiber] = []

    def announce(event: FiberAnnounced) -> None:
        fiber = event.fiber
        if fiber.uid is not None and fiber.name == "child":

            async def undo() -> None:
                await ticks(5)
                log.append("child cleanup")

            fiber.ctx.defer(undo)
            children.append(fiber)
            fiber.parent.fiber.dispose()

    @plugin(name="child")
    def child(ctx: Context) -> None:
        log.append("child body")

    @plugin(name="parent")
    def parent(ctx: Context) -> None:
        ctx.plugin(child)

    root.on(INTERNAL_PLUGIN, announce)
    fiber = root.plugin(parent)
    await ticks(2)
    await fiber.dispose()
    assert (fiber.state, children[0].state) == (S.DISPOSED, S.DISPOSED)
    assert log == ["child cleanup"]


async def test_parent_s_disposal_joins_a_child_s_cleanup_that_someone_else_started(
    root: Context, log: list[object]
) -> None:
    gate, children = asyncio.Event(), []

    async def undo() -> None:
        await gate.wait()
        log.append("child")

    async def parent(ctx: Context) -> None:
        child = await ctx.plugin(lambda inner: undo)
        children.append(child)
        child.dispose()
        await ticks(3)

    fiber = root.plugin(parent)
    await ticks(4)
    disposal = asyncio.ensure_future(join(fiber.dispose()))
    await ticks()
    assert not disposal.done()
    gate.set()
    await disposal
    assert (children[0].state, log) == (S.DISPOSED, ["child"])


async def test_a_pending_composition_keeps_nothing_alive() -> None:
    before = asyncio.all_tasks()
    root = Context()
    fiber = root.inject(["never"], lambda ctx: None)
    await ticks()
    assert asyncio.all_tasks() == before
    assert fiber.state is S.PENDING
    await root.dispose()


async def test_depth_and_width_do_not_recurse(root: Context, log: list[object]) -> None:
    async def nest(ctx: Context, depth: int) -> None:
        if depth:
            await ctx.plugin(nest, depth - 1)

    def wide(ctx: Context) -> None:
        for _ in range(10_000):
            ctx.defer(lambda: None)

    before = root.census()
    deep, broad = await root.plugin(nest, 300), await root.plugin(wide)
    await deep.dispose()
    await broad.dispose()
    assert root.census() == before


async def test_a_long_chain_of_services_does_not_recurse(root: Context) -> None:
    def link(index: int) -> Callable[[Context], None]:
        return lambda ctx: ctx.provide(f"s{index + 1}", index) and None

    first = root.provide("s0", 0)
    fibers = [root.inject([f"s{index}"], link(index)) for index in range(400)]
    await until(lambda: fibers[-1].state is S.ACTIVE)
    await first.dispose()
    await until(lambda: all(fiber.state is S.PENDING for fiber in fibers))


# restart, update, config


async def test_restart_while_loading_runs_the_body_again(root: Context, log: list[object]) -> None:
    async def body(ctx: Context) -> None:
        log.append("body")
        await ticks(3)

    fiber = root.plugin(body)
    await ticks(2)
    await fiber.restart()
    assert (fiber.state, log) == (S.ACTIVE, ["body", "body"])


async def test_update_of_a_pending_fiber_is_what_its_first_body_gets(
    root: Context, log: list[object]
) -> None:
    def body(ctx: Context, config: object) -> None:
        log.append(config)

    body.inject = ["foo"]  # type: ignore[attr-defined]
    fiber = root.plugin(body, 1)
    await fiber.update(2)
    root.provide("foo", 0)
    await fiber
    assert log == [2]


async def test_update_while_loading_runs_the_body_again_with_the_new_config(
    root: Context, log: list[object]
) -> None:
    async def body(ctx: Context, config: object) -> None:
        log.append(config)
        await ticks(3)

    fiber = root.plugin(body, 1)
    await ticks(2)
    await fiber.update(2)
    assert log == [1, 2]


class Positive:
    """A config model of the ``validate`` kind."""

    @staticmethod
    def validate(value: int) -> int:
        if value < 0:
            raise ValueError("must not be negative")
        return value


async def test_update_with_a_wrong_config_leaves_the_fiber_untouched(
    root: Context, log: list[object]
) -> None:
    @plugin(config=Positive)
    def body(ctx: Context, config: int) -> None:
        log.append(config)

    fiber = await root.plugin(body, 1)
    with pytest.raises(ValidationError, match="must not be negative"):
        fiber.update(-1)
    assert (fiber.state, fiber.config, fiber.raw_config, log) == (S.ACTIVE, 1, 1, [1])


async def test_update_listener_that_does_not_go_on_takes_the_config_live(
    root: Context, log: list[object]
) -> None:
    def body(ctx: Context, config: object) -> None:
        log.append(config)

        def take(event: UpdateRequested, next: Callable[[], Any]) -> Any:
            if event.config == "restart":
                return next()
            log.append(f"live {event.config}")
            return "taken"

        ctx.on(INTERNAL_UPDATE, take)

    fiber, other = await root.plugin(body, 1), await root.plugin(lambda ctx: None)
    assert await fiber.update(2) == "taken"
    assert log == [1, "live 2"]
    for _ in range(3):
        await fiber.update("restart")
        assert root.listener_count("internal/update") == 1
    await other.update(None)
    assert log == [1, "live 2", "restart", "restart", "restart"]
    assert await fiber.update(9) == "taken"


async def test_update_listeners_run_prepended_everywhere_then_own_then_everywhere(
    root: Context, log: list[object]
) -> None:
    def note(name: str) -> Callable[[UpdateRequested, Callable[[], Any]], Any]:
        async def listener(event: UpdateRequested, next: Callable[[], Any]) -> Any:
            log.append(name)
            return await next()

        return listener

    root.on(INTERNAL_UPDATE, note("late"), everywhere=True)
    root.on(INTERNAL_UPDATE, note("other fiber"))
    fiber = await root.plugin(lambda ctx: ctx.on(INTERNAL_UPDATE, note("own")))
    root.on(INTERNAL_UPDATE, note("early"), everywhere=True, prepend=True)
    await fiber.update(1)
    assert log == ["early", "own", "late"]


async def test_config_is_resolved_and_validated_on_each_activation(
    root: Context, log: list[object]
) -> None:
    factor = [1]
    root.on(INTERNAL_CONFIG, lambda event, go_on: go_on() * factor[0])

    @plugin(config=Positive)
    def body(ctx: Context, config: int) -> None:
        log.append(config)

    fiber = await root.plugin(body, 2)
    factor[0] = 10
    await fiber.restart()
    assert (log, fiber.raw_config, fiber.config) == ([2, 20], 2, 20)


async def test_wrong_config_fails_the_fiber_without_running_the_body(
    root: Context, reports: Reports, log: list[object]
) -> None:
    fiber = root.plugin(plugin(config=Positive)(lambda ctx, config: log.append(config)), -1)
    with pytest.raises(ValidationError):
        await fiber
    assert (fiber.state, log) == (S.FAILED, [])


# waiting


@pytest.mark.parametrize("what", ["dispose", "restart", "wait"])
async def test_awaiting_the_own_transition_from_the_body_raises(
    root: Context, reports: Reports, what: str
) -> None:
    runs: list[Context] = []

    async def body(ctx: Context) -> None:
        runs.append(ctx)
        if len(runs) == 1:
            await getattr(ctx.fiber, what)()

    fiber = root.plugin(body)
    await asyncio.wait_for(quiet(fiber), 2)
    expected = {"dispose": S.DISPOSED, "restart": S.ACTIVE, "wait": S.FAILED}[what]
    assert (fiber.state, [type(error) for error in reports.errors]) == (expected, [ReentrantAwait])


async def test_loading_child_that_awaits_its_parent_s_disposal_raises(
    root: Context, reports: Reports
) -> None:
    async def child(ctx: Context) -> None:
        assert ctx.parent is not None
        await ctx.fiber.parent.fiber.dispose()

    async def parent(ctx: Context) -> None:
        await ctx.plugin(child)

    fiber = root.plugin(parent)
    await asyncio.wait_for(quiet(fiber), 2)
    await fiber.dispose()
    assert any(isinstance(error, ReentrantAwait) for error in reports.errors)


async def test_mutual_waits_raise_instead_of_hanging(root: Context, reports: Reports) -> None:
    fibers: dict[str, Fiber] = {}

    def waits_for(other: str) -> Callable[[Context], Any]:
        async def undo() -> None:
            await fibers[other].dispose()

        return lambda ctx: undo

    fibers["a"] = await root.plugin(waits_for("b"))
    fibers["b"] = await root.plugin(waits_for("a"))
    await asyncio.wait_for(join(fibers["a"].dispose()), 2)
    assert [type(error) for error in reports.errors] == [ReentrantAwait]
    assert fibers["b"].state is S.DISPOSED


async def test_tasks_of_a_body_inherit_its_transition_only_while_it_runs(
    root: Context, reports: Reports, log: list[object]
) -> None:
    loaded = asyncio.Event()

    async def later(fiber: Fiber) -> None:
        await loaded.wait()
        await fiber.restart()
        log.append("restarted")

    tasks: list[asyncio.Task[None]] = []

    async def body(ctx: Context) -> None:
        if not tasks:
            tasks.append(asyncio.ensure_future(later(ctx.fiber)))

    await root.plugin(body)
    loaded.set()
    await tasks[0]
    assert log == ["restarted"]


async def test_requesting_disposal_from_the_body_without_awaiting_is_fine(
    root: Context, log: list[object]
) -> None:
    async def body(ctx: Context) -> Callable[[], None]:
        ctx.fiber.dispose()
        await ticks(2)
        return lambda: log.append("undone")

    fiber = root.plugin(body)
    await ticks(8)
    assert (fiber.state, log) == (S.DISPOSED, ["undone"])


async def test_joining_a_disposal_is_announced_in_the_awaiter_s_context(root: Context) -> None:
    who: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")
    heard: list[str] = []
    root.on(INTERNAL_JOIN, lambda event: heard.append(who.get()))
    fiber = await root.plugin(lambda ctx: None)
    who.set("joiner")
    disposal = fiber.dispose()
    assert heard == []
    await disposal
    assert heard == ["joiner"]


async def test_bodies_run_in_the_context_variables_of_the_root() -> None:
    who: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="root")
    root = Context()
    seen: list[str] = []
    who.set("some agent")

    def body(ctx: Context) -> Callable[[], None]:
        seen.append(who.get())
        return lambda: seen.append(who.get())

    fiber = await root.plugin(body)
    await fiber.dispose()
    await root.dispose()
    assert seen == ["root", "root"]


# the stop signal


async def test_stop_is_set_as_soon_as_the_activation_is_stale(
    root: Context, log: list[object]
) -> None:
    async def body(ctx: Context) -> None:
        log.append(ctx.stop.aborted)
        try:
            await ctx.stop.run(asyncio.Event().wait())
        except AbortedError:
            log.append("gave up")
            raise

    held = root.provide("foo", 1)
    fiber = root.inject(["foo"], body)
    await ticks()
    await held.dispose()
    assert (log, fiber.state) == ([False, "gave up"], S.PENDING)


async def test_giving_up_on_stop_is_no_failure(root: Context, reports: Reports) -> None:
    async def body(ctx: Context) -> None:
        await ctx.stop.wait()
        ctx.stop.throw_if_aborted()

    fiber = root.plugin(body)
    await ticks()
    await fiber.dispose()
    assert (fiber.state, reports.errors) == (S.DISPOSED, [])


async def test_a_body_that_allows_it_is_cancelled_when_it_is_stale(
    root: Context, reports: Reports, log: list[object]
) -> None:
    @plugin(cancel_setup=True)
    async def body(ctx: Context) -> None:
        ctx.defer(lambda: log.append("undone"))
        try:
            await asyncio.Event().wait()
        finally:
            log.append("cancelled")

    fiber = root.plugin(body)
    await ticks()
    await asyncio.wait_for(join(fiber.dispose()), 2)
    assert (log, fiber.state, reports.errors) == (["cancelled", "undone"], S.DISPOSED, [])


async def test_spawned_task_may_wait_for_its_own_plugin_to_be_active(
    root: Context, reports: Reports, log: list[object]
) -> None:
    async def work(ctx: Context) -> None:
        await ctx.fiber
        log.append(ctx.fiber.state)

    async def body(ctx: Context) -> None:
        ctx.spawn(work(ctx), "worker")
        await ticks(3)

    await root.plugin(body)
    await ticks()
    assert (log, reports.errors) == ([S.ACTIVE], [])


async def test_reported_tracebacks_start_in_the_plugin(
    root: Context, caplog: pytest.LogCaptureFixture
) -> None:
    def body(ctx: Context) -> None:
        raise ValueError("broken")

    await quiet(root.plugin(plugin(name="frail")(body)))
    assert "plugin 'frail': apply failed" in caplog.text
    assert "_transition.py" not in caplog.text
    assert "in plugin 'frail', mounted at" in caplog.text


async def test_stop_of_a_child_follows_its_parent(root: Context, log: list[object]) -> None:
    async def child(ctx: Context) -> None:
        await ctx.stop.wait()
        log.append("child told")

    async def parent(ctx: Context) -> None:
        await ctx.plugin(child)

    fiber = root.plugin(parent)
    await ticks()
    await asyncio.wait_for(join(fiber.dispose()), 2)
    assert log == ["child told"]


async def test_each_activation_has_a_stop_of_its_own(root: Context) -> None:
    signals: list[Any] = []
    fiber = await root.plugin(lambda ctx: signals.append(ctx.stop))
    await fiber.restart()
    assert [signal.aborted for signal in signals] == [True, False]
    await fiber.dispose()
    assert signals[1].aborted
    assert fiber.ctx.stop.aborted


# loops and shapes


def test_a_root_needs_no_loop_until_something_is_asynchronous() -> None:
    root = Context()
    root.provide("foo", 1)
    effect = root.effect(lambda: lambda: None)
    effect.dispose()
    assert root.get("foo") == 1
    with pytest.raises(WrongLoop, match="running event loop"):
        root.plugin(lambda ctx: None)


def test_a_loop_that_ends_during_transitions_leaves_no_hang_and_no_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log: list[str] = []

    def body(ctx: Context) -> Callable[[], None]:
        return lambda: log.append("undone")

    async def slow(ctx: Context) -> None:
        ctx.defer(lambda: log.append("slow undone"))
        await asyncio.Event().wait()

    async def main() -> Context:
        root = Context()
        first = await root.plugin(body)
        root.plugin(slow)
        await ticks()
        first.dispose()
        root.plugin(slow)
        return root

    root = asyncio.run(main())
    assert log[0] == "undone"
    assert set(log[1:]) == {"slow undone"}
    assert all("never retrieved" not in record.message for record in caplog.records)
    assert root.fiber.state is S.ACTIVE


def test_another_loop_is_refused() -> None:
    root = Context()

    async def mount() -> None:
        await root.plugin(lambda ctx: None)

    asyncio.run(mount())
    with pytest.raises(WrongLoop, match="another event loop"):
        asyncio.run(mount())


async def test_another_thread_is_refused(root: Context) -> None:
    await root.plugin(lambda ctx: None)
    errors: list[BaseException] = []

    def work() -> None:
        try:
            root.on(PING, lambda _: None)
        except WrongLoop as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(errors) == 1


async def test_plugin_shapes(root: Context, log: list[object]) -> None:
    class Plain:
        def __init__(self, ctx: Context, config: object) -> None:
            log.append(("class", config))

        def start(self) -> Callable[[], None]:
            log.append("start")
            return lambda: log.append("class undone")

    class Bare:
        pass

    class WithContext:
        def __init__(self, ctx: Context) -> None:
            log.append("class without config")

    async def generator(ctx: Context) -> AsyncIterator[Callable[[], None]]:
        yield lambda: log.append("async generator undone")

    def fixture_style(ctx: Context) -> Iterator[None]:
        log.append("up")
        yield
        log.append("down")

    module = SimpleNamespace(
        name="module", inject=["foo"], apply=lambda ctx, config: log.append(("module", config))
    )
    root.provide("foo", 1)
    for shape in (Plain, WithContext, generator, fixture_style, module):
        await (await root.plugin(shape, 3)).dispose()
    assert log == [
        ("class", 3),
        "start",
        "class undone",
        "class without config",
        "async generator undone",
        "up",
        "down",
        ("module", 3),
    ]
    assert Bare is not None


@pytest.mark.parametrize("value", [None, {}, 3, SimpleNamespace(apply=1), "name"])
async def test_what_is_no_plugin_is_refused_at_once(root: Context, value: object) -> None:
    with pytest.raises(InvalidPlugin, match="invalid plugin, expected a function, a class"):
        root.plugin(value)
    assert root.registry.size == 0


async def test_names_come_from_the_plugin_or_the_nearest_named_ancestor(root: Context) -> None:
    names: list[str] = []

    @plugin(name="outer")
    async def body(ctx: Context) -> None:
        inner = await ctx.plugin(lambda c: None)
        names.extend([ctx.fiber.name, inner.name, repr(inner.ctx)])

    await root.plugin(body)
    assert [*names, root.fiber.name] == ["outer", "outer", "Context <outer>", "root"]


async def test_status_is_told_after_each_change(root: Context) -> None:
    seen: list[tuple[str, str]] = []
    root.on(
        INTERNAL_STATUS,
        lambda event: seen.append((event.old.label, event.fiber.state.label)),
    )
    fiber = await root.plugin(lambda ctx: None)
    await fiber.dispose()
    assert seen == [
        ("pending", "loading"),
        ("loading", "active"),
        ("active", "unloading"),
        ("unloading", "disposed"),
    ]


async def test_explain_names_each_missing_service_and_why(root: Context) -> None:
    gate = asyncio.Event()

    async def slow(ctx: Context) -> None:
        ctx.provide("slow", 1)
        await gate.wait()

    root.provide("shy", 1, check=lambda: False)
    root.isolate("hidden").provide("hidden", 1)
    fiber = root.inject(
        ["absent", "shy", "slow", "hidden", Inject.optional("nice")], lambda ctx: None
    )
    giver = root.plugin(plugin(name="giver")(slow))
    reasons = {item.service: item.reason for item in fiber.explain()}
    assert reasons == {
        "absent": "absent",
        "shy": "'root' says it is not available",
        "slow": "absent",
        "hidden": "provided only in another scope, by root",
    }
    await ticks()
    assert {item.service: item.reason for item in fiber.explain()}["slow"] == (
        "its provider 'giver' is loading"
    )
    gate.set()
    await giver


async def test_an_effect_handle_awaited_after_activation_is_the_effect(root: Context) -> None:
    effect = root.effect(lambda: None)
    assert await effect is effect
    assert isinstance(effect, Effect)
