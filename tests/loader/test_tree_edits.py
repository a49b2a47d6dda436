"""Entries and groups: every edit is taken whole, or leaves the tree as it was."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from loader_support import Shelf, loader_on, states
from tree_support import fibers, group

from dsh.kernel import Context, FiberState
from dsh.loader.errors import EntryError, EntryMissing, PatchError, TreeBusy
from dsh.loader.expr import Expr
from dsh.loader.loader import Loader


async def test_fields_that_a_plugin_does_not_see_change_without_a_remount(
    root: Context, plugins: Shelf
) -> None:
    loader = await loader_on(root)
    await loader.mount([{"id": "a", "name": plugins.recorder("a")}])
    fiber = loader.resolve("a").fiber
    await loader.update("a", {"note": "mine"})
    await loader.update("a", {"isolate": {"store": True}, "intercept": {"store": {"x": 1}}})
    await loader.update("a", {"isolate": None, "intercept": None, "note": None})
    assert loader.resolve("a").fiber is fiber
    assert loader.resolve("a").options == {"id": "a", "name": "a"}
    assert plugins.did() == ["a up"]


async def test_values_of_another_type_are_a_change(root: Context, plugins: Shelf) -> None:
    loader = await loader_on(root)
    await loader.mount([{"id": "a", "name": plugins.recorder("a"), "config": {"n": [1]}}])
    await loader.update("a", {"config": {"n": [1]}})
    assert plugins.did() == ["a up"]
    await loader.update("a", {"config": {"n": [True]}})
    assert plugins.did() == ["a down", "a up"]


async def test_a_row_keeps_its_identity_through_edits(root: Context, plugins: Shelf) -> None:
    rows = [group("g", {"id": "a", "name": plugins.recorder("a"), "config": 1})]
    loader = await loader_on(root)
    await loader.mount(rows)
    options = loader.resolve("a").options
    await loader.update("a", {"config": 2})
    assert loader.resolve("a").options is options
    assert loader.resolve("g").options["config"][0] is options
    await loader.mount(rows)
    assert options == {"id": "a", "name": "a", "config": 1}
    assert loader.resolve("g").options["config"][0] is options


async def test_rows_made_in_a_group_are_rows_of_the_group(root: Context, plugins: Shelf) -> None:
    rows = [{"id": "g", "name": "cordis:group", "group": True}]
    loader = await loader_on(root)
    await loader.mount(rows)
    await loader.create({"id": "a", "name": plugins.recorder("a")}, parent="g")
    assert loader.resolve("g").options["config"] == [{"id": "a", "name": "a"}]
    fiber = loader.resolve("g").fiber
    assert fiber is not None
    await fiber.restart()
    assert states(loader) == {"g": "active", "a": "active"}
    await loader.mount(rows)
    assert states(loader) == {"g": "active"}


async def test_an_id_is_there_once_in_the_tree_whatever_group_it_is_asked_for(
    root: Context, plugins: Shelf
) -> None:
    a = plugins.recorder("a")
    loader = await loader_on(root)
    await loader.mount([{"id": "a", "name": a}, group("g", {"id": "b", "name": a})])
    before = fibers(loader)
    for row in (
        {"id": "a", "name": a},
        {"id": "b", "name": a},
        group("new", {"id": "b", "name": a}),
    ):
        with pytest.raises(PatchError, match="duplicate row id"):
            await loader.create(row)
        with pytest.raises(PatchError, match="duplicate row id"):
            await loader.create(row, parent="g")
    with pytest.raises(EntryError, match=r'duplicate row id "a": the tree has a row of this id'):
        await loader.update("g", {"config": [{"id": "b", "name": a}, {"id": "a", "name": a}]})
    assert fibers(loader) == before


async def test_a_move_between_enabled_groups_does_not_restart(
    root: Context, plugins: Shelf
) -> None:
    loader = await loader_on(root)
    await loader.mount([group("g", {"id": "a", "name": plugins.recorder("a")}), group("h")])
    fiber = loader.resolve("a").fiber
    assert fiber is not None
    await loader.update("a", {}, parent="h")
    assert loader.resolve("a").fiber is fiber
    assert fiber.parent_fiber is loader.resolve("h").fiber
    assert [entry.id for entry in loader.entries()] == ["g", "h", "a"]
    await loader.update("a", {}, parent=None, position=0)
    assert [entry.id for entry in loader.entries()] == ["a", "g", "h"]
    await loader.update("a", {}, position=2)
    assert [entry.id for entry in loader.entries()] == ["g", "h", "a"]
    assert plugins.did() == ["a up"]
    await loader.remove("h")
    assert states(loader) == {"g": "active", "a": "active"}


@pytest.mark.parametrize(
    ("source", "target", "happens"),
    [
        (False, False, []),
        (False, True, ["a down"]),
        (True, True, []),
        (True, False, ["a up"]),
    ],
    ids=["on to on", "on to off", "off to off", "off to on"],
)
async def test_a_move_starts_and_stops_by_what_the_groups_say(
    root: Context, plugins: Shelf, source: bool, target: bool, happens: list[str]
) -> None:
    loader = await loader_on(root)
    row = {"id": "a", "name": plugins.recorder("a")}
    await loader.mount([group("g", row, disabled=source), group("h", disabled=target)])
    plugins.did()
    await loader.update("a", {}, parent="h")
    assert plugins.did() == happens


async def test_a_row_cannot_move_into_itself(root: Context) -> None:
    loader = await loader_on(root)
    await loader.mount([group("g", group("h"))])
    with pytest.raises(PatchError, match='row "g" cannot move into itself'):
        await loader.update("g", {}, parent="h")
    with pytest.raises(EntryMissing, match="nowhere"):
        await loader.update("g", {}, parent="nowhere")
    assert [entry.id for entry in loader.entries()] == ["g", "h"]


async def test_a_failed_move_restores_place_context_and_config(
    root: Context, plugins: Shelf
) -> None:
    def apply(ctx: Context, config: Any) -> None:
        if config == 2:
            raise RuntimeError("two")
        plugins.log.append((f"up {ctx.intercepts('store')}", config))

    name = plugins.module("m", apply=apply)
    loader = await loader_on(root)
    await loader.mount(
        [
            group("g", {"id": "x", "name": name}, {"id": "a", "name": name, "config": 1}),
            group("h", intercept={"store": {"from": "h"}}),
        ]
    )
    entry = loader.resolve("a")
    with pytest.raises(EntryError, match="two"):
        await loader.update("a", {"config": 2}, parent="h", position=0)
    assert [each.id for each in loader.entries()] == ["g", "x", "a", "h"]
    assert entry.group.owner is loader.resolve("g")
    assert entry.ctx.intercepts("store") == ()
    assert entry.options == {"id": "a", "name": "m", "config": 1}
    assert loader.resolve("g").options["config"][1] is entry.options
    assert loader.resolve("h").options["config"] == []
    assert plugins.log[-1] == ("up ()", 1)
    assert states(loader) == {"g": "active", "x": "active", "a": "active", "h": "active"}


async def test_a_remount_mid_way_through_the_list_of_rows_moves_what_only_moved(
    root: Context, plugins: Shelf
) -> None:
    a, b = ({"id": name, "name": plugins.recorder(name)} for name in "ab")
    loader = await loader_on(root)
    await loader.mount([a, group("g", b), group("h")])
    before = fibers(loader)
    await loader.mount([group("h", b, group("g", a))])
    assert [entry.id for entry in loader.entries()] == ["h", "b", "g", "a"]
    assert fibers(loader) == before
    assert plugins.did() == ["a up", "b up"]


async def test_moves_of_a_refused_list_are_taken_back(root: Context, plugins: Shelf) -> None:
    a, b = ({"id": name, "name": plugins.recorder(name)} for name in "ab")
    bad = {"id": "bad", "name": plugins.failing("bad", RuntimeError("no luck"))}
    loader = await loader_on(root)
    await loader.mount([a, group("g", b), group("h")])
    before = fibers(loader)
    with pytest.raises(EntryError, match="no luck"):
        await loader.mount([group("h", b, {**a, "note": 1}), group("g"), bad])
    assert fibers(loader) == before
    assert [entry.id for entry in loader.entries()] == ["a", "g", "b", "h"]
    assert plugins.did() == ["a up", "b up"]
    assert loader.resolve("a").options == a


async def test_a_rollback_that_needs_a_second_try_ends_in_the_same_place(
    root: Context, plugins: Shelf
) -> None:
    two, one = plugins.provider("two", "store", 2), plugins.provider("one", "store", 1)
    off = group("off", {"id": "bad", "name": "no.such"}, {"id": "one", "name": one}, disabled=True)
    row = {"id": "two", "name": two}
    loader = await loader_on(root)
    await loader.mount([group("g", off, row, isolate={"store": "y"})])
    with pytest.raises(EntryError, match=r"no\.such"):
        await loader.mount(
            [
                {"id": "bad", "name": "no.such"},
                {"id": "one", "name": one},
                {**row, "name": plugins.recorder("plain")},
            ]
        )
    assert loader.resolve("two").group.owner is loader.resolve("g")
    running = [each for each, state in states(loader).items() if state == "active"]
    assert running == ["g", "off", "two"]
    assert root.get("store") is None


async def test_a_row_moves_into_a_group_that_is_new(root: Context, plugins: Shelf) -> None:
    p = {"id": "p", "name": plugins.provider("p", "store", 1)}
    loader = await loader_on(root)
    await loader.mount([p])
    with pytest.raises(EntryError):
        await loader.mount([group("g", p), {"id": "x", "name": "no.such"}])
    assert states(loader) == {"p": "active"}
    assert root.get("store") == 1
    await loader.mount([group("g", p)])
    assert states(loader) == {"g": "active", "p": "active"}
    assert root.get("store") == 1


async def test_a_service_goes_from_a_row_that_vanishes_to_a_new_one(
    root: Context, plugins: Shelf
) -> None:
    one, two = plugins.provider("one", "store", 1), plugins.provider("two", "store", 2)
    bad = {"id": "bad", "name": plugins.failing("bad", RuntimeError("no luck"))}
    loader = await loader_on(root)
    await loader.mount([{"id": "one", "name": one}])
    with pytest.raises(EntryError, match="no luck"):
        await loader.mount([{"id": "two", "name": two}, bad])
    assert (states(loader), root.get("store")) == ({"one": "active"}, 1)
    await loader.mount([{"id": "two", "name": two}])
    assert (states(loader), root.get("store")) == ({"two": "active"}, 2)
    await loader.mount([{"id": "two", "name": two, "disabled": True}, {"id": "one", "name": one}])
    assert (states(loader), root.get("store")) == ({"two": None, "one": "active"}, 1)
    await loader.mount([{"id": "two", "name": two}, {"id": "one", "name": one, "disabled": True}])
    assert root.get("store") == 2
    with pytest.raises(EntryError, match="has been registered"):
        await loader.mount([{"id": "two", "name": two}, {"id": "one", "name": one}])
    assert root.get("store") == 2


async def test_two_rows_exchange_their_plugins(root: Context, plugins: Shelf) -> None:
    one, two = plugins.provider("one", "first", 1), plugins.provider("two", "second", 2)
    loader = await loader_on(root)
    await loader.mount([{"id": "a", "name": one}, {"id": "b", "name": two}])
    await loader.mount([{"id": "a", "name": two}, {"id": "b", "name": one}])
    assert states(loader) == {"a": "active", "b": "active"}
    assert loader.resolve("a").name == "two"


async def test_a_failing_child_restores_what_its_group_did(root: Context, plugins: Shelf) -> None:
    a = {"id": "a", "name": plugins.recorder("a"), "config": 1}
    b = {"id": "b", "name": plugins.recorder("b")}
    bad = {"id": "bad", "name": plugins.failing("bad", RuntimeError("no luck"))}
    loader = await loader_on(root)
    await loader.mount([group("g", a, b), {"id": "z", "name": plugins.recorder("z")}])
    rows = loader.resolve("g").options["config"]
    plugins.did()
    with pytest.raises(EntryError, match=r"entry g .*entry bad .*no luck"):
        await loader.mount([group("g", {**a, "config": 2}, bad)])
    assert states(loader) == dict.fromkeys(["g", "a", "b", "z"], "active")
    assert loader.resolve("g").options["config"] is loader.resolve_group("g").rows
    assert loader.resolve("g").options["config"] == [a, b]
    assert rows[0] is loader.resolve("a").options
    assert plugins.log[-1] == ("a up", 1)


async def test_enabling_a_group_whose_row_fails_is_refused(root: Context, plugins: Shelf) -> None:
    a = {"id": "a", "name": plugins.recorder("a")}
    bad = {"id": "bad", "name": plugins.failing("bad", RuntimeError("no luck"))}
    loader = await loader_on(root)
    await loader.mount([group("g", a, bad, disabled=True)])
    with pytest.raises(EntryError, match="no luck"):
        await loader.update("g", {"disabled": None})
    assert states(loader) == {"g": "active", "a": None, "bad": None}
    assert loader.resolve("g").options["disabled"] is True


async def test_a_failed_row_may_be_edited(root: Context, plugins: Shelf) -> None:
    def apply(ctx: Context, config: Any) -> None:
        if ctx.require("store") == 1:
            raise RuntimeError("not this one")

    loader = await loader_on(root)
    await loader.mount([{"id": "a", "name": plugins.module("m", apply=apply), "inject": ["store"]}])
    await root.plugin(lambda ctx: ctx.provide("store", 1))
    await loader.quiesce()
    assert states(loader) == {"a": "failed"}
    fiber = loader.resolve("a").fiber
    await loader.update("a", {"note": 1})
    with pytest.raises(EntryError, match=r"failed to import loader entry a \(no\.such\)"):
        await loader.update("a", {"name": "no.such"})
    assert loader.resolve("a").fiber is fiber
    with pytest.raises(EntryError, match=r"failed to apply loader entry a .*no luck"):
        await loader.update("a", {"name": plugins.failing("bad", RuntimeError("no luck"))})
    assert states(loader) == {"a": "failed"}
    assert loader.resolve("a").name == "m"
    await loader.update("a", {"name": plugins.recorder("fine")})
    assert states(loader) == {"a": "active"}


async def test_a_rollback_that_fails_tells_both_causes(root: Context, plugins: Shelf) -> None:
    runs: list[int] = []

    def apply(ctx: Context, config: Any) -> None:
        runs.append(1)
        if len(runs) > 1:
            raise RuntimeError("only once")

    loader = await loader_on(root)
    await loader.mount([{"id": "a", "name": plugins.module("once", apply=apply)}])
    with pytest.raises(EntryError) as caught:
        await loader.update("a", {"name": plugins.failing("bad", RuntimeError("no luck"))})
    assert (caught.value.stage, caught.value.id, caught.value.name) == ("rollback", "a", "once")
    assert isinstance(caught.value.__cause__, ExceptionGroup)
    assert [str(each.__cause__) for each in caught.value.__cause__.exceptions] == [
        "no luck",
        "only once",
    ]


async def test_changes_wait_for_each_other_and_a_failed_one_stops_none(
    root: Context, plugins: Shelf
) -> None:
    gate = asyncio.Event()

    async def apply(ctx: Context, config: Any) -> None:
        await gate.wait()

    loader = await loader_on(root)
    slow = asyncio.ensure_future(
        loader.create({"id": "slow", "name": plugins.module("slow", apply=apply)})
    )
    failing = asyncio.ensure_future(loader.create({"id": "bad", "name": "no.such"}))
    dropped = asyncio.ensure_future(loader.create({"id": "c", "name": plugins.recorder("c")}))
    last = asyncio.ensure_future(loader.create({"id": "a", "name": plugins.recorder("a")}))
    await asyncio.sleep(0)
    dropped.cancel()
    await asyncio.wait([dropped])
    assert list(states(loader)) == ["slow"]
    gate.set()
    await asyncio.wait([slow, failing, last])
    assert isinstance(failing.exception(), EntryError)
    assert list(states(loader)) == ["slow", "a"]


async def test_a_change_goes_on_when_its_caller_is_cancelled(root: Context, plugins: Shelf) -> None:
    gate = asyncio.Event()

    async def apply(ctx: Context, config: Any) -> None:
        await gate.wait()

    loader = await loader_on(root)
    asking = asyncio.ensure_future(
        loader.create({"id": "slow", "name": plugins.module("slow", apply=apply)})
    )
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait([asking])
    gate.set()
    await loader.create({"id": "a", "name": plugins.recorder("a")})
    assert states(loader) == {"slow": "active", "a": "active"}


async def test_a_failure_that_nobody_waits_for_any_more_is_reported(
    root: Context, plugins: Shelf
) -> None:
    gate = asyncio.Event()
    reports: list[str] = []

    async def apply(ctx: Context, config: Any) -> None:
        await gate.wait()
        raise RuntimeError("no luck")

    loader = await loader_on(root)
    root.set_reporter(lambda error, _, label: reports.append(label))
    asking = asyncio.ensure_future(
        loader.create({"id": "slow", "name": plugins.module("slow", apply=apply)})
    )
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait([asking])
    gate.set()
    await loader.queue.idle()
    assert reports == ["apply", "loader: create"]


async def test_a_plugin_changes_rows_from_inside_its_own_mount(
    root: Context, plugins: Shelf
) -> None:
    async def apply(ctx: Context, config: Any) -> None:
        loader = ctx.require(Loader)
        await loader.create({"id": "inner", "name": "inner"}, parent="sub")

    plugins.recorder("inner")
    loader = await loader_on(root)
    await loader.mount([group("sub")])
    row = {"id": "m", "name": plugins.module("m", apply=apply)}
    async with asyncio.timeout(5):
        await loader.mount([group("sub"), row])
    assert states(loader)["m"] == "active"


@pytest.mark.parametrize(
    "change", ["create", "own update", "own removal", "mount without", "mount changed"]
)
async def test_a_change_that_would_wait_for_itself_is_an_error_and_no_hang(
    root: Context, plugins: Shelf, change: str
) -> None:
    caught: list[BaseException] = []

    async def apply(ctx: Context, config: Any) -> None:
        loader = ctx.require(Loader)
        work = {
            "create": lambda: loader.create({"id": "x", "name": "inner"}),
            "own update": lambda: loader.update("m", {"config": 2}),
            "own removal": lambda: loader.remove("m"),
            "mount without": lambda: loader.mount([]),
            "mount changed": lambda: loader.mount(
                [{"id": "new", "name": "inner"}, {"id": "m", "name": "m", "config": 3}]
            ),
        }[change]
        try:
            await work()
        except TreeBusy as error:
            caught.append(error)

    plugins.recorder("inner")
    loader = await loader_on(root)
    async with asyncio.timeout(5):
        await loader.mount([{"id": "m", "name": plugins.module("m", apply=apply)}])
        fiber = loader.resolve("m").fiber
        assert fiber is not None
        if change != "create":
            await fiber.restart()
            await loader.queue.idle()
    assert states(loader) == {"m": "active"}
    assert all("ctx.spawn" in str(error) for error in caught)
    assert len(caught) == (1 if change == "create" else 2)


async def test_a_change_from_an_undo_that_a_change_waits_for_is_no_hang(
    root: Context, plugins: Shelf
) -> None:
    caught: list[type[BaseException]] = []

    def apply(ctx: Context, config: Any) -> None:
        loader = ctx.require(Loader)

        async def undo() -> None:
            try:
                await loader.create({"id": "x", "name": "inner"})
            except TreeBusy as error:
                caught.append(type(error))

        ctx.defer(undo)

    plugins.recorder("inner")
    loader = await loader_on(root)
    await loader.mount([{"id": "m", "name": plugins.module("m", apply=apply)}])
    async with asyncio.timeout(5):
        await loader.remove("m")
    assert (caught, states(loader)) == ([TreeBusy], {})


async def test_a_task_of_a_plugin_may_end_its_own_row(root: Context, plugins: Shelf) -> None:
    def apply(ctx: Context, config: Any) -> None:
        ctx.spawn(ctx.require(Loader).remove("m"), "leave")

    loader = await loader_on(root)
    async with asyncio.timeout(5):
        await loader.mount([{"id": "m", "name": plugins.module("m", apply=apply)}])
        await loader.queue.idle()
    assert states(loader) == {}


async def test_other_plugin_objects_take_over_as_one(root: Context, plugins: Shelf) -> None:
    loader = await loader_on(root)
    config = {"deep": [1]}
    p = {"id": "p", "name": plugins.provider("p", "store", 1)}
    a = {"id": "a", "name": plugins.recorder("a"), "inject": ["store"], "config": config}
    await loader.mount([p, a, {"id": "off", "name": "a", "disabled": True}])
    seen: list[Any] = []
    entries = {entry.id: entry for entry in loader.entries()}
    raw = entries["a"].fiber.raw_config  # type: ignore[union-attr]

    def provide(ctx: Context) -> None:
        ctx.provide("store", 2)

    def reader(ctx: Context, config: Any) -> None:
        seen.append((ctx.require("store"), config is raw))

    await loader.replace({entries["p"]: provide, entries["a"]: reader, entries["off"]: reader})
    assert seen == [(2, True)]
    assert states(loader) == {"p": "active", "a": "active", "off": None}
    assert entries["a"].plugin is reader
    assert "disabled" not in entries["a"].options
    with pytest.raises(EntryError, match="invalid plugin"):
        await loader.replace({entries["p"]: provide, entries["a"]: 5})
    assert states(loader) == {"p": "active", "a": "active", "off": None}
    assert entries["a"].plugin is reader

    def fails(ctx: Context) -> None:
        raise RuntimeError("later")

    await loader.replace({entries["a"]: fails})
    assert states(loader) == {"p": "active", "a": "failed", "off": None}


async def test_rows_that_ask_for_it_wait_until_the_others_have_loaded(
    root: Context, plugins: Shelf
) -> None:
    gate = asyncio.Event()

    async def slow(ctx: Context, config: Any) -> None:
        await gate.wait()
        plugins.log.append(("slow up", None))

    loader = await loader_on(root)
    mounting = asyncio.ensure_future(
        loader.mount(
            [
                {"id": "w", "name": plugins.recorder("w"), "inject": {"loader": {"await": True}}},
                {"id": "slow", "name": plugins.module("slow", apply=slow)},
                {"id": "p", "name": plugins.recorder("p"), "inject": ["nobody"]},
                group("g", {"id": "q", "name": plugins.recorder("q")}),
            ]
        )
    )
    await asyncio.sleep(0.02)
    assert plugins.did() == ["q up"]
    gate.set()
    await mounting
    await loader.wait()
    assert plugins.did() == ["slow up", "w up"]
    assert states(loader)["p"] == "pending"
    gate.clear()
    later = asyncio.ensure_future(loader.create({"id": "later", "name": "slow"}))
    await asyncio.sleep(0.01)
    assert states(loader)["w"] == "active"
    gate.set()
    await later
    assert plugins.did() == ["slow up"]


async def test_waiting_for_the_tree_from_inside_does_not_wait_for_oneself(
    root: Context, plugins: Shelf
) -> None:
    async def apply(ctx: Context, config: Any) -> None:
        await ctx.require(Loader).wait()

    loader = await loader_on(root)
    async with asyncio.timeout(5):
        await loader.mount([group("g", {"id": "m", "name": plugins.module("m", apply=apply)})])
    assert states(loader) == {"g": "active", "m": "active"}


async def test_ancestors_switch_what_is_below_through_several_groups(
    root: Context, plugins: Shelf
) -> None:
    loader = await loader_on(root)
    await loader.mount([group("o", group("i", {"id": "a", "name": plugins.recorder("a")}))])
    count = len(list(loader.entries()))
    await loader.update("o", {"disabled": Expr("true")})
    assert states(loader) == {"o": "active", "i": "active", "a": None}
    assert len(list(loader.entries())) == count
    await loader.update("o", {"disabled": Expr("false")})
    assert plugins.did() == ["a up", "a down", "a up"]


async def test_outcomes_do_not_count_while_the_group_goes(root: Context, plugins: Shelf) -> None:
    def apply(ctx: Context, config: Any) -> None:
        ctx.root.dispose()
        raise RuntimeError("on the way out")

    loader = await loader_on(root)
    await loader.mount([group("g", {"id": "a", "name": plugins.module("m", apply=apply)})])
    await root.dispose()
    assert root.census().fibers == 1


async def test_rows_are_found_by_index_and_not_by_a_scan(root: Context, plugins: Shelf) -> None:
    loader = await loader_on(root)
    name = plugins.module("m", apply=lambda ctx: None)
    await loader.mount([{"id": f"r{n}", "name": name} for n in range(500)])
    looked: list[str] = []
    loader.tree.entries = lambda: looked.append("scan") or iter(())  # type: ignore[method-assign,func-returns-value]
    assert loader.resolve("r499").fiber.state is FiberState.ACTIVE  # type: ignore[union-attr]
    assert looked == []
