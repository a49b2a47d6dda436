"""Moving an anchor: scopes, config layers and parents change below it, without restarts."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
from kernel_support import join, provider, ticks

from dsh.kernel import (
    INTERNAL_SERVICE,
    Context,
    ContextKey,
    DuplicateService,
    Emit,
    Fiber,
    FiberState,
    InactiveEffect,
    Label,
    RebaseError,
    Service,
    UndeclaredService,
    WrongLoop,
    create_scope,
    scope_target,
)
from dsh.kernel.plugins import OptionalNeed

Log = list[object]


class Key:
    """A scope key."""


def reader(log: Log, tag: str, name: str = "foo") -> Callable[[Context], Any]:
    """A plugin that writes down the value it runs against, and when it is unloaded."""

    def body(ctx: Context) -> Callable[[], None]:
        log.append((tag, ctx.require(name)))
        return lambda: log.append((tag, "undone"))

    body.inject = (name,)  # type: ignore[attr-defined]
    return body


async def settle(root: Context) -> None:
    while root.fiber.kernel.tasks:
        await ticks(1)


# labels


async def test_a_dependant_that_gets_another_scope_reloads_once(root: Context, log: Log) -> None:
    label = Label("b")
    root.provide("foo", 1)
    await root.isolate("foo", label).plugin(provider(2))
    anchor = root.anchor()
    await anchor.plugin(reader(log, "in"))
    await root.plugin(reader(log, "out"))

    anchor.rebase(isolate={"foo": label})
    await settle(root)

    assert log == [("in", 1), ("out", 1), ("in", "undone"), ("in", 2)]


async def test_a_provider_takes_its_service_along_without_a_restart(
    root: Context, log: Log
) -> None:
    anchor, label = root.anchor(), Label("b")
    runs: Log = []
    await anchor.plugin(lambda ctx: runs.append("run") or (ctx.provide("foo", 1) and None))
    await root.plugin(reader(log, "out"))
    inside = root.isolate("foo", label).plugin(reader(log, "in"))
    await ticks()
    assert inside.state is FiberState.PENDING

    anchor.rebase(isolate={"foo": label})
    await settle(root)

    assert runs == ["run"]
    assert log == [("out", 1), ("out", "undone"), ("in", 1)]
    assert root.get("foo") is None


async def test_provider_and_dependant_that_move_together_keep_running(
    root: Context, log: Log
) -> None:
    anchor = root.anchor()
    await anchor.plugin(provider(1))
    dependant = await anchor.extend().plugin(reader(log, "in"))

    anchor.rebase(isolate={"foo": Label()})
    await settle(root)
    assert dependant.ctx.require("foo") == 1
    anchor.rebase()
    await settle(root)

    assert log == [("in", 1)]
    assert root.require("foo") == 1


async def test_a_rebase_that_changes_nothing_reloads_nothing(root: Context, log: Log) -> None:
    label = Label()
    anchor = root.anchor()
    anchor.rebase(isolate={"foo": label})
    await anchor.plugin(provider(1))
    await anchor.plugin(reader(log, "in"))

    anchor.rebase(isolate={"foo": label}, parent=root)
    await settle(root)

    assert log == [("in", 1)]


async def test_a_scope_that_is_taken_refuses_the_whole_change(root: Context, log: Log) -> None:
    label, other = Label("b"), root.plugin(lambda ctx: None)
    await root.isolate("bar", label).plugin(provider(2, "bar"))
    anchor = root.anchor()
    for name in ("foo", "bar"):
        await anchor.plugin(provider(1, name))
        await anchor.plugin(reader(log, name, name))
    log.clear()

    with pytest.raises(DuplicateService, match="bar"):
        anchor.rebase(
            parent=other.ctx, isolate={"foo": label, "bar": label}, intercept={"foo": {"a": 1}}
        )

    await settle(root)
    assert log == []
    assert anchor.parent is root
    assert anchor.label_of("foo") is None
    assert anchor.intercepts("foo") == ()
    assert root.require("foo") == root.require("bar") == 1


async def test_a_label_of_its_own_below_the_anchor_stays(root: Context, log: Log) -> None:
    own = Label("own")
    anchor = root.anchor()
    await anchor.isolate("foo", own).plugin(provider(1))
    await anchor.isolate("foo", own).plugin(reader(log, "in"))

    anchor.rebase(isolate={"foo": Label("other")})
    await settle(root)

    assert log == [("in", 1)]


async def test_plugins_deep_below_follow(root: Context, log: Log) -> None:
    anchor, label = root.anchor(), Label()

    def outer(ctx: Context) -> None:
        ctx.isolate("other").anchor().plugin(inner)

    def inner(ctx: Context) -> None:
        ctx.plugin(reader(log, "deep"))

    await root.isolate("foo", label).plugin(provider(2))
    anchor.plugin(outer)
    await settle(root)
    assert log == []

    anchor.rebase(isolate={"foo": label})
    await settle(root)

    assert log == [("deep", 2)]


async def test_what_it_loaded_against_is_readable_until_its_cleanup_ends(
    root: Context, log: Log
) -> None:
    label, anchor = Label(), root.anchor()
    root.provide("foo", 1)
    await root.isolate("foo", label).plugin(provider(2))

    def body(ctx: Context) -> Callable[[], Any]:
        async def undo() -> None:
            await ticks(2)
            log.append(ctx.require("foo"))

        return undo

    body.inject = ["foo"]  # type: ignore[attr-defined]
    fiber = await anchor.plugin(body)

    anchor.rebase(isolate={"foo": label})
    assert fiber.ctx.require("foo") == 1
    await settle(root)

    assert log == [1]
    assert fiber.ctx.require("foo") == 2


async def test_a_pending_dependant_starts_when_its_scope_has_the_service(
    root: Context, log: Log
) -> None:
    anchor, label = root.anchor(), Label()
    await root.isolate("foo", label).plugin(provider(2))
    fiber = anchor.plugin(reader(log, "in"))
    await ticks()

    anchor.rebase(isolate={"foo": label})
    await fiber

    assert log == [("in", 2)]


async def test_a_loading_dependant_that_moves_ends_its_body_and_runs_again(
    root: Context, log: Log
) -> None:
    anchor, label = root.anchor(), Label()
    root.provide("foo", 1)
    await root.isolate("foo", label).plugin(provider(2))

    async def body(ctx: Context) -> None:
        log.append(ctx.require("foo"))
        await ticks(4)
        log.append("end")

    body.inject = ["foo"]  # type: ignore[attr-defined]
    fiber = anchor.plugin(body)
    await ticks(2)
    anchor.rebase(isolate={"foo": label})
    await fiber

    assert log == [1, "end", 2, "end"]


class Echo(Service):
    """A service whose views, config and scope are looked at."""

    name = "echo"

    def label(self) -> Label | None:
        return self.caller.label_of("foo")


async def test_views_and_callers_follow(root: Context) -> None:
    anchor, label = root.anchor(), Label()
    await anchor.plugin(Echo)
    view = root.require(Echo)
    assert view.label() is None

    anchor.rebase(isolate={"foo": label})

    assert view.label() is label
    assert root.require(Echo).label() is label


async def test_a_service_as_target_reaches_the_listeners_of_its_new_scope(root: Context) -> None:
    heard: Log = []
    ping = Emit[None]("test/ping")
    anchor, label = root.anchor(), Label()
    echo = (await anchor.plugin(Echo)).ctx.require(Echo)
    root.on(ping, lambda _: heard.append("out"))
    root.isolate("echo", label).on(ping, lambda _: heard.append("in"))
    root.emit(ping, None, echo)

    anchor.rebase(isolate={"echo": label})
    root.emit(ping, None, echo)

    assert heard == ["out", "in"]


async def test_whom_a_carrier_reaches_is_found_out_anew(root: Context) -> None:
    heard: Log = []
    ping = Emit[None]("test/ping")
    anchor, label = root.anchor(), Label()
    echo = (await anchor.plugin(Echo)).ctx.require(Echo)
    carrier = scope_target(echo, None)
    root.on(ping, lambda _: heard.append("out"))
    root.isolate("echo", label).on(ping, lambda _: heard.append("in"))
    root.emit(ping, None, carrier)
    root.emit(ping, None, carrier)

    anchor.rebase(isolate={"echo": label})
    root.emit(ping, None, carrier)

    assert heard == ["out", "out", "in"]


async def test_data_of_the_new_place_routes_events(root: Context) -> None:
    heard: Log = []
    ping = Emit[None]("test/ping")
    key = Key()
    scope = create_scope(root, key)
    anchor = root.anchor()
    await anchor.plugin(lambda ctx: ctx.on(ping, lambda _: heard.append("moved")) and None)
    other = scope_target(None, Key())
    root.emit(ping, None, other)
    assert heard == ["moved"]

    anchor.rebase(parent=scope.ctx)
    root.emit(ping, None, other)
    assert heard == ["moved"]
    root.emit(ping, None, scope_target(None, key))

    assert heard == ["moved", "moved"]


async def test_listeners_of_both_scopes_hear_of_a_service_that_travels(root: Context) -> None:
    heard: Log = []
    anchor, label = root.anchor(), Label()
    await anchor.plugin(provider(1))
    root.on(INTERNAL_SERVICE, lambda event: heard.append(("old", event.value)))
    inside = root.isolate("foo", label)
    inside.on(INTERNAL_SERVICE, lambda event: heard.append(("new", event.value)))

    anchor.rebase(isolate={"foo": label})

    assert heard == [("old", None), ("new", 1)]


# config layers


async def test_config_layers_are_seen_by_the_next_read(root: Context, log: Log) -> None:
    await root.plugin(Echo)
    outer = root.anchor()
    inner = outer.anchor()
    outer.rebase(intercept={"echo": {"a": 1, "b": 1}})
    inner.rebase(intercept={"echo": {"b": 2}})
    fiber = await inner.plugin(lambda ctx: log.append("run"))
    echo = fiber.ctx.intercept("echo", {"c": 3}).get(Echo)
    assert echo is not None
    assert echo.resolve_config() == {"a": 1, "b": 2, "c": 3}

    outer.rebase(intercept={"echo": {"a": 9}})
    assert echo.resolve_config() == {"a": 9, "b": 2, "c": 3}
    inner.rebase(parent=root)

    assert echo.resolve_config() == {"c": 3}
    assert log == ["run"]


# parents


async def test_a_moved_plugin_runs_on_and_goes_with_its_new_parent(root: Context, log: Log) -> None:
    first = await root.plugin(lambda ctx: None)
    second = await root.plugin(lambda ctx: None)
    anchor = first.ctx.anchor()

    def child(ctx: Context) -> Callable[[], None]:
        log.append("run")
        return lambda: log.append("undone")

    fiber = await anchor.isolate("any").plugin(child)

    anchor.rebase(parent=second.ctx)
    assert fiber.parent_fiber is second
    assert anchor.fiber is second
    assert anchor.parent is second.ctx
    await first.dispose()
    assert log == ["run"]
    await second.dispose()

    assert log == ["run", "undone"]
    assert fiber.state is FiberState.DISPOSED


async def test_what_is_mounted_after_a_move_belongs_to_the_new_parent(root: Context) -> None:
    first = await root.plugin(lambda ctx: None)
    second = await root.plugin(lambda ctx: None)
    anchor = first.ctx.anchor()
    derived = anchor.extend()
    anchor.rebase(parent=second.ctx)

    fiber = await derived.plugin(lambda ctx: None)
    await first.dispose()

    assert fiber.parent_fiber is second
    assert fiber.state is FiberState.ACTIVE


async def test_a_moved_plugin_is_undone_before_what_its_new_parent_had(
    root: Context, log: Log
) -> None:
    anchor = root.anchor()
    await anchor.plugin(lambda ctx: lambda: log.append("moved"))

    def body(ctx: Context) -> None:
        ctx.defer(lambda: log.append("first"))
        ctx.plugin(lambda ctx: lambda: log.append("child"))

    parent = await root.plugin(body)
    parent.ctx.defer(lambda: log.append("second"))
    anchor.rebase(parent=parent.ctx)
    await parent.dispose()

    assert log == ["moved", "second", "child", "first"]


async def test_siblings_and_the_anchors_own_registrations_stay(root: Context, log: Log) -> None:
    first = await root.plugin(lambda ctx: None)
    second = await root.plugin(lambda ctx: None)
    anchor = first.ctx.anchor()
    sibling = await first.ctx.plugin(lambda ctx: None)
    anchor.defer(lambda: log.append("own"))

    anchor.rebase(parent=second.ctx)
    assert sibling.parent_fiber is first
    await first.dispose()

    assert log == ["own"]
    assert sibling.state is FiberState.DISPOSED


async def test_nested_anchors_move_with_the_outer_one(root: Context) -> None:
    target = await root.plugin(lambda ctx: None)
    start = await root.plugin(lambda ctx: None)
    outer = start.ctx.anchor()
    inner = outer.extend().anchor()
    fiber = await inner.plugin(lambda ctx: None)

    outer.rebase(parent=target.ctx)

    assert fiber.parent_fiber is inner.fiber is target


async def test_a_move_may_lead_into_another_scope(root: Context, log: Log) -> None:
    label = Label()
    group = await root.isolate("foo", label).plugin(lambda ctx: None)
    root.provide("foo", 1)
    anchor = root.anchor()
    await anchor.plugin(reader(log, "in"))
    await anchor.plugin(reader(log, "both", "bar"))
    await group.ctx.plugin(provider(2))

    anchor.rebase(parent=group.ctx)
    await settle(root)
    anchor.rebase(parent=root)
    await settle(root)

    assert log == [("in", 1), ("in", "undone"), ("in", 2), ("in", "undone"), ("in", 1)]


async def test_stop_signals_follow_the_new_parent(root: Context) -> None:
    first = await root.plugin(lambda ctx: None)
    second = await root.plugin(lambda ctx: None)
    anchor = first.ctx.anchor()
    stop = (await anchor.plugin(lambda ctx: None)).ctx.stop

    anchor.rebase(parent=second.ctx)
    await first.dispose()
    assert not stop.aborted
    second.dispose()

    assert stop.aborted
    await settle(root)


async def test_names_and_ancestors_services_follow_the_new_parent(root: Context) -> None:
    def named(name: str) -> Any:
        def body(ctx: Context) -> None:
            ctx.provide(name, name)

        body.name = name  # type: ignore[attr-defined]
        return body

    first, second = await root.plugin(named("one")), await root.plugin(named("two"))
    anchor = first.ctx.anchor()
    fiber = await anchor.plugin(lambda ctx: None)
    assert (fiber.name, fiber.ctx.require("one")) == ("one", "one")

    anchor.rebase(parent=second.ctx)

    assert (fiber.name, fiber.ctx.require("two")) == ("two", "two")
    with pytest.raises(UndeclaredService):
        fiber.ctx.require("one")


async def test_data_and_base_address_are_the_new_places(root: Context) -> None:
    key = ContextKey[int]("test")
    fiber = await root.extend(meta={key: 1}, base_url="file:///a/").plugin(lambda ctx: None)
    anchor = root.anchor()
    below = (await anchor.plugin(lambda ctx: None)).ctx
    assert (below[key], below.base_url) == (None, None)

    anchor.rebase(parent=fiber.ctx)

    assert (below[key], below.base_url) == (1, "file:///a/")


async def test_an_optional_service_that_rested_on_a_plugin_counts_when_it_is_moved_away(
    root: Context, log: Log
) -> None:
    anchors: list[Context] = []

    def body(ctx: Context) -> None:
        log.append(ctx.get("foo"))
        anchor = ctx.anchor()
        anchors.append(anchor)
        anchor.plugin(provider(len(anchors)))

    body.inject = [OptionalNeed("foo")]  # type: ignore[attr-defined]
    await root.plugin(body)
    await settle(root)
    assert log == [None]

    anchors[0].rebase(parent=root)
    await ticks(30)

    assert log[:2] == [None, 1]
    await root.dispose()


async def test_a_moved_plugin_in_the_middle_of_its_load_goes_on(root: Context, log: Log) -> None:
    first = await root.plugin(lambda ctx: None)
    second = await root.plugin(lambda ctx: None)
    anchor = first.ctx.anchor()

    async def body(ctx: Context) -> None:
        await ticks(5)
        ctx.defer(lambda: log.append("undone"))
        log.append("run")

    fiber = anchor.plugin(body)
    await ticks(2)
    anchor.rebase(parent=second.ctx)
    await first.dispose()
    await fiber

    assert log == ["run"]
    await second.dispose()
    assert log == ["run", "undone"]


async def test_a_plugin_on_its_way_out_stays_with_its_old_parent(root: Context) -> None:
    first = await root.plugin(lambda ctx: None)
    second = await root.plugin(lambda ctx: None)
    anchor = first.ctx.anchor()

    async def undo() -> None:
        await ticks(5)

    fiber = await anchor.plugin(lambda ctx: undo)
    gone = fiber.dispose()
    anchor.rebase(parent=second.ctx)
    await second.dispose()
    assert fiber.state is FiberState.UNLOADING
    await first.dispose()

    assert fiber.state is FiberState.DISPOSED
    await gone


async def test_a_child_rescued_from_a_parent_that_unloads_lives_on(root: Context, log: Log) -> None:
    async def slow() -> None:
        await ticks(6)

    anchors: list[Context] = []

    def body(ctx: Context) -> None:
        anchors.append(ctx.anchor())
        anchors[0].plugin(lambda ctx: lambda: log.append("undone"))
        ctx.defer(slow)

    parent = await root.plugin(body)
    await settle(root)
    disposal = parent.dispose()
    await ticks(2)
    anchors[0].rebase(parent=root)
    await disposal

    assert log == []
    await root.dispose()
    assert log == ["undone"]


# refusals


async def test_only_an_anchor_can_be_rebased(root: Context) -> None:
    for context in (root, root.isolate("foo"), root.anchor().extend()):
        with pytest.raises(RebaseError, match="no anchor"):
            context.rebase()


async def test_an_anchor_cannot_go_below_itself_or_to_another_root(root: Context) -> None:
    anchor = root.anchor()
    fiber = await anchor.plugin(lambda ctx: None)
    for parent in (anchor, anchor.isolate("foo"), fiber.ctx, fiber.ctx.extend()):
        with pytest.raises(RebaseError, match="below it"):
            anchor.rebase(parent=parent)
    with pytest.raises(RebaseError, match="another root"):
        anchor.rebase(parent=Context())


async def test_an_anchor_cannot_go_to_a_plugin_that_is_gone(root: Context) -> None:
    gone = await root.plugin(lambda ctx: None)
    await gone.dispose()
    with pytest.raises(InactiveEffect):
        root.anchor().rebase(parent=gone.ctx)


def test_a_rebase_that_would_start_plugins_needs_a_loop() -> None:
    root = Context()
    anchor = root.anchor()
    fiber = anchor.inject(["foo"], lambda ctx: None)
    with pytest.raises(WrongLoop):
        anchor.rebase(isolate={"foo": Label()})

    assert anchor.label_of("foo") is None
    assert isinstance(fiber, Fiber)


# leaks


async def test_contexts_below_an_anchor_are_not_kept_alive(root: Context) -> None:
    anchor = root.anchor()
    for _ in range(20):
        fiber = await anchor.isolate("foo").plugin(lambda ctx: None)
        await fiber.dispose()
    del fiber
    gc.collect()

    assert anchor._place is not None
    assert len(anchor._place._below or ()) == 0


async def test_a_rebase_leaves_the_census_as_it_was(root: Context, log: Log) -> None:
    first, second = [await root.plugin(lambda ctx: None) for _ in range(2)]
    anchor = first.ctx.anchor()
    await anchor.plugin(provider(1))
    await anchor.plugin(reader(log, "in"))
    before = root.census()

    for number in range(6):
        parent = second if number % 2 == 0 else first
        anchor.rebase(parent=parent.ctx, isolate={"foo": Label()} if number % 3 else {})
    await settle(root)

    assert root.census() == before
    await join(first.dispose())
    await join(second.dispose())
