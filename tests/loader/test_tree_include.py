"""Includes: rows in files, patched, followed, and never half taken."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from loader_support import Shelf, states
from tree_support import fibers, group, include, loader_in, names_in

from dsh.kernel import Context
from dsh.loader.errors import ConfigFileError, EntryError, EntryMissing, LoaderError
from dsh.loader.expr import Expr
from dsh.loader.hmr.config_files import ConfigFiles
from dsh.loader.hmr.events import HMR_CONFIG_UPDATE_FAILED


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


async def refresh(root: Context) -> None:
    """Let the service that follows files see what changed."""
    hmr = root.get("hmr")
    await hmr.scan()
    await hmr.quiesce()


async def test_a_files_rows_are_mounted_and_named_through_the_include(
    root: Context, plugins: Shelf, tmp_path: Path
) -> None:
    write(tmp_path / "a.yml", f"- {{id: x, name: {plugins.recorder('x')}, config: {{n: 1}}}}\n")
    loader = await loader_in(root, tmp_path)
    await loader.mount([include("inc", "a.yml"), {"id": "x", "name": "x"}])
    assert [entry.full_id for entry in loader.entries()] == ["inc", "inc:x", "x"]
    assert loader.resolve("inc:x") is not loader.resolve("x")
    await loader.update("inc:x", {"config": {"n": 2}})
    assert plugins.log[-1] == ("x up", {"n": 2})
    with pytest.raises(EntryError, match=r"failed to import loader entry inc:x \(no\.such\)"):
        await loader.update("inc:x", {"name": "no.such"})
    await loader.create({"id": "y", "name": "x"}, parent="inc")
    assert loader.locate(loader.resolve("inc:y").fiber) == "inc:y"  # type: ignore[arg-type]


async def test_json_files_hold_rows_and_expressions(
    root: Context, plugins: Shelf, tmp_path: Path
) -> None:
    rows = [{"id": "x", "name": plugins.recorder("x"), "config": {"__jsExpr": "1 + 1"}}]
    write(tmp_path / "a.json", json.dumps(rows))
    loader = await loader_in(root, tmp_path)
    await loader.mount([include("inc", "a.json")])
    assert plugins.log == [("x up", 2)]
    assert loader.resolve("inc:x").options["config"] == Expr("1 + 1")


async def test_relative_names_and_paths_start_at_the_files_folder(
    root: Context, plugins: Shelf, tmp_path: Path
) -> None:
    (tmp_path / "sub").mkdir()
    write(tmp_path / "sub" / "p.py", "def apply(ctx): ctx.provide('found', ctx.base_url)\n")
    write(tmp_path / "sub" / "b.yml", "- {id: p, name: ./p.py}\n")
    write(tmp_path / "a.yml", "- {id: b, name: cordis:include, config: {path: sub/b.yml}}\n")
    loader = await loader_in(root, tmp_path)
    await loader.mount([include("a", "a.yml")])
    assert list(states(loader).values()) == ["active"] * 3
    assert root.get("found") == (tmp_path / "sub").as_uri() + "/"
    fiber = loader.resolve("a:b:p").fiber
    with pytest.raises(EntryError, match="no such file"):
        await loader.update("a:b:p", {}, parent=None)
    assert loader.resolve("a:b:p").fiber is fiber
    write(tmp_path / "p.py", "def apply(ctx): ctx.provide('found', 'elsewhere')\n")
    await loader.update("a:b:p", {}, parent=None)
    assert root.get("found") == "elsewhere"
    assert [entry.full_id for entry in loader.entries()] == ["a", "a:b", "p"]


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("a.toml", "", 'extension ".toml" not supported'),
        ("a.yml", "", "must be a list of rows, got nothing"),
        ("a.yml", "x: 1", "must be a list of rows, got a mapping"),
        ("a.yml", "- {id: x, name: m}\n- {id: x, name: m}", 'duplicate row id "x" in .*a.yml'),
        ("a.yml", "- {id: x, name: m, id: y}", "a.yml:1:20: duplicate key 'id'"),
        ("a.yml", "- {id: x, name: m, disable: true}", "did you mean 'disabled'"),
        ("a.yml", "- {id: x, name: m, inject: 5}", 'row "x": inject must be a list or a mapping'),
        ("a.yml", "- {id: x\n", "failed to parse config file .*a.yml:2"),
        ("a.json", "[{]", r"failed to parse config file .*a.json:1:3"),
        ("a.json", '[{"id": "x", "id": "y"}]', "duplicate key 'id'"),
        ("a.json", "[NaN]", "NaN is no JSON value"),
        ("missing.yml", None, "config file not found: .*missing.yml"),
    ],
)
async def test_a_file_that_cannot_be_used_is_refused_with_its_place(
    root: Context, plugins: Shelf, tmp_path: Path, name: str, text: str | None, problem: str
) -> None:
    plugins.recorder("m")
    if text is not None:
        write(tmp_path / name, text)
    loader = await loader_in(root, tmp_path)
    with pytest.raises(EntryError, match=f"(?s){problem}") as caught:
        await loader.mount([include("inc", name)])
    assert str(tmp_path / name) in str(caught.value)
    assert states(loader) == {}


async def test_files_that_are_no_text_are_refused(
    root: Context, plugins: Shelf, tmp_path: Path
) -> None:
    loader = await loader_in(root, tmp_path)
    (tmp_path / "bad.yml").write_bytes(b"- \xff")
    (tmp_path / "dir.yml").mkdir()
    (tmp_path / "link.yml").symlink_to(tmp_path / "nothing.yml")
    for name, problem in {
        "bad.yml": ".*byte 2 is not UTF-8",
        "dir.yml": "is a directory",
        "link.yml": "the link leads to no file",
    }.items():
        with pytest.raises(EntryError, match=f"failed to read config file .*{name}.* ?{problem}"):
            await loader.mount([include("inc", name)])
    row = f"- {{id: x, name: {plugins.recorder('x')}}}\n"
    (tmp_path / "bom.yml").write_bytes(b"\xef\xbb\xbf" + row.encode())
    await loader.mount([include("inc", "bom.yml")])
    assert states(loader) == {"inc": "active", "x": "active"}


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (None, "an include needs a mapping with a path"),
        ({"path": ""}, "the path of a file is needed"),
        ({"path": Expr("'a.yml'")}, "the path is taken literally"),
        ({"path": "a.yml", "patch": []}, "unknown field .did you mean 'path'"),
        ({"path": "a.yml", "patches": {}}, "a list of patches is needed"),
        ({"path": "a.yml", "enableLogs": 1}, "true or false is needed"),
        ({"path": "a.yml", "initial": [{"id": "x"}]}, "needs a name"),
    ],
)
async def test_an_includes_config_is_checked(
    root: Context, tmp_path: Path, config: Any, problem: str
) -> None:
    write(tmp_path / "a.yml", "[]")
    loader = await loader_in(root, tmp_path)
    with pytest.raises(EntryError, match=problem):
        await loader.mount([{"id": "inc", "name": "cordis:include", "config": config}])


async def test_files_that_include_each_other_are_refused_with_the_chain(
    root: Context, tmp_path: Path
) -> None:
    write(tmp_path / "a.yml", "- {id: b, name: cordis:include, config: {path: b.yml}}\n")
    write(tmp_path / "b.yml", "- {id: a, name: cordis:include, config: {path: link.yml}}\n")
    (tmp_path / "link.yml").symlink_to(tmp_path / "a.yml")
    loader = await loader_in(root, tmp_path)
    with pytest.raises(
        EntryError, match=r"cannot include itself: .*a\.yml -> .*b\.yml -> .*a\.yml"
    ):
        await loader.mount([include("inc", "a.yml")])
    assert states(loader) == {}


async def test_a_missing_file_is_written_with_the_initial_rows(
    root: Context, plugins: Shelf, tmp_path: Path
) -> None:
    initial = [{"name": plugins.recorder("x"), "id": "x", "config": {"at": Expr("1 + 1")}}]
    loader = await loader_in(root, tmp_path)
    await loader.mount([include("inc", "new.yml", initial=initial)])
    assert (tmp_path / "new.yml").read_text() == (
        "- id: x\n  name: x\n  config:\n    at: !!js 1 + 1\n"
    )
    assert plugins.log == [("x up", {"at": 2})]
    assert names_in(tmp_path) == ["new.yml"]
    await loader.mount([include("inc", "new.yml", initial=[{"id": "y", "name": "x"}])])
    assert states(loader) == {"inc": "active", "x": "active"}
    with pytest.raises(EntryError, match=r"failed to write config file .*no such file"):
        await loader.mount([include("inc", "no/new.yml", initial=initial)])


async def test_patches_are_applied_to_every_reading(
    root: Context, plugins: Shelf, tmp_path: Path
) -> None:
    for name in "abc":
        plugins.recorder(name)
    path = write(tmp_path / "a.yml", "- {id: a, name: a, config: {n: 1}}\n- {id: b, name: b}\n")
    patches = [
        {"id": "a", "name": "a", "config": {"n": 2}},
        {"id": "b", "disabled": True},
        {"insert": [{"id": "c", "name": "c"}]},
        {"id": "c", "config": 3},
    ]
    await root.plugin(ConfigFiles)
    loader = await loader_in(root, tmp_path)
    await loader.mount([include("inc", "a.yml", patches=patches)])
    assert states(loader) == {"inc": "active", "a": "active", "b": None, "c": "active"}
    assert sorted(plugins.log) == [("a up", {"n": 2}), ("c up", 3)]
    plugins.did()
    write(path, "- {id: b, name: b}\n- {id: a, name: a, config: {n: 5}}\n")
    await refresh(root)
    assert list(states(loader)) == ["inc", "b", "a", "c"]
    assert plugins.did() == []
    fiber = loader.resolve("inc").fiber
    await loader.update("inc", {"config": {"path": "a.yml", "patches": patches[:1]}})
    assert plugins.did() == ["b up", "c down"]
    await loader.update("inc", {"config": {"path": "a.yml"}})
    assert plugins.log == [("a down", None), ("a up", {"n": 5})]
    assert loader.resolve("inc").fiber is fiber
    bad = [{"id": "a", "name": "a", "config": 1}, {"insert": [{"id": "d", "name": "no.such"}]}]
    with pytest.raises(EntryError, match=r"no\.such"):
        await loader.update("inc", {"config": {"path": "a.yml", "patches": bad}})
    assert loader.resolve("inc").options["config"] == {"path": "a.yml"}
    assert loader.resolve("inc").fiber is fiber
    assert fiber is not None
    assert fiber.raw_config == {"path": "a.yml"}
    write(path, "- {id: a, name: a}\n")
    await refresh(root)
    assert states(loader) == {"inc": "active", "a": "active"}


async def test_patches_that_do_not_fit_are_skipped_and_told(
    root: Context, plugins: Shelf, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path / "a.yml", f"- {{id: a, name: {plugins.recorder('a')}}}\n")
    patches = [
        {"id": "a", "name": "another", "disabled": True},
        {"id": "nobody", "disabled": True},
        {"id": "a", "insert": []},
        {"disabled": True},
        {"id": "a", "config": 5},
    ]
    await root.plugin(ConfigFiles)
    loader = await loader_in(root, tmp_path)
    await loader.mount([include("inc", "a.yml", patches=[])])
    await loader.update("inc", {"config": {"path": "a.yml", "patches": patches}})
    assert plugins.log[-1] == ("a up", 5)
    told = " ".join(record.getMessage() for record in caplog.records)
    for problem in ("name mismatch", "not found", "is not a group", "id is required"):
        assert problem in told
    assert str(path) in told
    write(path, f"- {{id: b, name: {plugins.recorder('b')}}}\n- {{id: a, name: a}}\n")
    await refresh(root)
    assert loader.resolve("inc:a").options["config"] == 5
    assert list(states(loader)) == ["inc", "b", "a"]


async def test_another_path_restarts_the_include(
    root: Context, plugins: Shelf, tmp_path: Path
) -> None:
    write(tmp_path / "a.yml", f"- {{id: a, name: {plugins.recorder('a')}}}\n")
    write(tmp_path / "b.yml", f"- {{id: b, name: {plugins.recorder('b')}}}\n")
    loader = await loader_in(root, tmp_path)
    await loader.mount([include("inc", "a.yml")])
    await loader.update("inc", {"config": {"path": "b.yml"}})
    assert states(loader) == {"inc": "active", "b": "active"}
    with pytest.raises(EntryError, match="config file not found"):
        await loader.update("inc", {"config": {"path": "c.yml"}})
    assert states(loader) == {"inc": "active", "b": "active"}
    assert plugins.did() == ["a up", "a down", "b up", "b down", "b up"]


async def test_edits_of_the_file_are_taken_and_bad_ones_leave_the_last_good_tree(
    root: Context, plugins: Shelf, tmp_path: Path
) -> None:
    a, b = plugins.recorder("a"), plugins.recorder("b")
    path = write(tmp_path / "a.yml", f"- {{id: a, name: {a}, config: {{n: [1]}}}}\n")
    failures: list[str] = []
    await root.plugin(ConfigFiles)
    root.on(HMR_CONFIG_UPDATE_FAILED, lambda event: failures.append(str(event.error)))
    loader = await loader_in(root, tmp_path)
    await loader.mount([include("inc", "a.yml")])
    before = fibers(loader)
    for text in ("", "a: 1", "- {id: a", "- {id: a, name: a}\n- {id: x, name: no.such}"):
        write(path, text)
        await refresh(root)
        assert fibers(loader) == before
    path.unlink()
    await refresh(root)
    assert fibers(loader) == before
    assert loader.resolve("inc:a").options["config"] == {"n": [1]}
    assert len(failures) == 5
    assert "config file not found" in failures[4]
    plugins.did()
    write(path, f"- {{id: a, name: {a}, config: {{n: [1]}}}}\n- {{id: b, name: {b}}}\n")
    await refresh(root)
    assert states(loader) == {"inc": "active", "a": "active", "b": "active"}
    assert plugins.did() == ["b up"]
    write(path, f"- {{id: b, name: {b}}}\n")
    await refresh(root)
    assert plugins.did() == ["a down"]
    os.utime(path)
    await refresh(root)
    assert plugins.did() == []


async def test_a_file_is_followed_from_when_somebody_follows_files(
    root: Context, plugins: Shelf, tmp_path: Path
) -> None:
    path = write(tmp_path / "a.yml", f"- {{id: a, name: {plugins.recorder('a')}}}\n")
    loader = await loader_in(root, tmp_path)
    await loader.mount([include("one", "a.yml"), include("two", "a.yml")])
    hmr = await root.plugin(ConfigFiles)
    await loader.quiesce()
    await refresh(root)
    write(path, f"- {{id: b, name: {plugins.recorder('b')}}}\n")
    await refresh(root)
    assert list(fibers(loader)) == ["one", "one:b", "two", "two:b"]
    await loader.remove("one")
    write(path, f"- {{id: c, name: {plugins.recorder('c')}}}\n")
    await refresh(root)
    assert list(fibers(loader)) == ["two", "two:c"]
    await hmr.dispose()
    assert states(loader) == {"two": "active", "c": "active"}


async def test_files_are_followed_again_by_the_next_that_follows_files(
    root: Context, plugins: Shelf, tmp_path: Path
) -> None:
    reports: list[BaseException] = []
    path = write(tmp_path / "a.yml", f"- {{id: a, name: {plugins.recorder('a')}}}\n")
    hmr = await root.plugin(ConfigFiles)
    loader = await loader_in(root, tmp_path, lambda error, *_: reports.append(error))
    await loader.mount([include("one", "a.yml"), include("two", "a.yml")])
    await hmr.dispose()
    await root.plugin(ConfigFiles)
    await loader.quiesce()
    await root.fiber.wait()
    await refresh(root)
    write(path, f"- {{id: b, name: {plugins.recorder('b')}}}\n")
    await refresh(root)
    assert list(fibers(loader)) == ["one", "one:b", "two", "two:b"]
    assert reports == []


async def test_a_failing_first_reading_with_hot_reload_is_an_error_and_no_hang(
    root: Context, plugins: Shelf, tmp_path: Path
) -> None:
    await root.plugin(ConfigFiles)
    bad = plugins.failing("bad", RuntimeError("no luck"))
    path = write(tmp_path / "a.yml", f"- {{id: a, name: {bad}}}\n")
    loader = await loader_in(root, tmp_path)
    async with asyncio.timeout(5):
        with pytest.raises(EntryError, match="no luck"):
            await loader.mount([include("inc", "a.yml")])
        write(path, f"- {{id: a, name: {plugins.recorder('a')}}}\n")
        await loader.mount([include("inc", "a.yml")])
    assert states(loader) == {"inc": "active", "a": "active"}


async def test_a_refresh_that_is_due_does_not_keep_its_include(
    root: Context, plugins: Shelf, tmp_path: Path
) -> None:
    gate = asyncio.Event()

    async def slow(ctx: Context, config: Any) -> None:
        await gate.wait()

    path = write(tmp_path / "a.yml", f"- {{id: a, name: {plugins.recorder('a')}}}\n")
    await root.plugin(ConfigFiles)
    loader = await loader_in(root, tmp_path)
    await loader.mount([include("inc", "a.yml")])
    await refresh(root)
    creating = asyncio.ensure_future(
        loader.create({"id": "slow", "name": plugins.module("slow", apply=slow)})
    )
    removing = asyncio.ensure_future(loader.remove("inc"))
    await asyncio.sleep(0)
    write(path, "- {id: b, name: a}\n")
    await root.get("hmr").scan()
    gate.set()
    async with asyncio.timeout(5):
        await asyncio.gather(creating, removing)
    assert states(loader) == {"slow": "active"}


async def test_refreshes_wait_for_their_turn(root: Context, plugins: Shelf, tmp_path: Path) -> None:
    gate = asyncio.Event()

    async def slow(ctx: Context, config: Any) -> None:
        await gate.wait()

    path = write(tmp_path / "a.yml", f"- {{id: a, name: {plugins.recorder('a')}}}\n")
    await root.plugin(ConfigFiles)
    loader = await loader_in(root, tmp_path)
    await loader.mount([include("inc", "a.yml")])
    await refresh(root)
    creating = asyncio.ensure_future(
        loader.create({"id": "slow", "name": plugins.module("slow", apply=slow)})
    )
    await asyncio.sleep(0)
    write(path, "- {id: b, name: a}\n")
    await root.get("hmr").scan()
    assert "a" in states(loader)
    gate.set()
    await creating
    await root.get("hmr").quiesce()
    assert list(states(loader)) == ["inc", "b", "slow"]


async def test_an_include_that_is_no_row_has_no_entries_in_the_tree(
    root: Context, plugins: Shelf, tmp_path: Path
) -> None:
    write(tmp_path / "a.yml", f"- {{id: a, name: {plugins.recorder('a')}}}\n")
    loader = await loader_in(root, tmp_path)
    fiber = await root.plugin(loader.builtins["include"], {"path": str(tmp_path / "a.yml")})
    assert list(loader.entries()) == []
    assert plugins.did() == ["a up"]
    await fiber.dispose()
    assert plugins.did() == ["a down"]


async def test_a_switched_off_include_unloads_its_rows(
    root: Context, plugins: Shelf, tmp_path: Path
) -> None:
    write(tmp_path / "a.yml", f"- {{id: a, name: {plugins.recorder('a')}}}\n")
    loader = await loader_in(root, tmp_path)
    await loader.mount([group("g", include("inc", "a.yml"))])
    await loader.update("g", {"disabled": True})
    assert states(loader) == {"g": "active", "inc": None}
    await loader.update("g", {"disabled": None})
    assert states(loader) == {"g": "active", "inc": "active", "a": "active"}
    assert plugins.did() == ["a up", "a down", "a up"]


async def test_coming_and_going_is_logged_where_the_tree_wants_it(
    root: Context, plugins: Shelf, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "dsh.loader")
    a = plugins.recorder("a")
    inner = f"{{id: g, name: cordis:group, group: true, config: [{{id: a, name: {a}}}]}}"
    write(tmp_path / "b.yml", f"- {inner}\n")
    write(tmp_path / "a.yml", "- {id: b, name: cordis:include, config: {path: b.yml}}\n")
    loader = await loader_in(root, tmp_path)
    await loader.mount([include("inc", "a.yml", enableLogs=True), {"id": "quiet", "name": a}])
    await loader.update("inc:b:a", {"config": 1})
    await loader.update("inc:b:a", {"disabled": True})
    assert [record.getMessage() for record in caplog.records] == [
        "apply plugin cordis:include",
        f"apply plugin {a}",
        f"reload plugin {a}",
        f"unload plugin {a}",
    ]


async def test_errors_of_files_are_of_the_loaders_kind() -> None:
    assert issubclass(ConfigFileError, LoaderError)


async def test_a_row_that_moves_into_a_file_and_out_of_it_is_found_by_its_new_name(
    root: Context, plugins: Shelf, tmp_path: Path
) -> None:
    (tmp_path / "rows.yml").write_text("[]\n")
    loader = await loader_in(root, tmp_path)
    await loader.mount(
        [{"id": "a", "name": plugins.recorder("a")}, include("inc", "rows.yml"), group("g")]
    )
    fiber = loader.resolve("a").fiber
    await loader.update("a", {}, parent="inc")
    assert loader.resolve("inc:a").fiber is fiber
    with pytest.raises(EntryMissing):
        loader.resolve("a")
    await loader.update("inc:a", {}, parent="g")
    assert loader.resolve("a").fiber is fiber
    with pytest.raises(EntryMissing):
        loader.resolve("inc:a")
    assert plugins.did() == ["a up"]
