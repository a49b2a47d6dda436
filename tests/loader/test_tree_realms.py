"""Realms: rows share or keep services by label, and change labels without a restart."""

from __future__ import annotations

from typing import Any

import pytest
from loader_support import Shelf, loader_on, states
from tree_support import fibers, group

from dsh.kernel import Context, Service
from dsh.loader.errors import EntryError
from dsh.loader.events import LOADER_PARTIAL_DISPOSE
from dsh.loader.loader import Loader


@pytest.fixture
def readers(plugins: Shelf) -> Shelf:
    """Plugins `one` and `two` provide `store`; `reader` logs what it gets; `plain` needs none."""
    plugins.provider("one", "store", 1)
    plugins.provider("two", "store", 2)
    plugins.recorder("plain")

    def apply(ctx: Context, config: Any) -> None:
        plugins.log.append((f"got {ctx.require('store')}", config))

    plugins.module("reader", apply=apply, inject=["store"])
    return plugins


def provider(name: str = "one", **fields: Any) -> dict[str, Any]:
    return {"id": "p", "name": name, **fields}


def reader(id: str = "r", **fields: Any) -> dict[str, Any]:
    return {"id": id, "name": "reader", **fields}


SHARED = {"isolate": {"store": "x"}}
PRIVATE = {"isolate": {"store": True}}


async def test_isolating_a_reader_reloads_it_once_and_nobody_else(
    root: Context, readers: Shelf
) -> None:
    loader = await loader_on(root)
    await loader.mount([provider(), reader(), reader("s"), {"id": "n", "name": "plain"}])
    before = fibers(loader)
    readers.did()
    await loader.update("r", {"isolate": {"store": True}})
    assert states(loader) == {"p": "active", "r": "pending", "s": "active", "n": "active"}
    await loader.update("r", {"isolate": {"store": True, "other": "y"}})
    assert states(loader)["r"] == "pending"
    await loader.update("r", {"isolate": None})
    assert readers.did() == ["got 1"]
    assert fibers(loader) == before


async def test_isolating_a_provider_takes_its_service_along(root: Context, readers: Shelf) -> None:
    loader = await loader_on(root)
    await loader.mount([provider(), reader(), reader("x", **SHARED)])
    before = fibers(loader)
    assert states(loader) == {"p": "active", "r": "active", "x": "pending"}
    await loader.update("p", SHARED)
    await loader.quiesce()
    assert states(loader) == {"p": "active", "r": "pending", "x": "active"}
    assert root.get("store") is None
    await loader.update("p", {"isolate": None})
    await loader.quiesce()
    assert states(loader) == {"p": "active", "r": "active", "x": "pending"}
    assert fibers(loader) == before
    assert readers.did() == ["got 1"] * 3


async def test_a_provider_and_its_readers_move_together_without_a_reload(
    root: Context, readers: Shelf
) -> None:
    loader = await loader_on(root)
    await loader.mount([group("g", provider(), reader()), group("h", **PRIVATE)])
    readers.did()
    await loader.update("g", PRIVATE)
    await loader.update("g", SHARED)
    await loader.update("g", {}, parent="h")
    assert states(loader) == dict.fromkeys(["h", "g", "p", "r"], "active")
    assert root.get("store") is None
    await loader.update("g", {"isolate": None}, parent=None)
    assert root.get("store") == 1
    assert readers.did() == []


async def test_equal_labels_on_several_levels_are_one_scope(root: Context, readers: Shelf) -> None:
    loader = await loader_on(root)
    await loader.mount([group("g", provider(**SHARED), reader(), **SHARED)])
    assert states(loader) == dict.fromkeys(["g", "p", "r"], "active")
    readers.did()
    await loader.update("p", {"isolate": None})
    await loader.update("r", SHARED)
    assert readers.did() == []


async def test_the_label_of_a_group_decides_which_provider_its_reader_gets(
    root: Context, readers: Shelf
) -> None:
    loader = await loader_on(root)
    await loader.mount(
        [
            provider(),
            {"id": "q", "name": "two", "isolate": {"store": "x"}},
            group("g", reader()),
        ]
    )
    await loader.update("g", SHARED)
    await loader.quiesce()
    await loader.update("g", {"isolate": None})
    await loader.quiesce()
    await loader.update("r", {}, parent=None)
    assert readers.did() == ["got 1", "got 2", "got 1"]
    await loader.update("q", {}, parent="g")
    await loader.update("g", {"isolate": {"store": "y"}})
    assert readers.did() == []


async def test_the_labels_of_two_providing_groups_decide_what_a_reader_gets(
    root: Context, readers: Shelf
) -> None:
    loader = await loader_on(root)
    await loader.mount(
        [
            group("g", provider(), isolate={"store": "x"}),
            group("h", {"id": "q", "name": "two"}, isolate={"store": "y"}),
            reader(**SHARED),
            reader("other"),
        ]
    )
    before = fibers(loader)
    await loader.update("g", {"isolate": {"store": "z"}})
    await loader.update("h", {"isolate": {"store": "x"}})
    await loader.quiesce()
    assert readers.did() == ["got 1", "got 2"]
    assert states(loader)["other"] == "pending"
    assert fibers(loader) == before


async def test_moving_in_and_out_of_an_isolated_group_flips_who_runs(
    root: Context, readers: Shelf
) -> None:
    loader = await loader_on(root)
    await loader.mount([provider(), reader("out"), group("g", reader("in"), **PRIVATE)])
    assert (states(loader)["out"], states(loader)["in"]) == ("active", "pending")
    await loader.update("p", {}, parent="g")
    await loader.quiesce()
    assert (states(loader)["out"], states(loader)["in"]) == ("pending", "active")
    await loader.update("out", {}, parent="g")
    await loader.quiesce()
    assert states(loader)["out"] == "active"
    await loader.update("p", {}, parent=None)
    await loader.quiesce()
    assert (states(loader)["out"], states(loader)["in"]) == ("pending", "pending")
    await loader.update("out", {}, parent=None)
    assert states(loader)["out"] == "active"


async def test_a_taken_label_refuses_the_edit(root: Context, readers: Shelf) -> None:
    loader = await loader_on(root)
    await loader.mount(
        [group("g", provider(**SHARED)), {"id": "q", "name": "two"}, reader("x", **SHARED)]
    )
    before = fibers(loader)
    readers.did()
    problem = (
        r'row "p": service "store" cannot go to the tree\'s own scope, where row "q" provides it'
    )
    with pytest.raises(EntryError, match=problem):
        await loader.update("p", {"isolate": None})
    with pytest.raises(EntryError, match=r'cannot go to store@x, where row "p" provides it'):
        await loader.update("q", SHARED)
    with pytest.raises(EntryError, match=r'cannot go to store@x, where row "p" provides it'):
        await loader.mount(
            [
                group("g", provider(**SHARED)),
                {"id": "q", "name": "two", **SHARED},
                reader("x", **SHARED),
            ]
        )
    assert fibers(loader) == before
    assert loader.resolve("p").options["isolate"] == {"store": "x"}
    assert "isolate" not in loader.resolve("q").options
    assert readers.did() == []


async def test_a_private_label_is_the_rows_own_and_stays(root: Context, readers: Shelf) -> None:
    loader = await loader_on(root)
    await loader.mount([group("g", provider(), reader(), **PRIVATE), group("h", **PRIVATE)])
    label = loader.resolve("p").ctx.label_of("store")
    assert label is not None
    assert label.name == "store#g"
    await loader.update("g", {"note": 1})
    assert loader.resolve("p").ctx.label_of("store") is label
    other = loader.resolve("h").ctx.label_of("store")
    assert other is not None
    assert other.name == "store#h"


async def test_a_shared_label_is_forgotten_when_no_row_says_it(
    root: Context, readers: Shelf
) -> None:
    changes: list[tuple[str, bool]] = []
    loader = await loader_on(root)
    root.on(
        LOADER_PARTIAL_DISPOSE,
        lambda event: changes.append((event.entry.id, event.active)),
    )
    await loader.mount([provider(**SHARED), reader(**SHARED)])
    assert len(loader.realms) == 1
    await loader.update("p", {"isolate": {"store": "y"}})
    assert len(loader.realms) == 2
    await loader.update("p", {"isolate": None})
    await loader.remove("r")
    assert len(loader.realms) == 0
    assert changes == [("p", True), ("p", True), ("r", False)]
    with pytest.raises(EntryError):
        await loader.create({"id": "bad", "name": "no.such", **SHARED})
    bad = readers.failing("bad", RuntimeError("no luck"))
    with pytest.raises(EntryError):
        await loader.create({"id": "bad", "name": bad, **SHARED})
    with pytest.raises(EntryError):
        await loader.update("p", {"name": bad, **SHARED})
    assert len(loader.realms) == 0


async def test_upstreams_spelling_of_a_service_isolates_it(root: Context, plugins: Shelf) -> None:
    loader = await loader_on(root)
    p = plugins.provider("p", "web_startup", 1)
    await loader.mount([{"id": "p", "name": p, "isolate": {"webStartup": "x"}}])
    assert root.get("web_startup") is None
    assert loader.resolve("p").ctx.label_of("web_startup") is not None


async def test_configs_for_a_service_are_layers_of_group_and_row(
    root: Context, plugins: Shelf
) -> None:
    class Store(Service):
        name = "store"

    seen: list[dict[str, Any]] = []

    def apply(ctx: Context, config: Any) -> None:
        plugins.log.append((str(ctx.intercepts("store")), None))
        seen.append(ctx.require(Store).resolve_config())

    async def check(loader: Loader, expected: list[dict[str, Any]]) -> None:
        fiber = loader.resolve("a").fiber
        assert fiber is not None
        await fiber.restart()
        assert list(fiber.ctx.intercepts("store")) == expected

    row = {"id": "a", "name": plugins.module("m", apply=apply), "inject": ["store"]}
    inner = group("i", {**row, "intercept": {"store": {"c": 3}}}, intercept={"store": {"b": 2}})
    loader = await loader_on(root)
    await root.plugin(Store)
    await loader.mount([group("o", inner, intercept={"store": {"a": 1}})])
    await check(loader, [{"a": 1}, {"b": 2}, {"c": 3}])
    assert seen[-1] == {"a": 1, "b": 2, "c": 3}
    before = fibers(loader)
    await loader.update("i", {"intercept": None})
    await check(loader, [{"a": 1}, {"c": 3}])
    await loader.update("o", {"intercept": {"store": {"a": 5}}})
    await check(loader, [{"a": 5}, {"c": 3}])
    await loader.update("a", {}, parent=None)
    await check(loader, [{"c": 3}])
    assert fibers(loader) == before


async def test_what_is_switched_off_leaves_its_scope_before_others_come_there(
    root: Context, plugins: Shelf
) -> None:
    loader = await loader_on(root)
    name = plugins.provider("p", "store", 1)
    inner = {"id": "p", "name": name}
    await loader.mount(
        [
            group("g", inner, isolate={"store": "x"}),
            {"id": "q", "name": name, "isolate": {"store": "y"}},
        ]
    )
    await loader.update("g", {"isolate": {"store": "y"}, "disabled": True})
    assert states(loader) == {"g": "active", "p": None, "q": "active"}
