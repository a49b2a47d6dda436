"""Layered registries: named and anonymous entries, scoped layers."""

from __future__ import annotations

import pytest

from dsh.kernel import (
    AnonymousEntries,
    Context,
    NamedEntries,
    ScopedLayers,
    bind_scope_parent,
    create_scope,
)


class Key:
    """A scope key."""


def taken(name: str) -> Exception:
    return KeyError(f"{name} is taken")


class Tools:
    """A layer with entries of both kinds."""

    def __init__(self) -> None:
        self.named = NamedEntries[int](taken)
        self.rules = AnonymousEntries[str]()

    def is_empty(self) -> bool:
        return self.named.is_empty() and self.rules.is_empty()


def test_named_entries_keep_order_and_use_the_caller_s_error() -> None:
    entries = NamedEntries[int](taken)
    entries.insert("b", 2)
    entries.insert("a", 1)
    with pytest.raises(KeyError, match="b is taken"):
        entries.insert("b", 3)
    assert (entries.keys(), entries.values()) == (["b", "a"], [2, 1])
    assert (entries.get("a"), entries.get("z"), entries.has("b"), len(entries)) == (
        1,
        None,
        True,
        2,
    )
    assert list(entries) == ["b", "a"]


def test_undo_of_a_named_entry_is_exact_and_idempotent() -> None:
    entries = NamedEntries[int](taken)
    undo = entries.insert("a", 1)
    undo()
    entries.insert("a", 1)
    undo()
    assert entries.get("a") == 1


def test_equal_anonymous_values_stay_separate() -> None:
    entries = AnonymousEntries[str]()
    first, _ = entries.append("x"), entries.append("x")
    first()
    first()
    assert (entries.values(), len(entries), entries.is_empty()) == (["x"], 1, False)


async def test_layer_follows_the_scope_of_the_context_and_goes_when_empty(root: Context) -> None:
    layers = ScopedLayers(Tools)
    key = Key()
    scope = create_scope(root, key)
    assert layers.peek(key) is None
    one = layers.effect(scope.ctx, lambda layer: layer.named.insert("a", 1), "tool a")
    two = layers.effect(scope.ctx, lambda layer: layer.rules.append("r"), "rule")
    layer = layers.peek(key)
    assert layer is not None
    assert layers.peek(None) is layers.global_
    one.dispose()
    assert layers.peek(key) is layer
    two.dispose()
    assert layers.peek(key) is None


async def test_reads_never_create_layers(root: Context) -> None:
    layers = ScopedLayers(Tools)
    key = Key()
    assert layers.chain_layers(key) == []
    assert layers.merge(key, lambda layer: layer.named) == {}
    assert layers.peek(key) is None


async def test_merge_is_global_then_chain_and_the_nearest_wins(root: Context) -> None:
    layers = ScopedLayers(Tools)
    parent, child = Key(), Key()
    bind_scope_parent(child, parent)
    for owner, name, value in (
        (root, "a", 0),
        (root, "b", 0),
        (create_scope(root, parent).ctx, "b", 1),
        (create_scope(root, child).ctx, "c", 2),
    ):
        layers.effect(owner, lambda layer, n=name, v=value: layer.named.insert(n, v))  # type: ignore[misc]
    pick = lambda layer: layer.named  # noqa: E731
    assert layers.merge(child, pick) == {"a": 0, "b": 1, "c": 2}
    assert layers.merge(parent, pick) == {"a": 0, "b": 1}
    assert layers.merge(None, pick) == {"a": 0, "b": 0}
    nearest = layers.chain_layers(child)[-1]
    assert nearest is layers.peek(child)


async def test_registration_goes_with_its_context_and_notifies_both_ways(root: Context) -> None:
    changes: list[int] = []
    layers = ScopedLayers(Tools, lambda: changes.append(len(layers.global_.named)))
    fiber = await root.plugin(
        lambda ctx: layers.effect(ctx, lambda layer: layer.named.insert("a", 1), "tool a")
    )
    assert [info.label for info in fiber.effects()] == ["tool a"]
    assert changes == [1]
    await fiber.dispose()
    assert changes == [1, 0]
    layers.effect(root, lambda layer: layer.named.insert("b", 1), notify=False).dispose()
    assert changes == [1, 0]


async def test_failing_action_on_a_fresh_layer_removes_the_layer(root: Context) -> None:
    layers = ScopedLayers(Tools)
    key = Key()
    scope = create_scope(root, key)

    def fail(layer: Tools) -> object:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        layers.effect(scope.ctx, fail)  # type: ignore[arg-type]
    assert layers.peek(key) is None


async def test_notification_that_raises_rolls_the_insert_back(root: Context) -> None:
    seen: list[int] = []

    def notify() -> None:
        seen.append(len(layers.global_.named))
        if seen == [1]:
            raise ValueError("refused")

    layers = ScopedLayers(Tools, notify)
    with pytest.raises(ValueError, match="refused"):
        layers.effect(root, lambda layer: layer.named.insert("a", 1))
    assert (layers.global_.is_empty(), seen) == (True, [1, 0])
