"""Scopes: contexts with a key, parent links, routing of events."""

from __future__ import annotations

import gc

import pytest
from kernel_support import ticks

from dsh.kernel import (
    Context,
    Emit,
    FiberState,
    ScopeError,
    bind_scope_parent,
    carrier_key_of,
    create_scope,
    is_scope_carrier,
    scope_chain,
    scope_of,
    scope_parent_of,
    scope_target,
)

TOLD = Emit[None]("test/told")


class Key:
    """A scope key."""

    def __init__(self, name: str) -> None:
        self.name = name


async def test_scope_is_usable_before_its_fiber_is_active(root: Context, log: list[object]) -> None:
    scope = create_scope(root, Key("a"))
    scope.ctx.on(TOLD, lambda _: log.append("heard"))
    scope.ctx.provide("foo", 1)
    assert scope.fiber.state is FiberState.LOADING
    root.emit(TOLD)
    await scope.fiber
    root.emit(TOLD)
    assert log == ["heard", "heard"]
    assert root.get("foo") == 1


async def test_scope_of_is_the_nearest_key(root: Context) -> None:
    outer, inner = Key("outer"), Key("inner")
    one = create_scope(root, outer)
    two = create_scope(one.ctx, inner)
    assert (scope_of(root), scope_of(one.ctx), scope_of(two.ctx)) == (None, outer, inner)
    child = await two.ctx.extend().plugin(lambda ctx: None)
    assert scope_of(child.ctx) is inner


async def test_disposal_of_a_scope_is_shared(root: Context, log: list[object]) -> None:
    async def undo() -> None:
        await ticks(3)
        log.append("undone")

    scope = create_scope(root, Key("a"))
    scope.ctx.defer(undo)
    await scope.fiber
    first = scope.dispose()
    await scope.dispose()
    assert log == ["undone"]
    await first
    assert (scope.fiber.state, root.registry.size) == (FiberState.DISPOSED, 0)


async def test_scope_disposed_before_it_is_active_undoes_what_it_has(
    root: Context, log: list[object]
) -> None:
    scope = create_scope(root, Key("a"))
    scope.ctx.defer(lambda: log.append("undone"))
    await scope.dispose()
    assert log == ["undone"]


async def test_key_is_bound_once_and_only_its_binding_rebinds(root: Context) -> None:
    child, first, second = Key("child"), Key("first"), Key("second")
    binding = bind_scope_parent(child, first)
    with pytest.raises(ScopeError, match="has a parent already"):
        bind_scope_parent(child, second)
    with pytest.raises(ScopeError, match="has a parent already"):
        create_scope(root, child, second)
    binding.rebind(second)
    assert scope_chain(child) == [child, second]
    assert scope_chain(None) == []


def test_cycles_are_refused() -> None:
    one, two, three = Key("1"), Key("2"), Key("3")
    first = bind_scope_parent(one, two)
    bind_scope_parent(two, three)
    with pytest.raises(ScopeError, match="below it already"):
        bind_scope_parent(three, one)
    with pytest.raises(ScopeError, match="below it already"):
        first.rebind(one)
    assert scope_chain(one) == [one, two, three]


def test_links_do_not_keep_keys_alive() -> None:
    parent = Key("parent")
    child = Key("child")
    bind_scope_parent(child, parent)
    number = id(child)
    del child
    gc.collect()
    from dsh.kernel import scope

    assert number not in scope._parents
    assert scope_parent_of(parent) is None


async def test_events_go_up_the_chain_and_never_down(root: Context) -> None:
    keys = {name: Key(name) for name in ("top", "middle", "leaf", "other")}
    bind_scope_parent(keys["middle"], keys["top"])
    bind_scope_parent(keys["leaf"], keys["middle"])
    heard: list[str] = []
    root.on(TOLD, lambda _: heard.append("untagged"))
    for name, key in keys.items():
        ctx = create_scope(root, key).ctx
        ctx.on(TOLD, lambda _, name=name: heard.append(name))  # type: ignore[misc]
    create_scope(root, Key("far")).ctx.on(TOLD, lambda _: heard.append("all"), everywhere=True)
    expected = {
        "top": ["untagged", "top", "all"],
        "middle": ["untagged", "top", "middle", "all"],
        "leaf": ["untagged", "top", "middle", "leaf", "all"],
        "other": ["untagged", "other", "all"],
    }
    for name, key in keys.items():
        heard.clear()
        root.emit(TOLD, None, scope_target(root, key))
        assert heard == expected[name]


async def test_carrier_keeps_the_filter_of_its_base(root: Context, log: list[object]) -> None:
    class Base:
        def accepts_listener(self, ctx: Context) -> bool:
            return ctx is not root

    key = Key("a")
    root.on(TOLD, lambda _: log.append("root"))
    create_scope(root, key).ctx.on(TOLD, lambda _: log.append("scope"))
    root.emit(TOLD, None, scope_target(Base(), key))
    root.emit(TOLD, None, scope_target(Base(), None))
    assert log == ["scope", "scope"]


def test_carriers_are_recognised() -> None:
    key = Key("a")
    carrier = scope_target(None, key)
    assert is_scope_carrier(carrier)
    assert not is_scope_carrier(key)
    assert (carrier_key_of(carrier), carrier_key_of(key), carrier_key_of(None)) == (key, None, None)


async def test_whom_a_dispatch_would_reach_is_told_in_the_order_of_the_calls(root: Context) -> None:
    last = await root.inject([], lambda ctx: ctx.on(TOLD, lambda _: None))  # type: ignore[arg-type]
    first = await root.inject([], lambda ctx: ctx.on(TOLD, lambda _: None, prepend=True))  # type: ignore[arg-type]
    mine, scope = Key("other"), create_scope(root, Key("a"))
    scope.ctx.on(TOLD, lambda _: None)
    assert root.listening(TOLD) == (first, last, scope.fiber)
    assert root.listening(TOLD, scope_target(None, mine)) == (first, last)
    await last.dispose()
    assert root.listening(TOLD) == (first, scope.fiber)
    assert root.listening(Emit[None]("test/nobody")) == ()
