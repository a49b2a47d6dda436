"""Write-back: what plugins do to themselves, and edits, go into the file; nothing else does."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from loader_support import Shelf, states
from tree_support import group, include, loader_in, names_in, wait_until

from dsh.kernel import Context, Fiber
from dsh.loader.errors import ConfigReadOnly, EntryError, PatchError
from dsh.loader.events import LOADER_CONFIG_UPDATE
from dsh.loader.hmr.config_files import ConfigFiles
from dsh.loader.loader import Loader
from dsh.loader.writer import ConfigChanged

ROWS = """\
# what runs here
- id: a
  name: m
  inject: []   # none
  config: {n: 1, at: !!js "1 + 1"}
- id: b        # the other one
  config: 7
  name: m
"""


@pytest.fixture
def contexts(plugins: Shelf) -> dict[str, Context]:
    """The plugin `m` leaves its context here, by its row."""
    found: dict[str, Context] = {}

    def apply(ctx: Context, config: Any) -> None:
        if config == "bad":
            raise RuntimeError("no luck")
        found[ctx.fiber.entry.id] = ctx

    plugins.module("m", apply=apply)
    return found


async def included(root: Context, folder: Path, text: str = ROWS, **config: Any) -> Loader:
    (folder / "a.yml").write_text(text)
    loader = await loader_in(root, folder)
    await loader.mount([include("inc", "a.yml", **config)])
    return loader


def rows_of(folder: Path) -> dict[str, Any]:
    from dsh.loader.config_file import parse_rows

    path = folder / "a.yml"
    return {row["id"]: row for row in parse_rows(path.read_text(), path)}


def fiber_of(loader: Loader, id: str) -> Fiber:
    fiber = loader.resolve(id).fiber
    assert fiber is not None
    return fiber


async def saved(folder: Path, before: str = ROWS) -> str:
    path = folder / "a.yml"
    await wait_until(lambda: path.read_text() != before, "the file is written")
    return path.read_text()


async def unchanged(root: Context, folder: Path, before: str = ROWS) -> None:
    """Nothing is to be written: not by now, and not at the end."""
    await root.dispose()
    assert (folder / "a.yml").read_text() == before


async def test_a_plugins_own_update_and_end_are_saved(
    root: Context, contexts: dict[str, Context], tmp_path: Path
) -> None:
    told: list[object] = []
    root.on(LOADER_CONFIG_UPDATE, lambda event: told.append(event.tree.path))
    loader = await included(root, tmp_path)
    await contexts["b"].fiber.update(8)
    await saved(tmp_path)
    assert loader.resolve("inc:b").options["config"] == 8
    contexts["a"].fiber.dispose()
    await wait_until(lambda: "disabled" in (tmp_path / "a.yml").read_text())
    assert states(loader) == {"inc": "active", "a": None, "b": "active"}
    assert told == [tmp_path / "a.yml"] * 2
    assert (
        (tmp_path / "a.yml").read_text()
        == """\
# what runs here
- id: a
  name: m
  inject: []   # none
  disabled: true
  config: {n: 1, at: !!js "1 + 1"}
- id: b        # the other one
  config: 8
  name: m
"""
    )


async def test_what_the_loader_itself_does_is_not_saved(
    root: Context, contexts: dict[str, Context], plugins: Shelf, tmp_path: Path
) -> None:
    loader = await included(root, tmp_path)
    a = loader.resolve("inc:a")
    await loader.replace({a: lambda ctx: None})
    await fiber_of(loader, "inc").restart()
    await loader.update("inc", {"disabled": True})
    await loader.update("inc", {"disabled": None})
    await unchanged(root, tmp_path)


async def test_what_happens_to_a_plugin_is_not_saved(
    root: Context, contexts: dict[str, Context], plugins: Shelf, tmp_path: Path
) -> None:
    loader = await included(root, tmp_path)
    child = contexts["a"].plugin(lambda ctx: None)
    await child
    await child.update({"x": 1})
    await child.dispose()
    await contexts["a"].fiber.update({"n": 3}, no_save=True)
    with pytest.raises(RuntimeError, match="no luck"):
        await contexts["a"].fiber.update("bad")
    assert states(loader)["a"] == "failed"
    assert loader.resolve("inc:a").options["config"]["n"] == 1
    root.registry.delete(loader.resolve("inc:b").plugin)
    await loader.quiesce()
    await unchanged(root, tmp_path)


async def test_a_config_given_to_a_plugin_that_does_not_run_is_saved_when_it_runs(
    root: Context, contexts: dict[str, Context], tmp_path: Path
) -> None:
    loader = await included(root, tmp_path)
    fiber = fiber_of(loader, "inc:b")
    with pytest.raises(RuntimeError):
        await fiber.update("bad")
    await fiber.update(9)
    await saved(tmp_path)
    assert rows_of(tmp_path)["b"]["config"] == 9


async def test_edits_of_rows_are_saved_in_the_files_own_layout(
    root: Context, contexts: dict[str, Context], tmp_path: Path
) -> None:
    loader = await included(root, tmp_path)
    with pytest.raises(PatchError, match="unknown field 'note'"):
        await loader.update("inc:a", {"note": 1})
    await loader.create(
        {"id": "c", "name": "m", "disabled": False, "config": [1]}, parent="inc", position=0
    )
    await loader.update("inc:a", {"inject": None, "isolate": {"x": True}})
    await loader.update("inc:b", {}, position=0)
    await saved(tmp_path)
    await root.dispose()
    assert list(rows_of_text(tmp_path)) == ["b", "c", "a"]
    text = (tmp_path / "a.yml").read_text()
    assert 'config: {n: 1, at: !!js "1 + 1"}' in text
    assert "# the other one" in text
    assert "- id: c\n  name: m\n  disabled: false\n  config:\n" in text


def rows_of_text(folder: Path) -> list[str]:
    lines = (folder / "a.yml").read_text().splitlines()
    return [line.split()[2] for line in lines if line.startswith("- id:")]


async def test_patches_of_the_include_stay_out_of_the_file(
    root: Context, contexts: dict[str, Context], tmp_path: Path
) -> None:
    text = ROWS + "- {id: g, name: cordis:group, group: true, config: [{id: x, name: m}]}\n"
    patches = [
        {"id": "a", "config": {"n": 99}},
        {"id": "b", "disabled": True},
        {"insert": [{"id": "new", "name": "m"}, {"name": "m"}]},
        {"id": "g", "insert": [{"id": "inner", "name": "m"}]},
    ]
    loader = await included(root, tmp_path, text, patches=patches)
    await contexts["a"].fiber.update({"n": 100})
    await contexts["new"].fiber.update(1)
    await contexts["inner"].fiber.update(2)
    await contexts["x"].fiber.update(3)
    await loader.update("inc:b", {"config": 8})
    await saved(tmp_path, text)
    await root.dispose()
    rows = rows_of(tmp_path)
    assert list(rows) == ["a", "b", "g"]
    assert rows["a"]["config"]["n"] == 1
    assert rows["b"] == {"id": "b", "name": "m", "config": 8}
    assert rows["g"]["config"] == [{"id": "x", "name": "m", "config": 3}]


async def test_the_own_write_is_no_change_of_the_file(
    root: Context, contexts: dict[str, Context], tmp_path: Path
) -> None:
    await root.plugin(ConfigFiles)
    loader = await included(root, tmp_path, "- {name: m}\n- {id: b, name: m}\n")
    await root.get("hmr").scan()
    await root.get("hmr").quiesce()
    unnamed = next(entry.id for entry in loader.entries() if entry.id not in {"inc", "b"})
    fiber = fiber_of(loader, f"inc:{unnamed}")
    await contexts["b"].fiber.update(5)
    await saved(tmp_path, "- {name: m}\n- {id: b, name: m}\n")
    await root.get("hmr").scan()
    await root.get("hmr").quiesce()
    assert fiber_of(loader, f"inc:{unnamed}") is fiber
    assert (tmp_path / "a.yml").read_text() == "- {name: m}\n- id: b\n  name: m\n  config: 5\n"


async def test_several_changes_are_one_write_and_the_last_is_flushed_at_the_end(
    root: Context, contexts: dict[str, Context], tmp_path: Path
) -> None:
    writes: list[object] = []
    root.on(LOADER_CONFIG_UPDATE, writes.append)
    await included(root, tmp_path)
    for value in range(20, 30):
        await contexts["b"].fiber.update(value)
    await root.dispose()
    assert rows_of(tmp_path)["b"]["config"] == 29
    assert len(writes) <= 3
    assert names_in(tmp_path) == ["a.yml"]


async def test_a_file_that_somebody_else_changed_is_not_overwritten(
    root: Context, contexts: dict[str, Context], tmp_path: Path
) -> None:
    await included(root, tmp_path)
    reports: list[BaseException] = []
    root.set_reporter(lambda error, *_: reports.append(error))
    await contexts["b"].fiber.update(8)
    (tmp_path / "a.yml").write_text("# mine\n" + ROWS)
    await wait_until(lambda: reports)
    assert isinstance(reports[0], ConfigChanged)
    assert (tmp_path / "a.yml").read_text() == "# mine\n" + ROWS


@pytest.mark.parametrize("what", ["file", "folder"])
async def test_what_is_read_only_stays_and_the_tree_goes_on_in_memory(
    root: Context, contexts: dict[str, Context], tmp_path: Path, what: str
) -> None:
    loader = await included(root, tmp_path)
    place = tmp_path / "a.yml" if what == "file" else tmp_path
    mode = place.stat().st_mode
    place.chmod(mode & ~0o222)
    try:
        reports: list[BaseException] = []
        root.set_reporter(lambda error, *_: reports.append(error))
        await contexts["b"].fiber.update(8)
        await wait_until(lambda: reports)
        await contexts["b"].fiber.update(9)
        assert loader.resolve("inc:b").options["config"] == 9
        await unchanged(root, tmp_path)
    finally:
        place.chmod(mode)
    assert [type(error) for error in reports] == [ConfigReadOnly]
    assert "cannot overwrite readonly config" in str(reports[0])


@pytest.mark.parametrize("code", [errno.EACCES, errno.EBUSY, errno.EPERM])
async def test_a_refusal_that_may_pass_is_tried_again(
    root: Context,
    contexts: dict[str, Context],
    tmp_path: Path,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, tries = os.replace, []

    def replace(*args: Any) -> None:
        tries.append(1)
        if len(tries) < 3:
            raise OSError(code, os.strerror(code))
        real(*args)

    monkeypatch.setattr(os, "replace", replace)
    await included(root, tmp_path)
    await contexts["b"].fiber.update(8)
    await saved(tmp_path)
    assert len(tries) == 3


async def test_a_last_write_that_fails_is_told_at_the_end(
    root: Context, contexts: dict[str, Context], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replace(*args: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    reports: list[str] = []
    (tmp_path / "a.yml").write_text(ROWS)
    loader = await loader_in(
        root, tmp_path, lambda error, _, label: reports.append(f"{label}: {error}")
    )
    await loader.mount([include("inc", "a.yml")])
    monkeypatch.setattr(os, "replace", replace)
    await contexts["b"].fiber.update(8)
    await root.dispose()
    path = tmp_path / "a.yml"
    assert f"save {path}: failed to write config file {path}: no space left on device" in reports
    assert path.read_text() == ROWS


async def test_json_files_are_saved_as_json(
    root: Context, contexts: dict[str, Context], tmp_path: Path
) -> None:
    rows = [{"id": "a", "name": "m", "config": {"x": {"__jsExpr": "1"}}}, {"id": "b", "name": "m"}]
    path = tmp_path / "a.json"
    path.write_text(json.dumps(rows))
    loader = await loader_in(root, tmp_path)
    await loader.mount([include("inc", "a.json")])
    await loader.update("inc:b", {"config": {"y": 2}, "disabled": True})
    await root.dispose()
    assert json.loads(path.read_text()) == [
        rows[0],
        {"id": "b", "name": "m", "disabled": True, "config": {"y": 2}},
    ]


async def test_a_link_is_followed_and_stays_a_link(
    root: Context, contexts: dict[str, Context], tmp_path: Path
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "b.yml").write_text(ROWS)
    (tmp_path / "a.yml").symlink_to(tmp_path / "real" / "b.yml")
    loader = await loader_in(root, tmp_path)
    await loader.mount([include("inc", "a.yml")])
    await loader.update("inc:b", {"config": 8})
    await root.dispose()
    assert (tmp_path / "a.yml").is_symlink()
    assert "config: 8" in (tmp_path / "real" / "b.yml").read_text()


async def test_rows_without_a_file_change_in_memory(
    root: Context, contexts: dict[str, Context], tmp_path: Path
) -> None:
    loader = await loader_in(root, tmp_path)
    await loader.mount([group("g", {"id": "a", "name": "m"}), {"id": "b", "name": "m"}])
    await contexts["a"].fiber.update(1)
    contexts["b"].fiber.dispose()
    assert loader.resolve("g").options["config"] == [{"id": "a", "name": "m", "config": 1}]
    assert loader.resolve("b").options["disabled"] is True
    await loader.update("b", {"disabled": None})
    assert states(loader)["b"] == "active"


async def test_a_plugin_that_ends_itself_while_it_is_mounted_is_no_failure(
    root: Context, plugins: Shelf, tmp_path: Path
) -> None:
    plugins.module("shy", apply=lambda ctx: void(ctx.fiber.dispose))
    loader = await loader_in(root, tmp_path)
    await loader.mount([{"id": "a", "name": "shy"}])
    assert states(loader) == {"a": None}
    assert loader.resolve("a").options["disabled"] is True


def void(call: Callable[[], object]) -> None:
    call()


async def test_a_change_that_fails_is_not_saved(
    root: Context, contexts: dict[str, Context], tmp_path: Path
) -> None:
    loader = await included(root, tmp_path)
    with pytest.raises(EntryError):
        await loader.update("inc:a", {"config": "bad"})
    with pytest.raises(EntryError):
        await loader.create({"name": "no.such"}, parent="inc")
    await asyncio.sleep(0)
    await unchanged(root, tmp_path)
