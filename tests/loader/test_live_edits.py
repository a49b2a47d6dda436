from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from live_support import House
from loader_support import Shelf, states

from dsh.kernel import Context
from dsh.loader.compose import Layer
from dsh.loader.hmr.config_files import ConfigFiles
from dsh.loader.hmr.service import Hmr
from dsh.loader.host import CommandLine
from dsh.loader.loader import Loader


@pytest.fixture
def house(tmp_path: Path, root: Context) -> House:
    return House(tmp_path / "home", root)


def configs(loader: Loader) -> dict[str, Any]:
    return {entry.id: entry.options.get("config") for entry in loader.entries()}


def two(plugins: Shelf) -> list[dict[str, Any]]:
    return [
        {"id": "a", "name": plugins.recorder("a"), "config": 1},
        {"id": "b", "name": plugins.recorder("b"), "config": 1},
    ]


async def test_an_edit_remounts_only_what_it_changed(plugins: Shelf, house: House) -> None:
    loader = await house.start(two(plugins))
    plugins.did()
    said = await house.edit(house.profile_file, "- {id: a, config: 2}\n")
    assert plugins.did() == ["a down", "a up"]
    assert configs(loader) == {"a": 2, "b": 1}
    assert said == [f"applied {house.profile_file}: changed a"]


async def test_an_empty_list_restores_what_the_bundle_says(plugins: Shelf, house: House) -> None:
    loader = await house.start(two(plugins))
    await house.edit(house.profile_file, "- {id: a, config: 2}\n- {id: b, disabled: true}\n")
    assert states(loader) == {"a": "active", "b": None}
    await house.edit(house.profile_file, "[]\n")
    assert configs(loader) == {"a": 1, "b": 1}
    assert states(loader) == {"a": "active", "b": "active"}


async def test_the_home_beats_the_profile_and_its_removal_reverts_it(
    plugins: Shelf, house: House
) -> None:
    loader = await house.start(two(plugins))
    await house.edit(house.home_file, "- {id: a, config: home}\n")
    await house.edit(house.profile_file, "- {id: a, config: profile}\n")
    assert configs(loader)["a"] == "home"
    await house.edit(house.home_file, None)
    assert configs(loader)["a"] == "profile"
    await house.edit(house.profile_file, None)
    assert configs(loader)["a"] == 1


async def test_what_comes_last_stays_last(plugins: Shelf, house: House) -> None:
    upper = [Layer("--patch", [{"id": "a", "config": "given"}])]
    loader = await house.start(two(plugins), upper=upper)
    await house.edit(house.home_file, "- {id: a, config: home}\n- {id: b, config: home}\n")
    assert configs(loader) == {"a": "given", "b": "home"}


async def test_a_folder_that_comes_later_is_followed(plugins: Shelf, house: House) -> None:
    loader = await house.start(two(plugins))
    house.profile_file.parent.rename(house.home / "elsewhere")
    await house.settle()
    await house.edit(house.profile_file, "- {id: a, config: 2}\n")
    assert configs(loader)["a"] == 2


async def test_rows_come_and_go(plugins: Shelf, house: House) -> None:
    loader = await house.start(two(plugins))
    row = {"id": "c", "name": plugins.recorder("c")}
    said = await house.edit(house.home_file, [{"insert": [row]}])
    assert said == [f"applied {house.home_file}: added c"]
    assert list(states(loader)) == ["a", "b", "c"]
    said = await house.edit(house.home_file, "[]")
    assert said == [f"applied {house.home_file}: removed c"]
    assert list(states(loader)) == ["a", "b"]


async def test_the_apps_words_stay_the_same_object(plugins: Shelf, house: House) -> None:
    seen: list[object] = []

    def apply(ctx: Context, config: Any) -> None:
        seen.extend((ctx.require(CommandLine), ctx.cmdline_args.get()))

    name = plugins.module("app", apply=apply, inject=(CommandLine, "cmdline_args"))
    await house.start([{"id": "app", "name": name, "config": 1}])
    await house.edit(house.profile_file, "- {id: app, config: 2}\n")
    assert len(seen) == 4
    assert seen[0] is seen[2] is house.launch.cmdline
    assert seen[1] is seen[3]


BAD: list[tuple[str | bytes, str]] = [
    ("- {id: a, config: 2\n", ":2:1: "),
    ("", "must be a top-level YAML array"),
    ("# nothing\n", "must be a top-level YAML array"),
    ("a: 1\n", "must be a top-level YAML array"),
    ("- text\n", "entry 1 in"),
    ("- {id: a, disabled: maybe}\n", 'patch "a": disabled must be true, false or an expression'),
    ("- {id: a, merge: 3}\n", 'patch "a": merge must be a mapping'),
    ("- insert: [{id: b, name: b}]\n", 'duplicate row id "b"'),
    ("- insert: [{id: c}]\n", "needs a name"),
    ("- {id: a, config: 5}\n- insert:\n  - {id: c, name: no.such}\n", ':3: row "c" (no.such): '),
    ("- {id: a, config: !!js nothing.x}\n", ":1: row \"a\" (a): config: !!js 'nothing.x'"),
    ("- {id: a, config: &x [*x]}\n", "patches"),
    (b"- {id: a, config: \xff}\n", "is not UTF-8"),
]


@pytest.mark.parametrize(("text", "problem"), BAD)
async def test_an_edit_that_cannot_be_used_is_one_line_and_changes_nothing(
    plugins: Shelf, house: House, text: str | bytes, problem: str
) -> None:
    loader = await house.start(two(plugins))
    fibers = [entry.fiber for entry in loader.entries()]
    plugins.did()
    house.profile_file.write_bytes(text if isinstance(text, bytes) else text.encode())
    said = await house.settle()
    assert len(said) == 1, said
    assert str(house.profile_file) in said[0]
    assert problem in said[0]
    assert said[0].endswith("; the last good configuration goes on")
    assert house.failed == [str(house.profile_file)]
    assert configs(loader) == {"a": 1, "b": 1}
    assert states(loader) == {"a": "active", "b": "active"}
    assert [entry.fiber for entry in loader.entries()] == fibers

    said = await house.edit(house.profile_file, "- {id: a, config: 2}\n")
    assert said == [f"applied {house.profile_file}: changed a"]
    assert configs(loader) == {"a": 2, "b": 1}


async def test_a_folder_at_a_files_path_is_refused(plugins: Shelf, house: House) -> None:
    loader = await house.start(two(plugins))
    house.home_file.mkdir()
    (said,) = await house.settle()
    assert f"failed to read patches {house.home_file}: is a directory" in said
    assert states(loader) == {"a": "active", "b": "active"}
    house.home_file.rmdir()
    assert await house.settle() == []


async def test_a_byte_order_mark_is_no_failure(plugins: Shelf, house: House) -> None:
    loader = await house.start(two(plugins))
    house.profile_file.write_bytes(b"\xef\xbb\xbf- {id: a, config: 2}\n")
    await house.settle()
    assert configs(loader)["a"] == 2


async def test_a_body_that_fails_is_told_once_and_taken_back(plugins: Shelf, house: House) -> None:
    ran: list[Any] = []

    def apply(ctx: Context, config: Any) -> None:
        ran.append(config)
        if config == "bad":
            raise RuntimeError("no luck")

    rows = [{"id": "a", "name": plugins.module("m", apply=apply), "config": "good"}]
    loader = await house.start(rows)
    said = await house.edit(house.profile_file, "# why\n- {id: a, config: bad}\n")
    problem = 'row "a" (m): RuntimeError: no luck'
    assert said == [f"{house.profile_file}:2: {problem}; the last good configuration goes on"]
    assert ran == ["good", "bad", "good"]
    assert states(loader) == {"a": "active"}


async def test_one_bad_row_keeps_the_whole_edit_out(plugins: Shelf, house: House) -> None:
    loader = await house.start(two(plugins))
    plugins.failing("broken", RuntimeError("no luck"))
    row = {"id": "c", "name": "broken"}
    said = await house.edit(house.home_file, [{"id": "a", "config": 2}, {"insert": [row]}])
    assert len(said) == 1
    assert 'row "c" (broken): RuntimeError: no luck' in said[0]
    assert configs(loader) == {"a": 1, "b": 1}
    assert states(loader) == {"a": "active", "b": "active"}


async def test_a_failure_shows_no_secret(plugins: Shelf, house: House) -> None:
    plugins.failing("broken", RuntimeError("bad key hunter2-hunter2"))
    await house.start(two(plugins))
    (said,) = await house.edit(house.home_file, [{"insert": [{"id": "c", "name": "broken"}]}])
    assert "hunter2" not in said
    assert "<SOME_API_KEY>" in said


async def test_a_patch_without_a_target_is_a_warning_told_once(
    plugins: Shelf, house: House
) -> None:
    await house.start(two(plugins))
    said = await house.edit(house.profile_file, "- {id: aa, config: 2}\n")
    assert said == [f'[{house.profile_file}] patch: entry "aa" not found, did you mean "a"?']
    assert await house.edit(house.home_file, "- {id: b, config: 2}\n") == [
        f"applied {house.home_file}: changed b"
    ]


async def test_a_row_that_comes_to_wait_is_told(plugins: Shelf, house: House) -> None:
    loader = await house.start(two(plugins))
    said = await house.edit(house.profile_file, "- {id: a, inject: [nothing]}\n")
    assert said[0] == f"applied {house.profile_file}: changed a"
    assert 'row "a" (a) did not activate: pending (waiting for service(s): nothing)' in said[1]
    assert states(loader) == {"a": "pending", "b": "active"}


async def test_a_failing_listener_does_not_stop_the_next_failure(
    plugins: Shelf, house: House
) -> None:
    from dsh.loader.hmr.events import HMR_CONFIG_UPDATE_FAILED

    await house.start(two(plugins))

    def refuse(_: object) -> None:
        raise RuntimeError("deaf")

    house.root.on(HMR_CONFIG_UPDATE_FAILED, refuse)
    await house.edit(house.profile_file, "{")
    await house.edit(house.profile_file, "{{")
    assert house.failed == [str(house.profile_file)] * 2


async def test_an_edit_between_the_boot_and_the_first_look_is_applied(
    plugins: Shelf, house: House
) -> None:
    house.home_file.parent.mkdir(parents=True)
    house.home_file.write_text("- {id: a, config: home}\n")
    loader = await house.start(two(plugins), watch=False)
    house.profile_file.write_text("- {id: b, config: 2}\n")
    house.home_file.unlink()
    await house.layers.watch()
    await house.settle()
    assert configs(loader) == {"a": 1, "b": 2}


async def test_an_end_during_the_set_up_is_silent(plugins: Shelf, house: House) -> None:
    await house.start(two(plugins), watch=False)
    setting_up = asyncio.ensure_future(house.layers.watch())
    await asyncio.sleep(0)
    house.going = True
    await house.root.dispose()
    await setting_up
    assert house.said == []


async def test_files_that_cannot_be_followed_are_told_and_the_tree_goes_on(
    plugins: Shelf, house: House
) -> None:
    loader = await house.start(two(plugins), watch=False)
    await house.root.plugin(ConfigFiles)
    house.root.require(Hmr).register_config(house.home_file, lambda: None)
    await house.layers.watch()
    (said,) = house.said
    assert said.startswith("edits of patch files are not followed: ")
    assert str(house.home_file) in said
    assert states(loader) == {"a": "active", "b": "active"}


class Gate:
    """A plugin that comes up when the test lets it."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.reached = asyncio.Event()
        self.done: list[Any] = []

    async def apply(self, ctx: Context, config: Any) -> None:
        if config is not None:
            self.reached.set()
            await self.open.wait()
        self.done.append(config)


async def test_edits_during_an_edit_are_taken_together_afterwards(
    plugins: Shelf, house: House
) -> None:
    gate = Gate()
    await house.start([{"id": "a", "name": plugins.module("gate", apply=gate.apply)}])
    house.profile_file.write_text("- {id: a, config: 1}\n")
    house.layers.request()
    await gate.reached.wait()
    for number in (2, 3, 4):
        house.profile_file.write_text(f"- {{id: a, config: {number}}}\n")
        house.layers.request()
    gate.open.set()
    await house.settle()
    assert gate.done == [None, 1, 4]


async def test_disposal_waits_for_the_edit_that_is_being_applied(
    plugins: Shelf, house: House
) -> None:
    gate = Gate()
    await house.start([{"id": "a", "name": plugins.module("gate", apply=gate.apply)}])
    house.profile_file.write_text("- {id: a, config: 1}\n")
    house.layers.request()
    await gate.reached.wait()
    house.going = True
    gone = asyncio.ensure_future(house.root.dispose())
    gate.open.set()
    await gone
    await house.layers.idle()
    assert house.said == []


async def test_two_layers_that_are_one_file_by_a_link_are_followed(
    plugins: Shelf, house: House
) -> None:
    house.profile_file.parent.mkdir(parents=True)
    house.home_file.write_text("[]")
    house.profile_file.symlink_to(house.home_file)
    loader = await house.start(two(plugins))
    await house.edit(house.home_file, "- {id: a, config: 2}\n")
    assert configs(loader)["a"] == 2


def unnamed(plugins: Shelf, *names: str) -> list[dict[str, Any]]:
    return [{"insert": [{"name": plugins.recorder(name)} for name in names]}]


async def test_a_row_without_an_id_is_new_when_its_own_file_changes_and_stays_when_others_do(
    plugins: Shelf, house: House
) -> None:
    house.profile_file.parent.mkdir(parents=True)
    await house.start(two(plugins))
    await house.edit(house.profile_file, unnamed(plugins, "x", "y"))
    plugins.did()
    await house.edit(house.home_file, "- {id: a, config: 2}\n")
    assert plugins.did() == ["a down", "a up"]
    await house.edit(house.profile_file, [*unnamed(plugins, "x", "y"), {"id": "a", "config": 3}])
    assert sorted(plugins.did()) == ["x down", "x up", "y down", "y up"]


async def test_an_unnamed_row_in_a_group_stays_when_another_file_changes_its_neighbour(
    plugins: Shelf, house: House
) -> None:
    inner = [{"id": "in", "name": plugins.recorder("in")}, {"name": plugins.recorder("x")}]
    group = {"id": "g", "name": "cordis:group", "group": True, "config": inner}
    await house.start([group])
    plugins.did()
    await house.edit(house.profile_file, "- {id: in, config: 2}\n")
    assert plugins.did() == ["in down", "in up"]


async def test_rows_that_wait_for_the_same_share_a_line(plugins: Shelf, house: House) -> None:
    waiting = plugins.module("waiting", inject=["word"], apply=lambda ctx, config: None)
    rows = [{"id": "p", "name": plugins.provider("p", "word", 1)}]
    rows += [{"id": each, "name": waiting} for each in ("b", "c")]
    await house.start(rows)
    said = await house.edit(house.profile_file, "- {id: p, disabled: true}\n")
    assert said[1].startswith(
        'rows "b", "c" did not activate: pending (waiting for service(s): word): '
        "no row provides word"
    )
    assert len(said) == 2


@pytest.fixture
def watcher(plugins: Shelf) -> Iterator[str]:
    from dsh.loader import live

    name = plugins.module("in_tree_watcher", plugin=ConfigFiles)
    former = live._WATCHER
    live._WATCHER = name
    yield name
    live._WATCHER = former


async def test_a_row_may_take_the_watching_over_and_give_it_back(
    plugins: Shelf, house: House, watcher: str
) -> None:
    loader = await house.start([*two(plugins), {"id": "hmr", "name": watcher, "disabled": True}])
    ours = house.root.require(Hmr)
    said = await house.edit(house.profile_file, "- {id: hmr, disabled: false}\n")
    assert said == [f"applied {house.profile_file}: changed hmr"]
    theirs = house.root.require(Hmr)
    assert theirs is not ours
    await house.edit(house.profile_file, "- {id: hmr, disabled: false}\n- {id: a, config: 2}\n")
    assert configs(loader)["a"] == 2
    await house.edit(house.profile_file, "- {id: a, config: 3}\n")
    assert states(loader)["hmr"] is None
    assert house.root.require(Hmr) is not theirs
    await house.edit(house.profile_file, "- {id: a, config: 4}\n")
    assert configs(loader)["a"] == 4


async def test_a_watcher_row_that_is_refused_leaves_the_launchers_own(
    plugins: Shelf, house: House, watcher: str
) -> None:
    loader = await house.start(two(plugins))
    rows = [{"id": "hmr", "name": watcher}, {"id": "c", "name": "no.such"}]
    await house.edit(house.profile_file, [{"insert": rows}])
    await house.edit(house.profile_file, "- {id: a, config: 2}\n")
    assert configs(loader)["a"] == 2


async def test_a_refusal_that_mounts_the_watcher_again_is_told_once(
    plugins: Shelf, house: House, watcher: str
) -> None:
    loader = await house.start([*two(plugins), {"id": "hmr", "name": watcher, "config": 1}])
    failing = plugins.failing("c", ValueError("no"))
    wrong = f"- {{id: hmr, config: .nan}}\n- insert: [{{id: c, name: {failing}}}]\n"
    said = await house.edit(house.profile_file, wrong)
    assert len([each for each in said if "goes on" in each]) == 1
    assert len(house.failed) == 1
    await house.edit(house.profile_file, "- {id: a, config: 2}\n")
    assert configs(loader)["a"] == 2
    said = await house.edit(house.profile_file, wrong)
    assert len([each for each in said if "goes on" in each]) == 1


async def test_a_tree_with_a_watcher_gets_no_second_one(
    plugins: Shelf, house: House, watcher: str
) -> None:
    loader = await house.start([*two(plugins), {"id": "hmr", "name": watcher}])
    assert loader.locate(house.root.require(Hmr).ctx.fiber) == "hmr"
    await house.edit(house.profile_file, "- {id: a, config: 2}\n")
    assert configs(loader)["a"] == 2


async def test_what_was_left_out_stays_out_until_its_row_changes(
    plugins: Shelf, house: House
) -> None:
    tries: list[Any] = []

    def apply(ctx: Context, config: Any) -> None:
        tries.append(config)
        if config is None:
            raise RuntimeError("no luck")

    rows = [*two(plugins), {"id": "frail", "name": plugins.module("frail", apply=apply)}]
    loader = await house.start(rows, shipped=False)
    assert list(house.layers.left_out) == ["frail"]
    house.said.clear()

    said = await house.edit(house.profile_file, "- {id: a, config: 2}\n")
    assert said == [f"applied {house.profile_file}: changed a"]
    assert tries == [None]
    assert list(house.layers.left_out) == ["frail"]

    await house.edit(house.profile_file, "- {id: frail, config: 1}\n")
    assert tries == [None, 1]
    assert house.layers.left_out == {}
    assert states(loader)["frail"] == "active"


async def test_what_only_waited_comes_in_with_what_it_waited_for(
    plugins: Shelf, house: House
) -> None:
    rows = [*two(plugins), {"id": "c", "name": plugins.recorder("c"), "inject": ["thing"]}]
    loader = await house.start(rows, shipped=False)
    assert list(house.layers.left_out) == ["c"]
    await house.edit(house.profile_file, "- {id: a, config: 2}\n")
    assert list(house.layers.left_out) == ["c"]
    assert "c" not in states(loader)
    row = {"id": "thing", "name": plugins.provider("thing_row", "thing", 1)}
    await house.edit(house.profile_file, [{"insert": [row]}])
    assert states(loader)["c"] == "active"
    assert house.layers.left_out == {}


async def test_what_plugins_changed_at_run_time_outlives_an_edit_of_other_rows(
    plugins: Shelf, house: House
) -> None:
    rows = [*two(plugins), {"id": "c", "name": plugins.recorder("c")}]
    loader = await house.start(rows)
    await loader.create({"id": "made", "name": plugins.recorder("made")})
    await loader.update("b", {"config": "live"})
    await loader.remove("c")
    plugins.did()
    await house.edit(house.profile_file, "- {id: a, config: 2}\n")
    assert plugins.did() == ["a down", "a up"]
    assert configs(loader) == {"a": 2, "b": "live", "made": None}
    await house.edit(house.profile_file, "- {id: b, config: 3}\n- {id: c, config: 3}\n")
    assert configs(loader) == {"a": 1, "b": 3, "c": 3, "made": None}


async def test_that_holds_inside_groups_as_well(plugins: Shelf, house: House) -> None:
    group = {"id": "g", "name": "cordis:group", "group": True, "config": two(plugins)}
    loader = await house.start([group])
    await loader.create({"id": "made", "name": plugins.recorder("made")}, "g")
    await loader.update("b", {"config": "live"})
    plugins.did()
    await house.edit(house.profile_file, "- {id: a, config: 2}\n")
    assert plugins.did() == ["a down", "a up"]
    found = {key: value for key, value in configs(loader).items() if key != "g"}
    assert found == {"a": 2, "b": "live", "made": None}
