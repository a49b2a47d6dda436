from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from loader_support import Shelf, loader_on, states

from dsh.kernel import Context, FiberState, Service
from dsh.loader.errors import EntryError, PatchError, UnknownPlugin
from dsh.loader.events import LOADER_ENTRY_INIT, EntryMade
from dsh.loader.expr import Expr
from dsh.loader.loader import EntryMissing, folder_url
from dsh.loader.resolve import resolve_plugin
from dsh.loader.resolve_errors import BrokenPlugin


@dataclass
class Startup:
    port: int | None = None


@dataclass
class StrictConfig:
    size: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.size, int):
            raise TypeError("size must be a number")


async def test_rows_mount_together_whatever_their_order(root: Context, plugins: Shelf) -> None:
    loader = await loader_on(root)
    await loader.mount(
        [
            {"id": "late", "name": plugins.recorder("late"), "inject": ["webStartup"]},
            {"id": "early", "name": plugins.provider("early", "web_startup", Startup())},
        ]
    )
    await loader.wait()
    assert states(loader) == {"late": "active", "early": "active"}


async def test_a_rows_inject_is_added_to_what_the_plugin_declares(
    root: Context, plugins: Shelf
) -> None:
    loader = await loader_on(root)
    await loader.mount([{"id": "a", "name": plugins.recorder("a"), "inject": {"webStartup": None}}])
    await loader.wait()
    assert states(loader) == {"a": "pending"}
    entry = loader.resolve("a")
    assert entry.fiber is not None
    assert list(entry.fiber.inject) == ["web_startup"]


async def test_config_expressions_are_resolved_at_activation_and_again(
    root: Context, plugins: Shelf
) -> None:
    config = {"port": Expr("ctx.webStartup.port ?? 3080"), "gone": Expr("undefined"), "n": [1]}
    loader = await loader_on(root)
    await loader.mount(
        [{"id": "a", "name": plugins.recorder("a"), "inject": ["webStartup"], "config": config}]
    )
    provider = await root.plugin(lambda ctx: ctx.provide("web_startup", Startup()))
    await loader.wait()
    assert plugins.log == [("a up", {"port": 3080, "n": [1]})]
    await provider.dispose()
    assert states(loader) == {"a": "pending"}
    plugins.log.clear()
    await root.plugin(lambda ctx: ctx.provide("web_startup", Startup(port=9)))
    await loader.wait()
    assert plugins.log == [("a up", {"port": 9, "n": [1]})]
    assert loader.resolve("a").options["config"] == config


async def test_an_expression_that_fails_names_row_field_and_column(
    root: Context, plugins: Shelf
) -> None:
    loader = await loader_on(root)
    row = {"id": "a", "name": plugins.recorder("a"), "config": {"x": [Expr("1 + nope.x")]}}
    with pytest.raises(EntryError, match=r'row "a", config\.x\[0\]: !!js .*, column 5: '):
        await loader.mount([row])
    assert plugins.log == []


async def test_a_failing_expression_recovers_with_its_provider(
    root: Context, plugins: Shelf
) -> None:
    loader = await loader_on(root)
    await loader.mount(
        [
            {
                "id": "a",
                "name": plugins.recorder("a"),
                "inject": ["startup"],
                "config": Expr("startup.nothing.port"),
            }
        ]
    )
    broken = await root.plugin(lambda ctx: ctx.provide("startup", Startup()))
    with pytest.raises(EntryError, match="cannot read 'port' of undefined"):
        await loader.wait()
    await broken.dispose()
    await root.plugin(lambda ctx: ctx.provide("startup", {"nothing": {"port": 5}}))
    await loader.wait()
    assert plugins.log == [("a up", 5)]


async def test_only_the_rows_own_fiber_gets_expressions_resolved(
    root: Context, plugins: Shelf
) -> None:
    seen: list[Any] = []

    def apply(ctx: Context, config: Any) -> None:
        ctx.plugin(lambda _ctx, inner: seen.append(inner), {"raw": Expr("1")})

    loader = await loader_on(root)
    await loader.mount([{"id": "a", "name": plugins.module("outer", apply=apply)}])
    await loader.wait()
    await root.fiber.wait()
    assert seen == [{"raw": Expr("1")}]


async def test_disabled_expressions_decide_at_each_mount(
    root: Context, plugins: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OFF", "1")
    name = plugins.recorder("a")
    loader = await loader_on(root)
    await loader.mount([{"id": "a", "name": name, "disabled": Expr("process.env.OFF === '1'")}])
    assert states(loader) == {"a": None}
    await loader.update("a", {"disabled": Expr("false")})
    assert states(loader) == {"a": "active"}
    await loader.update("a", {"disabled": True})
    assert states(loader) == {"a": None}
    assert plugins.did() == ["a up", "a down"]


async def test_groups_switch_what_is_inside_them(root: Context, plugins: Shelf) -> None:
    inner = {"id": "i", "name": "cordis:group", "group": True}
    inner["config"] = [{"id": "a", "name": plugins.recorder("a")}]
    loader = await loader_on(root)
    await loader.mount([{"id": "o", "name": "cordis:group", "group": True, "config": [inner]}])
    assert states(loader) == {"o": "active", "i": "active", "a": "active"}
    await loader.update("i", {"disabled": True})
    assert states(loader) == {"o": "active", "i": "active", "a": None}
    await loader.update("o", {"disabled": True})
    await loader.update("i", {"disabled": None})
    assert states(loader) == {"o": "active", "i": "active", "a": None}
    await loader.update("o", {"disabled": None})
    assert states(loader) == {"o": "active", "i": "active", "a": "active"}
    assert plugins.did() == ["a up", "a down", "a up"]


async def test_the_same_rows_again_touch_nothing(root: Context, plugins: Shelf) -> None:
    a, b, c = (plugins.recorder(name) for name in "abc")
    loader = await loader_on(root)
    await loader.mount([{"id": "a", "name": a}, {"id": "b", "name": b, "config": {"x": 1}}])
    plugins.did()
    await loader.mount(
        [{"id": "c", "name": c}, {"id": "b", "name": b, "config": {"x": 1}}],
    )
    assert plugins.did() == ["c up", "a down"]
    assert [entry.id for entry in loader.entries()] == ["c", "b"]


async def test_a_new_config_keeps_the_fiber_and_a_new_name_replaces_it(
    root: Context, plugins: Shelf
) -> None:
    a, b = plugins.recorder("a"), plugins.recorder("b")
    loader = await loader_on(root)
    await loader.mount([{"id": "x", "name": a, "config": 1}])
    fiber = loader.resolve("x").fiber
    await loader.update("x", {"config": 2})
    assert loader.resolve("x").fiber is fiber
    await loader.update("x", {"name": b})
    assert loader.resolve("x").fiber is not fiber
    assert [what for what in plugins.log if what[1] is not None] == [
        ("a up", 1),
        ("a up", 2),
        ("b up", 2),
    ]


async def test_an_import_failure_keeps_the_same_fiber(root: Context, plugins: Shelf) -> None:
    loader = await loader_on(root)
    await loader.mount([{"id": "x", "name": plugins.recorder("a"), "config": 1}])
    fiber = loader.resolve("x").fiber
    with pytest.raises(EntryError, match=r"failed to import loader entry x \(no\.such\.thing\)"):
        await loader.update("x", {"name": "no.such.thing"})
    assert loader.resolve("x").fiber is fiber
    assert loader.resolve("x").options == {"id": "x", "name": "a", "config": 1}
    assert plugins.did() == ["a up"]


async def test_a_failing_replacement_brings_the_old_plugin_back(
    root: Context, plugins: Shelf
) -> None:
    loader = await loader_on(root)
    await loader.mount([{"id": "x", "name": plugins.recorder("a")}])
    with pytest.raises(EntryError, match="no luck"):
        await loader.update("x", {"name": plugins.failing("bad", RuntimeError("no luck"))})
    assert states(loader) == {"x": "active"}
    assert plugins.did() == ["a up", "a down", "a up"]


async def test_a_refused_config_keeps_the_old_one(root: Context, plugins: Shelf) -> None:
    def apply(ctx: Context, config: StrictConfig) -> None:
        plugins.log.append(("up", config.size))

    name = plugins.module("strict", apply=apply, Config=StrictConfig)
    loader = await loader_on(root)
    await loader.mount([{"id": "x", "name": name, "config": {"size": 1}}])
    fiber = loader.resolve("x").fiber
    with pytest.raises(EntryError, match="unknown field"):
        await loader.update("x", {"config": {"sise": 2}})
    assert loader.resolve("x").fiber is fiber
    assert loader.resolve("x").options["config"] == {"size": 1}
    assert plugins.log == [("up", 1)]


async def test_a_body_that_fails_with_a_new_config_gets_the_old_one_back(
    root: Context, plugins: Shelf
) -> None:
    def apply(ctx: Context, config: int) -> None:
        plugins.log.append(("up", config))
        if config == 2:
            raise RuntimeError("two")

    loader = await loader_on(root)
    await loader.mount([{"id": "x", "name": plugins.module("m", apply=apply), "config": 1}])
    fiber = loader.resolve("x").fiber
    with pytest.raises(EntryError, match="two"):
        await loader.update("x", {"config": 2})
    assert states(loader) == {"x": "active"}
    assert loader.resolve("x").fiber is fiber
    assert plugins.log == [("up", 1), ("up", 2), ("up", 1)]


async def test_a_disabled_expression_that_fails_leaves_the_row_as_it_was(
    root: Context, plugins: Shelf
) -> None:
    loader = await loader_on(root)
    row = {"id": "x", "name": plugins.recorder("a")}
    await loader.mount([row])
    with pytest.raises(EntryError, match=r'row "x", disabled: !!js .*cannot be read here'):
        await loader.update("x", {"disabled": Expr("nothing.here")})
    assert states(loader) == {"x": "active"}
    assert loader.resolve("x").options == row
    with pytest.raises(EntryError, match=r'row "y", disabled: '):
        await loader.mount([row, {"id": "y", "name": "a", "disabled": Expr("nothing.here")}])
    assert states(loader) == {"x": "active"}
    assert plugins.did() == ["a up"]


async def test_a_tree_update_is_all_or_nothing(root: Context, plugins: Shelf) -> None:
    a, new = plugins.recorder("a"), plugins.recorder("new")
    bad = plugins.failing("bad", RuntimeError("no luck"))
    loader = await loader_on(root)
    await loader.mount([{"id": "a", "name": a, "config": 1}])
    with pytest.raises(EntryError, match="no luck"):
        await loader.mount(
            [
                {"id": "a", "name": a, "config": 2},
                {"id": "new", "name": new},
                {"id": "bad", "name": bad},
            ]
        )
    assert states(loader) == {"a": "active"}
    assert loader.resolve("a").options == {"id": "a", "name": "a", "config": 1}
    ups = [what for what in plugins.log if what[0] == "a up"]
    assert ups[-1] == ("a up", 1)
    assert ("new down", None) in plugins.log
    plugins.log.clear()
    await loader.mount([{"id": "a", "name": a, "config": 3}])
    assert plugins.log == [("a down", None), ("a up", 3)]


async def test_several_failures_come_as_a_group_and_no_body_runs_after_a_missing_import(
    root: Context, plugins: Shelf
) -> None:
    loader = await loader_on(root)
    with pytest.raises(ExceptionGroup) as caught:
        await loader.mount(
            [
                {"id": "good", "name": plugins.recorder("good")},
                {"id": "one", "name": "no.such.one"},
                {"id": "two", "name": "no.such.two"},
            ]
        )
    assert [str(each.__cause__)[:35] for each in caught.value.exceptions] == [
        'cannot resolve plugin "no.such.one"'[:35],
        'cannot resolve plugin "no.such.two"'[:35],
    ]
    assert plugins.log == []
    assert states(loader) == {}


async def test_duplicate_ids_are_refused_before_anything_mounts(
    root: Context, plugins: Shelf
) -> None:
    a = plugins.recorder("a")
    loader = await loader_on(root)
    with pytest.raises(PatchError, match='duplicate row id "x"'):
        await loader.mount([{"id": "x", "name": a}, {"id": "x", "name": a}])
    assert plugins.log == []


async def test_rows_without_an_id_are_new_each_time(root: Context, plugins: Shelf) -> None:
    loader = await loader_on(root)
    rows = [{"name": plugins.recorder("a")}]
    await loader.mount(rows)
    (first,) = [entry.id for entry in loader.entries()]
    await loader.mount(rows)
    (second,) = [entry.id for entry in loader.entries()]
    assert first != second
    assert len(first) == 8
    assert plugins.did() == ["a up", "a up", "a down"]


async def test_rows_are_created_and_removed_one_by_one(root: Context, plugins: Shelf) -> None:
    a, b = plugins.recorder("a"), plugins.recorder("b")
    loader = await loader_on(root)
    await loader.mount([{"id": "g", "name": "cordis:group", "group": True, "config": []}])
    made = await loader.create({"name": a}, parent="g")
    await loader.create({"id": "b", "name": b}, position=0)
    assert [entry.id for entry in loader.entries()] == ["b", "g", made]
    await loader.remove(made)
    assert [entry.id for entry in loader.entries()] == ["b", "g"]
    with pytest.raises(EntryMissing, match=f"cannot resolve entry {made}"):
        loader.resolve(made)
    assert plugins.did() == ["a up", "b up", "a down"]


async def test_a_groups_config_is_taken_without_a_restart(root: Context, plugins: Shelf) -> None:
    a, b = ({"id": name, "name": plugins.recorder(name)} for name in "ab")
    loader = await loader_on(root)
    group = {"id": "g", "name": "cordis:group", "group": True, "config": [a]}
    await loader.mount([group])
    fiber = loader.resolve("g").fiber
    await loader.mount([{**group, "config": [a, b]}])
    assert loader.resolve("g").fiber is fiber
    assert plugins.did() == ["a up", "b up"]


async def test_a_failing_row_in_a_group_fails_the_group(root: Context, plugins: Shelf) -> None:
    bad = plugins.failing("bad", RuntimeError("no luck"))
    loader = await loader_on(root)
    group = {"id": "g", "name": "cordis:group", "group": True}
    with pytest.raises(EntryError, match=r"entry g .*entry b .*no luck"):
        await loader.mount([{**group, "config": [{"id": "b", "name": bad}]}])
    assert states(loader) == {}


async def test_isolate_keeps_a_service_inside(root: Context, plugins: Shelf) -> None:
    provider = plugins.provider("provider", "store", 5)
    reader = plugins.recorder("reader")
    inside = {"isolate": {"store": "mine"}, "name": provider, "id": "p"}
    loader = await loader_on(root)
    await loader.mount(
        [
            inside,
            {"id": "same", "name": reader, "inject": ["store"], "isolate": {"store": "mine"}},
            {"id": "private", "name": reader, "inject": ["store"], "isolate": {"store": True}},
            {"id": "outside", "name": reader, "inject": ["store"]},
        ]
    )
    await loader.wait()
    assert states(loader) == {
        "p": "active",
        "same": "active",
        "private": "pending",
        "outside": "pending",
    }
    assert root.get("store") is None


async def test_intercept_rows_add_config_layers(root: Context, plugins: Shelf) -> None:
    class Store(Service):
        name = "some_store"

    seen: list[Any] = []

    def apply(ctx: Context, config: Any) -> None:
        seen.append(ctx.require(Store).resolve_config({"a": 1}))

    loader = await loader_on(root)
    user = plugins.module("user", apply=apply)
    row = {"id": "u", "name": user, "inject": ["someStore"], "intercept": {"someStore": {"c": 4}}}
    group = {"id": "g", "name": "cordis:group", "group": True, "config": [row]}
    await loader.mount(
        [
            {"id": "s", "name": plugins.module("store", plugin=Store)},
            {**group, "intercept": {"someStore": {"b": 2, "c": 3}}},
        ]
    )
    await loader.wait()
    assert seen == [{"a": 1, "b": 2, "c": 4}]


async def test_fibers_are_located_by_their_row(root: Context, plugins: Shelf) -> None:
    inner: list[Any] = []

    def apply(ctx: Context, config: Any) -> None:
        inner.append(ctx.plugin(lambda _: None))

    loader = await loader_on(root)
    await loader.mount([{"id": "a", "name": plugins.module("m", apply=apply)}])
    assert loader.locate(inner[0]) == "a"
    assert loader.locate(root.fiber) is None


async def test_entries_are_announced(root: Context, plugins: Shelf) -> None:
    made: list[str] = []
    loader = await loader_on(root)
    root.on(LOADER_ENTRY_INIT, lambda event: made.append(event.entry.id))
    await loader.mount([{"id": "a", "name": plugins.recorder("a")}])
    assert made == ["a"]
    assert EntryMade(loader.resolve("a")).entry.fiber is not None


async def test_a_third_partys_row_may_be_left_out(root: Context, plugins: Shelf) -> None:
    loader = await loader_on(root)
    await loader.mount(
        [
            {"id": "a", "name": plugins.recorder("a")},
            {"id": "missing", "name": "no.such.thing"},
            {"id": "bad", "name": plugins.failing("bad", RuntimeError("no luck"))},
        ],
        may_leave_out=lambda entry: entry.id in {"missing", "bad"},
    )
    assert states(loader)["a"] == "active"
    assert "no luck" in str(loader.resolve("bad").left_out)
    assert "no.such.thing" in str(loader.resolve("missing").left_out)


async def test_disposing_the_root_during_a_mount_is_quiet(root: Context, plugins: Shelf) -> None:
    def apply(ctx: Context, config: Any) -> None:
        ctx.root.dispose()
        raise RuntimeError("on the way out")

    loader = await loader_on(root)
    await loader.mount([{"id": "a", "name": plugins.module("m", apply=apply)}])
    await root.dispose()
    assert root.census().fibers == 1


async def test_unloading_takes_every_row_with_it(root: Context, plugins: Shelf) -> None:
    loader = await loader_on(root)
    await loader.mount(
        [{"id": name, "name": plugins.recorder(name)} for name in "ab"],
    )
    fibers = [entry.fiber for entry in loader.entries()]
    await root.dispose()
    assert all(fiber is not None and fiber.state is FiberState.DISPOSED for fiber in fibers)
    assert sorted(plugins.did()) == ["a down", "a up", "b down", "b up"]


def test_names_resolve_to_plugins(plugins: Shelf, tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("def apply(ctx): ...\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "__init__.py").write_text("def apply(ctx): ...\n")

    def find(name: str) -> Any:
        return resolve_plugin(name, tmp_path, {"group": "the group"})

    class Thing:
        pass

    plugins.module("some_module", apply=print, Thing=Thing)
    plugins.module("some_class", plugin=Thing)
    assert find("cordis:group") == "the group"
    assert find("@deepseek-ai/cordis-plugin-group") == "the group"
    assert find("some_module").apply is print
    assert find("some_module:Thing") is Thing
    assert find("some_class") is Thing
    assert find("dsh.kernel.timer:Timer") is find("@deepseek-ai/cordis-plugin-timer")
    assert find("./beside.py") is find(str(tmp_path / "beside.py"))
    assert find("./beside") is find((tmp_path / "beside.py").as_uri())
    assert find("./folder").apply


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("@deepseek-ai/dsh-tols", 'did you mean "@deepseek-ai/dsh-tools"'),
        ("dsh.state.session.stroe", 'did you mean "dsh.state.session.store"'),
        ("cordis:gruop", 'did you mean "cordis:group"'),
        ("./nothing.py", "no such file"),
        ("no_such_module", "no module, file or installed plugin"),
        ("both_module", "both apply and plugin"),
        ("empty_module", "neither apply nor plugin"),
        ("empty_module:x", "its module has no 'x'"),
    ],
)
def test_an_unknown_name_is_refused_literally(
    plugins: Shelf, tmp_path: Path, name: str, problem: str
) -> None:
    plugins.module("both_module", apply=print, plugin=print)
    plugins.module("empty_module")
    with pytest.raises(UnknownPlugin) as caught:
        resolve_plugin(name, tmp_path, {"group": 1})
    assert f'cannot resolve plugin "{name}": ' in str(caught.value)
    assert problem in str(caught.value)


def test_a_broken_module_raises_its_own_error(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import dsh.no_such_module_here\n")
    with pytest.raises(BrokenPlugin, match="no_such_module_here") as caught:
        resolve_plugin("./broken.py", tmp_path, {})
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)
    assert folder_url(Path("/a b")) == "file:///a%20b/"
