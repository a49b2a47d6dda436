"""Layered registries against a plain model of them, under random changes."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsh.kernel import (
    AnonymousEntries,
    Context,
    Effect,
    NamedEntries,
    ScopedLayers,
    ScopeParentBinding,
    bind_scope_parent,
    create_scope,
)


class Key:
    """A scope key."""


class Entries:
    """A layer with entries of both kinds."""

    def __init__(self) -> None:
        self.named = NamedEntries[int](lambda name: KeyError(name))
        self.rules = AnonymousEntries[str]()

    def is_empty(self) -> bool:
        return self.named.is_empty() and self.rules.is_empty()


CHAIN = (None, 0, 1, 2)
"""The scopes: the global one, then each below the one before it."""

steps = st.lists(
    st.one_of(
        st.tuples(st.just("name"), st.sampled_from(CHAIN), st.sampled_from("abc")),
        st.tuples(st.just("rule"), st.sampled_from(CHAIN), st.sampled_from("xy")),
        st.tuples(st.just("undo"), st.integers(0, 30), st.none()),
    ),
    max_size=30,
)


@given(steps)
@settings(max_examples=60, deadline=None)
def test_layers_are_what_is_registered_in_them(plan: list[tuple[str, int | None, str]]) -> None:
    asyncio.run(check_layers(plan))


async def check_layers(plan: list[tuple[str, int | None, str]]) -> None:
    root = Context()
    keys = [Key() for _ in range(3)]
    bindings = [bind_scope_parent(keys[place], keys[place - 1]) for place in (1, 2)]
    homes = {None: root} | {place: create_scope(root, key).ctx for place, key in enumerate(keys)}
    layers = ScopedLayers(Entries)
    model: list[tuple[Effect, int | None, str, str, int]] = []
    for number, (kind, where, what) in enumerate(plan):
        if kind == "undo":
            if model:
                effect, *_ = model.pop((where or 0) % len(model))
                effect.dispose()
        elif kind == "name":
            taken = any(m[1:4] == (where, "name", what) for m in model)
            try:
                made = layers.effect(
                    homes[where], lambda layer, n=what, v=number: layer.named.insert(n, v)
                )
            except KeyError:
                assert taken
            else:
                assert not taken
                model.append((made, where, "name", what, number))
        else:
            made = layers.effect(homes[where], lambda layer, v=what: layer.rules.append(v))
            model.append((made, where, "rule", what, number))
        compare(layers, model, keys)
    await root.dispose()
    assert layers.global_.is_empty()
    assert [layers.peek(key) for key in keys] == [None] * 3
    assert len(bindings) == 2


def compare(
    layers: ScopedLayers[Entries],
    model: list[tuple[Effect, int | None, str, str, int]],
    keys: list[Key],
) -> None:
    seen: dict[str, int] = {}
    for where in CHAIN:
        mine = [m for m in model if m[1] == where]
        names = {m[3]: m[4] for m in mine if m[2] == "name"}
        key = None if where is None else keys[where]
        layer = layers.peek(key)
        if where is not None and not mine:
            assert layer is None
        else:
            assert layer is not None
            assert dict(layer.named.entries()) == names
            assert layer.rules.values() == [m[3] for m in mine if m[2] == "rule"]
        seen = seen | names
        assert layers.merge(key, lambda layer: layer.named) == seen
        chain = [layers.peek(keys[place]) for place in CHAIN[1 : CHAIN.index(where) + 1]]  # type: ignore[index]
        assert layers.chain_layers(key) == [layer for layer in chain if layer is not None]


async def test_the_undo_comes_before_the_layer_goes_and_the_telling_last(root: Context) -> None:
    order: list[str] = []
    key = Key()
    layers = ScopedLayers(Entries, lambda: order.append(f"told, layer {layers.peek(key)}"))

    def action(layer: Entries) -> object:
        order.append("action")
        undo = layer.named.insert("a", 1)

        def remove() -> None:
            order.append(f"undo, layer {'there' if layers.peek(key) is layer else 'gone'}")
            undo()

        return remove

    effect = layers.effect(create_scope(root, key).ctx, action)  # type: ignore[arg-type]
    assert order[0] == "action"
    order.clear()
    effect.dispose()
    assert order == ["undo, layer there", "told, layer None"]


async def test_the_effect_that_is_returned_is_the_kernels_own(root: Context) -> None:
    layers = ScopedLayers(Entries)

    def composed(ctx: Context) -> None:
        def parts() -> object:
            yield layers.effect(ctx, lambda layer: layer.rules.append("first"), "first")
            yield layers.effect(ctx, lambda layer: layer.rules.append("second"), "second")

        ctx.effect(parts, "both")  # type: ignore[arg-type]

    fiber = await root.plugin(composed)
    assert [str(info) for info in fiber.effects()] == ["both (first, second)"]
    await fiber.dispose()
    assert layers.global_.is_empty()


async def test_a_registration_goes_to_the_scope_of_the_context_that_owns_it(root: Context) -> None:
    layers = ScopedLayers(Entries)
    key = Key()
    scope = create_scope(root, key)
    layers.effect(scope.ctx.extend(), lambda layer: layer.rules.append("x"))
    layer = layers.peek(key)
    assert layer is not None
    assert layer.rules.values() == ["x"]
    await scope.dispose()
    assert layers.peek(key) is None


async def test_a_rebound_key_sees_the_layers_of_its_new_parent(root: Context) -> None:
    layers = ScopedLayers(Entries)
    child, first, second = Key(), Key(), Key()
    binding: ScopeParentBinding = bind_scope_parent(child, first)
    for number, parent in enumerate((first, second)):
        layers.effect(
            create_scope(root, parent).ctx,
            lambda layer, n=number: layer.named.insert("a", n),  # type: ignore[misc]
        )
    assert layers.merge(child, lambda layer: layer.named) == {"a": 0}
    binding.rebind(second)
    assert layers.merge(child, lambda layer: layer.named) == {"a": 1}


def test_a_live_iteration_follows_what_is_added_and_removed_meanwhile() -> None:
    entries = NamedEntries[int](lambda name: KeyError(name))
    undos = {name: entries.insert(name, ord(name)) for name in "abc"}
    seen = []
    for name, _ in entries.live():
        seen.append(name)
        if name == "a":
            undos["b"]()
            entries.insert("d", 4)
        if name == "c":
            entries.insert("b", 5)
    assert seen == ["a", "c", "d", "b"]


def test_a_live_iteration_ends_for_good_when_nothing_is_left() -> None:
    entries = NamedEntries[int](lambda name: KeyError(name))
    undo = entries.insert("a", 1)
    old = entries.live()
    assert next(old) == ("a", 1)
    undo()
    entries.insert("b", 2)
    with pytest.raises(StopIteration):
        next(old)
    assert list(entries.live()) == [("b", 2)]


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.booleans()), max_size=40))
def test_named_entries_are_a_dictionary_with_exact_undos(plan: list[tuple[str, bool]]) -> None:
    entries = NamedEntries[int](lambda name: KeyError(name))
    model: dict[str, int] = {}
    undos: dict[str, list[object]] = {}
    for number, (name, add) in enumerate(plan):
        if add and name in model:
            with pytest.raises(KeyError):
                entries.insert(name, number)
        elif add:
            undos.setdefault(name, []).append(entries.insert(name, number))
            model[name] = number
        else:
            for undo in undos.get(name, []):
                undo()  # type: ignore[operator]
            model.pop(name, None)
        assert entries.entries() == list(model.items()) == list(entries.live())
        assert entries.is_empty() == (not model)
