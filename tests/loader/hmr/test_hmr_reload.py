from __future__ import annotations

import asyncio
import gc
import linecache
import logging
import os
import sys
import weakref
from pathlib import Path

import pytest
from hmr_support import LOG, ManualReload, Workshop, wait_until

from dsh.kernel import INTERNAL_PLUGIN, FiberAnnounced, FiberState
from dsh.loader.hmr.events import HMR_CHANGE, FileChanged
from dsh.loader.hmr.keep import keep


async def test_an_edit_reloads_the_plugin_and_undoes_what_the_old_code_did(
    workshop: Workshop,
) -> None:
    await workshop.start(workshop.plugin("a", "one"), workshop.plugin("b", "b"))
    assert sorted(workshop.did()) == ["b up", "one up"]
    workshop.plugin("a", "two")
    await workshop.edited()
    assert workshop.did() == ["one down", "two up"]
    workshop.plugin("a", "one")
    await workshop.edited()
    assert workshop.did() == ["two down", "one up"]


async def test_the_entry_keeps_its_id_and_its_raw_config_and_gets_the_new_fiber(
    workshop: Workshop,
) -> None:
    row = {**workshop.plugin("a", "one"), "config": {"size": 3}}
    await workshop.start(row)
    entry = workshop.loader.resolve("a")
    old = entry.fiber
    assert old is not None
    workshop.plugin("a", "two")
    await workshop.edited()
    assert workshop.loader.resolve("a") is entry
    assert entry.fiber is not None
    assert entry.fiber is not old
    assert old.state is FiberState.DISPOSED
    assert entry.fiber.entry is entry
    assert entry.fiber.raw_config == {"size": 3}


async def test_two_files_edited_at_once_are_one_reload(workshop: Workshop) -> None:
    await workshop.start(workshop.plugin("a", "a1"), workshop.plugin("b", "b1"))
    workshop.did()
    workshop.plugin("a", "a2")
    workshop.plugin("b", "b2")
    await workshop.edited()
    assert sorted(workshop.did()) == ["a1 down", "a2 up", "b1 down", "b2 up"]
    assert len(workshop.reloads) == 1


async def test_rows_of_one_file_are_all_mounted_again(workshop: Workshop) -> None:
    row = workshop.plugin("a", "one")
    await workshop.start(row, {**row, "id": "again"})
    workshop.did()
    workshop.plugin("a", "two")
    await workshop.edited()
    assert sorted(workshop.did()) == ["one down", "one down", "two up", "two up"]


@pytest.mark.parametrize(
    "use",
    [
        "import hmrlib",
        "from hmrlib import text",
        "import importlib\nhmrlib = importlib.import_module('hmr' + 'lib')",
    ],
)
async def test_an_edit_of_an_imported_helper_reloads_its_importer_alone(
    workshop: Workshop, use: str
) -> None:
    workshop.write("hmrlib.py", "text = 'one'")
    row = workshop.plugin("a", "a", f"{use}\nLOG.append(globals().get('text') or hmrlib.text)")
    # The recorder only sees what is imported while the service is there.
    await workshop.start(workshop.plugin("b", "b"))
    await workshop.loader.create(row)
    await workshop.edited()
    assert workshop.did()[-2:] == ["one", "a up"]
    workshop.write("hmrlib.py", "text = 'two'")
    await workshop.edited()
    assert workshop.did() == ["two", "a down", "a up"]


async def test_a_helper_that_is_imported_inside_a_function_is_followed(
    workshop: Workshop,
) -> None:
    workshop.write("hmrlazy.py", "text = 'one'")
    lazy = "def say():\n    import hmrlazy\n    return hmrlazy.text"
    await workshop.start(workshop.plugin("a", "a", lazy + "\nLOG.append(say())"))
    workshop.did()
    workshop.write("hmrlazy.py", "text = 'two'")
    await workshop.edited()
    assert workshop.did() == ["two", "a down", "a up"]


async def test_what_only_type_checkers_import_is_not_followed(workshop: Workshop) -> None:
    workshop.write("hmrtypes.py", "x = 1")
    source = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import hmrtypes"
    used = workshop.plugin("b", "b", "import hmrtypes")
    await workshop.start(workshop.plugin("a", "a", source), used)
    workshop.did()
    workshop.write("hmrtypes.py", "x = 2")
    await workshop.edited()
    assert workshop.did() == ["b down", "b up"]


async def test_modules_of_a_package_are_followed_by_relative_names(workshop: Workshop) -> None:
    workshop.write("hmrpkg/__init__.py", "")
    workshop.write("hmrpkg/deep/__init__.py", "")
    workshop.write("hmrpkg/deep/words.py", "text = 'one'")
    workshop.write("hmrpkg/same.py", "kept = object()")
    workshop.write(
        "hmrpkg/row.py",
        """
        from hmr_support import LOG
        from . import same
        from .deep import words
        def apply(ctx):
            LOG.append(words.text)
        """,
    )
    await workshop.start({"id": "a", "name": "hmrpkg.row"})
    package, same = sys.modules["hmrpkg"], sys.modules["hmrpkg.same"]
    workshop.write("hmrpkg/deep/words.py", "text = 'two'")
    await workshop.edited()
    assert workshop.did() == ["one", "two"]
    assert sys.modules["hmrpkg"] is package
    assert sys.modules["hmrpkg.same"] is same
    assert package.row is sys.modules["hmrpkg.row"]
    assert package.deep.words is sys.modules["hmrpkg.deep.words"]


async def test_an_edited_package_keeps_its_loaded_submodules(workshop: Workshop) -> None:
    workshop.write("hmrtop/__init__.py", "text = 'one'")
    workshop.write("hmrtop/part.py", "x = 1")
    use = "import hmrtop\nimport hmrtop.part\nLOG.append(hmrtop.text + str(hmrtop.part.x))"
    await workshop.start(workshop.plugin("a", "a", use))
    part = sys.modules["hmrtop.part"]
    workshop.did()
    workshop.write("hmrtop/__init__.py", "text = 'two'")
    await workshop.edited()
    assert workshop.did() == ["two1", "a down", "a up"]
    assert sys.modules["hmrtop"].part is part


async def test_a_syntax_error_keeps_the_old_code_and_shows_the_line(workshop: Workshop) -> None:
    await workshop.start(workshop.plugin("a", "one"))
    workshop.did()
    file = workshop.write("a.py", "x = 1\ndef apply(ctx:\n    pass\n")
    await workshop.edited()
    error = workshop.refused()
    assert workshop.did() == []
    assert (error.stage, error.code) == ("import", "HMR_RELOAD")
    assert f"{file}:2:10" in str(error)
    assert error.frame.splitlines()[2:4] == ["> 2 | def apply(ctx:", "    |          ^"]
    assert error.__notes__ == [error.frame]
    await workshop.edited()
    assert workshop.errors, "it is tried again as long as it is not mended"
    workshop.plugin("a", "two")
    await workshop.edited()
    assert workshop.did() == ["one down", "two up"]


async def test_an_import_error_puts_everything_back(workshop: Workshop) -> None:
    workshop.write("hmrput/__init__.py", "")
    workshop.write("hmrput/words.py", "text = 'one'")
    row = workshop.plugin("a", "a", "from hmrput import words")
    await workshop.start(row)
    workshop.did()
    before = {name: each for name, each in sys.modules.items() if "hmrput" in name}
    workshop.write("hmrput/fresh.py", "")
    file = str(workshop.folder / "hmrput/words.py")
    assert linecache.getline(file, 1) == "text = 'one'\n"
    workshop.write("hmrput/words.py", "import hmrput.fresh\ntext = 'two'\n1 / 0\n")
    await workshop.edited()
    error = workshop.refused()
    assert "ZeroDivisionError" in str(error)
    assert "> 3 | 1 / 0" in error.frame
    assert {name: each for name, each in sys.modules.items() if "hmrput" in name} == before
    assert before["hmrput"].words is before["hmrput.words"]
    assert not hasattr(before["hmrput"], "fresh")
    assert linecache.getline(file, 1) == "text = 'one'\n", "the lines are those of what runs"
    assert workshop.did() == []


async def test_a_refused_reload_keeps_nothing_of_the_new_code(workshop: Workshop) -> None:
    await workshop.start(workshop.plugin("a", "one"))
    source = "import weakref\nfrom hmr_support import LOG\nclass Thing: pass\n"
    workshop.write("a.py", source + "LOG.append(weakref.ref(Thing))\n1 / 0\n")
    await workshop.edited()
    gc.collect()
    [ref] = workshop.did()[1:]
    assert isinstance(ref, weakref.ref)
    assert workshop.errors, "whoever keeps the error keeps no module"
    assert ref() is None


async def test_a_mistake_in_what_is_imported_later_shows_at_the_reload(
    workshop: Workshop,
) -> None:
    workshop.write("hmrlater.py", "text = 'one'")
    workshop.write("a.py", "def apply(ctx):\n    import hmrlater\n    hmrlater.text\n")
    await workshop.start({"id": "a", "name": "./a.py"})
    fiber = workshop.loader.resolve("a").fiber
    workshop.write("hmrlater.py", "text = (")
    await workshop.edited()
    assert "hmrlater" in str(workshop.refused())
    assert sys.modules["hmrlater"].text == "one"
    assert workshop.loader.resolve("a").fiber is fiber


async def test_what_could_not_be_loaded_is_tried_again_with_the_next_edit(
    workshop: Workshop,
) -> None:
    await workshop.start(workshop.plugin("a", "a1"), workshop.plugin("b", "b1"), debounce=0)
    workshop.did()
    hmr = workshop.hmr
    assert isinstance(hmr, ManualReload)
    workshop.plugin("a", "a2")
    workshop.write("b.py", "def")
    hmr._on_files([str(workshop.folder / name) for name in ("a.py", "b.py")])
    await hmr.quiesce()
    workshop.refused()
    assert workshop.did() == []
    workshop.plugin("b", "b2")
    hmr._on_files([str(workshop.folder / "b.py")])
    await hmr.quiesce()
    assert sorted(workshop.did()) == ["a1 down", "a2 up", "b1 down", "b2 up"]


async def test_a_late_notice_of_what_is_in_use_already_is_no_edit(workshop: Workshop) -> None:
    await workshop.start(workshop.plugin("a", "one"), debounce=0)
    workshop.plugin("a", "two")
    await workshop.edited()
    workshop.did()
    hmr = workshop.hmr
    assert isinstance(hmr, ManualReload)
    hmr._on_files([str(workshop.folder / "a.py")])
    await hmr.quiesce()
    assert workshop.did() == []


@pytest.mark.parametrize(
    "raised", ["SystemExit(3)", "KeyboardInterrupt", "GeneratorExit", "BaseException('x')"]
)
async def test_whatever_a_module_raises_refuses_the_edit_and_names_the_file(
    workshop: Workshop, raised: str
) -> None:
    await workshop.start(workshop.plugin("a", "one"))
    workshop.did()
    workshop.write("a.py", f"raise {raised}")
    await workshop.edited()
    text = str(workshop.refused())
    assert raised.partition("(")[0] in text
    assert f"{workshop.folder / 'a.py'}:1:1" in text
    assert workshop.did() == []
    workshop.plugin("a", "two")
    await workshop.edited()
    assert workshop.did() == ["one down", "two up"]


@pytest.mark.parametrize(
    ("source", "place"), [("V = 1\nW = '\0'\n", ":2"), (f"V = {'-' * 100_000}1\n", ":1")]
)
async def test_what_the_compiler_gives_up_on_is_refused_like_any_mistake(
    workshop: Workshop, source: str, place: str
) -> None:
    workshop.write("helped.py", "V = 1\n")
    await workshop.start(workshop.plugin("a", "one", "import helped"))
    workshop.did()
    workshop.write("helped.py", source)
    await workshop.edited()
    assert f"helped.py{place}" in str(workshop.refused())
    assert workshop.did() == []


async def test_a_body_that_fails_leaves_its_row_failed_and_the_next_edit_mends_it(
    workshop: Workshop,
) -> None:
    await workshop.start(workshop.plugin("a", "one"), workshop.plugin("b", "b"))
    workshop.did()
    workshop.write("a.py", "def apply(ctx):\n    raise ValueError('no')\n")
    await workshop.edited()
    entry = workshop.loader.resolve("a")
    assert workshop.did() == ["one down"]
    assert entry.fiber is not None
    assert entry.fiber.state is FiberState.FAILED
    workshop.plugin("a", "two")
    await workshop.edited()
    assert workshop.did() == ["two up"]
    assert entry.fiber is not None
    assert entry.fiber.state is FiberState.ACTIVE


async def test_a_refused_mount_restores_old_modules_and_plugins(workshop: Workshop) -> None:
    await workshop.start(workshop.plugin("a", "a1"), workshop.plugin("b", "b1"))
    old = {name: each for name, each in sys.modules.items() if name.startswith("dsh_file_")}
    workshop.did()

    def refuse(event: FiberAnnounced) -> None:
        if event.fiber.uid is not None and event.fiber.name == "refused":
            raise PermissionError("not this one")

    refusal = workshop.root.on(INTERNAL_PLUGIN, refuse, everywhere=True)
    workshop.plugin("a", "a2")
    workshop.plugin("b", "b2", "name = 'refused'")
    await workshop.edited()
    error = workshop.refused()
    assert error.stage == "mount"
    assert "not this one" in str(error)
    assert {n: m for n, m in sys.modules.items() if n.startswith("dsh_file_")} == old
    last = {line.split()[0]: line for line in workshop.did()}
    assert last["a1"] == "a1 up"
    assert last["b1"] == "b1 up"
    assert "b2" not in last
    await refusal.dispose()
    await workshop.edited()
    assert {"a2 up", "b2 up"} <= set(workshop.did())


async def test_edits_of_equal_size_in_the_same_second_are_seen(workshop: Workshop) -> None:
    row = workshop.plugin("a", "one")
    file = workshop.folder / "a.py"
    stamp = file.stat().st_mtime_ns
    await workshop.start(row)
    workshop.did()
    for says in ("two", "six"):
        workshop.plugin("a", says)
        os.utime(file, ns=(stamp, stamp))
        await workshop.edited()
    assert workshop.did() == ["one down", "two up", "two down", "six up"]


async def test_no_stale_compiled_file_is_left_for_the_next_start(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    await workshop.start(workshop.plugin("a", "one"))
    assert len(list(workshop.folder.glob("__pycache__/a.*.pyc"))) == 1
    workshop.plugin("a", "two")
    await workshop.edited()
    assert list(workshop.folder.glob("__pycache__/a.*.pyc")) == []


async def test_successive_edits_end_at_the_last(workshop: Workshop) -> None:
    await workshop.start(workshop.plugin("a", "0"))
    for n in range(1, 6):
        workshop.plugin("a", str(n))
        await workshop.hmr.scan()
    await workshop.edited()
    assert workshop.did()[-1] == "5 up"
    assert workshop.errors == []


async def test_writes_within_the_window_are_one_reload(workshop: Workshop) -> None:
    await workshop.start(workshop.plugin("a", "0"), debounce=20)
    hmr = workshop.hmr
    assert isinstance(hmr, ManualReload)
    for n in range(1, 4):
        hmr._on_files([str(workshop.folder / "a.py")])
        workshop.plugin("a", str(n))
    await hmr.quiesce()
    assert len(workshop.reloads) == 1
    assert workshop.did()[-1] == "3 up"


async def test_handlers_come_and_go_with_the_code(workshop: Workshop) -> None:
    def listening(*events: str) -> str:
        return "".join(f"    ctx.on('hmrtest/{each}', lambda _: None)\n" for each in events)

    workshop.write("a.py", "def apply(ctx):\n    pass\n" + listening("one"))
    await workshop.start({"id": "a", "name": "./a.py"})
    for events in (("one", "two"), ("two",), (), ("one",)):
        workshop.write("a.py", "def apply(ctx):\n    pass\n" + listening(*events))
        await workshop.edited()
        counts = [workshop.root.listener_count(f"hmrtest/{each}") for each in ("one", "two")]
        assert counts == [int("one" in events), int("two" in events)]


async def test_reloading_a_service_swaps_it_for_its_dependants(workshop: Workshop) -> None:
    def provider(value: str) -> None:
        workshop.write("a.py", f"def apply(ctx):\n    ctx.provide('hmr_word', {value!r})\n")

    provider("one")
    workshop.write(
        "b.py",
        "from hmr_support import LOG\ninject = ('hmr_word',)\n"
        "def apply(ctx):\n    LOG.append(ctx.hmr_word)\n",
    )
    await workshop.start({"id": "b", "name": "./b.py"}, {"id": "a", "name": "./a.py"})
    consumer = workshop.loader.resolve("b").fiber
    provider("two")
    await workshop.edited()
    assert workshop.did() == ["one", "two"]
    assert workshop.loader.resolve("b").fiber is consumer


async def test_a_reload_tells_each_plugin_with_its_file_and_runtime(workshop: Workshop) -> None:
    await workshop.start(workshop.plugin("a", "one"))
    workshop.plugin("a", "two")
    await workshop.edited()
    [told] = workshop.reloads
    [(plugin, what)] = told.plugins.items()
    assert what.filename == str(workshop.folder / "a.py")
    fiber = workshop.loader.resolve("a").fiber
    assert fiber is not None
    assert what.runtime is fiber.runtime
    assert what.runtime is not None
    assert what.runtime.callback is plugin.apply


async def test_nothing_is_left_to_reload_after_a_success(workshop: Workshop) -> None:
    await workshop.start(workshop.plugin("a", "one"), workshop.plugin("b", "b"))
    workshop.plugin("a", "two")
    await workshop.edited()
    workshop.did()
    workshop.plugin("b", "b2")
    await workshop.edited()
    await workshop.edited()
    assert workshop.did() == ["b down", "b2 up"]
    assert len(workshop.reloads) == 2


async def test_old_modules_are_free_to_go(workshop: Workshop) -> None:
    workshop.write("hmrfree.py", "class Thing: pass\n")
    config = "import hmrfree\nimport pydantic\nclass Config(pydantic.BaseModel):\n    x: int = 1"
    await workshop.start({**workshop.plugin("a", "one", config), "config": {"x": 2}})
    entry = workshop.loader.resolve("a")
    assert entry.fiber is not None
    assert entry.fiber.runtime is not None
    old = [
        weakref.ref(sys.modules["hmrfree"]),
        weakref.ref(sys.modules["hmrfree"].Thing),
        weakref.ref(sys.modules[entry.fiber.runtime.callback.__module__]),
        weakref.ref(entry.fiber.runtime.config_model),
        weakref.ref(entry.fiber),
    ]
    workshop.write("hmrfree.py", "class Thing: x = 1\n")
    await workshop.edited()
    assert workshop.did() == ["one up", "one down", "one up"]
    workshop.reloads.clear()
    gc.collect()
    assert [ref() for ref in old] == [None] * len(old)


@pytest.mark.parametrize("deleted", ["a.py", "hmrgone.py"])
async def test_a_deleted_file_changes_nothing_until_it_is_back(
    workshop: Workshop, deleted: str
) -> None:
    workshop.write("hmrgone.py", "")
    await workshop.start(workshop.plugin("a", "one", "import hmrgone"))
    workshop.did()
    file = workshop.folder / deleted
    text = file.read_text()
    file.unlink()
    await workshop.edited()
    assert workshop.errors == []
    assert workshop.did() == []
    file.write_text(text + "\n")
    await workshop.edited()
    assert workshop.did() == ["one down", "one up"]


async def test_code_of_a_row_that_is_off_is_not_loaded(workshop: Workshop) -> None:
    await workshop.start(workshop.plugin("a", "one"))
    await workshop.loader.update("a", {"disabled": True})
    workshop.write("a.py", "def")
    await workshop.edited()
    assert workshop.errors == []


async def test_a_row_that_is_off_takes_the_edited_code_when_it_is_switched_on(
    workshop: Workshop,
) -> None:
    await workshop.start(workshop.plugin("a", "one"))
    await workshop.loader.update("a", {"disabled": True})
    workshop.did()
    workshop.plugin("a", "two")
    await workshop.edited()
    assert workshop.did() == []
    await workshop.loader.update("a", {"disabled": None})
    assert workshop.did() == ["two up"]


async def test_code_from_before_the_loader_asks_for_a_new_start(
    workshop: Workshop, caplog: pytest.LogCaptureFixture
) -> None:
    workshop.write("hmrearly.py", "text = 'one'")
    __import__("hmrearly")
    early = sys.modules["hmrearly"]
    await workshop.start(workshop.plugin("a", "a"))
    workshop.did()
    await workshop.edited()
    workshop.write("hmrearly.py", "text = 'two'")
    with caplog.at_level(logging.WARNING, "dsh.hmr"):
        await workshop.edited()
    assert ["hmrearly; it cannot be exchanged" in each for each in caplog.messages] == [True]
    restarts: list[str] = []
    workshop.loader.restart = lambda: restarts.append("restart")
    workshop.write("hmrearly.py", "text = 'three'")
    await workshop.edited()
    assert restarts == ["restart"]
    assert sys.modules["hmrearly"] is early
    assert workshop.did() == []


async def test_another_changed_file_is_told_and_a_registered_one_is_not(
    workshop: Workshop,
) -> None:
    await workshop.start(workshop.plugin("a", "a"))
    told: list[str] = []
    workshop.root.on(HMR_CHANGE, lambda event: told.append(event.url))
    hmr = workshop.hmr
    assert isinstance(hmr, ManualReload)
    hmr.register_config("rows.yml", lambda: None)
    note = workshop.folder / "note 1.txt"
    hmr._on_files([str(workshop.folder / "rows.yml"), str(note), str(workshop.folder / "a.py")])
    await hmr.quiesce()
    assert told == [note.as_uri()]
    assert isinstance(FileChanged(note.as_uri()).url, str)


async def test_linked_gives_the_direct_imports(workshop: Workshop) -> None:
    workshop.write("hmrleft.py", "import hmrright\nimport json")
    workshop.write("hmrright.py", "")
    await workshop.start(workshop.plugin("a", "a", "import hmrleft"))
    assert workshop.hmr.linked("hmrleft") == ["hmrright"]
    assert workshop.hmr.linked("hmrright") == []
    assert workshop.hmr.linked("nothing") == []
    assert workshop.hmr.linked("json") == []


async def test_work_in_flight_ends_in_the_old_code(workshop: Workshop) -> None:
    await workshop.start(workshop.plugin("a", "one"))
    workshop.did()
    fiber = workshop.loader.resolve("a").fiber
    assert fiber is not None
    began, release = asyncio.Event(), asyncio.Event()

    async def call() -> None:
        with fiber.lease("a call"):
            began.set()
            await release.wait()
            LOG.append("call ends")

    calling = asyncio.create_task(call())
    await began.wait()
    workshop.plugin("a", "two")
    await workshop.hmr.scan()
    await wait_until(lambda: fiber.uid is None)
    assert workshop.did() == []
    release.set()
    await calling
    await workshop.hmr.quiesce()
    assert workshop.did() == ["call ends", "one down", "two up"]


async def test_the_row_can_go_while_a_reload_waits_for_the_tree(workshop: Workshop) -> None:
    row = workshop.plugin("a", "one")
    await workshop.start(row)
    workshop.did()
    workshop.plugin("a", "two")
    hmr = workshop.hmr
    async with asyncio.timeout(10):
        going = asyncio.create_task(workshop.loader.mount([row]))
        await hmr.scan()
        await going
        await workshop.loader.quiesce()
    assert [entry.id for entry in workshop.loader.entries()] == ["a"]


async def test_taking_back_a_mistake_leaves_the_running_plugin_alone(workshop: Workshop) -> None:
    await workshop.start(workshop.plugin("a", "one"))
    workshop.plugin("a", "two")
    await workshop.edited()
    workshop.did()
    workshop.write("a.py", "def")
    await workshop.edited()
    workshop.refused()
    workshop.plugin("a", "two")
    await workshop.edited()
    assert workshop.did() == []
    workshop.plugin("a", "three")
    await workshop.edited()
    assert workshop.did() == ["two down", "three up"]


async def test_a_body_that_never_ends_does_not_keep_its_correction_away(
    workshop: Workshop, caplog: pytest.LogCaptureFixture
) -> None:
    workshop.root.set_lease_grace(0.02)
    await workshop.start(workshop.plugin("a", "one"), workshop.plugin("b", "one b"))
    workshop.loader.patience_s = 0.05
    workshop.did()
    hang = "import asyncio\nasync def apply(ctx):\n    await asyncio.Event().wait()\n"
    workshop.write("a.py", hang)
    await workshop.edited()
    assert [text for text in caplog.messages if 'row "a" (./a.py) is still loading' in text]
    workshop.plugin("b", "two b")
    await workshop.edited()
    assert workshop.did() == ["one down", "one b down", "two b up"]
    workshop.plugin("a", "two")
    await workshop.edited()
    await wait_until(lambda: workshop.log() == ["two up"])


async def test_a_root_that_does_not_exist_is_named(workshop: Workshop) -> None:
    with pytest.raises(Exception, match=r"cannot watch .*nowhere.*no such folder"):
        await workshop.start(root=["nowhere"])


async def test_roots_are_relative_to_base(workshop: Workshop) -> None:
    workshop.write("sub/keep.txt", "")
    workshop.plugin("sub/inner", "in")
    outer = workshop.plugin("outer", "out")
    await workshop.start({"id": "i", "name": "./sub/inner.py"}, outer, base="sub", root=["."])
    workshop.did()
    workshop.plugin("sub/inner", "in2")
    workshop.plugin("outer", "out2")
    await workshop.edited()
    assert workshop.did() == ["in down", "in2 up"]
    assert workshop.hmr.base_dir == workshop.folder / "sub"
    assert Path(workshop.folder).is_absolute()


FAILING = {
    "raises": "def apply(ctx):\n    raise ValueError('reason')\n",
    "provides what is there": "def apply(ctx):\n    ctx.provide('taken', 'reason')\n",
    "refuses its config": (
        "class Config:\n    @staticmethod\n    def validate(value):\n"
        "        raise ValueError('reason')\ndef apply(ctx, config):\n    pass\n"
    ),
}


@pytest.mark.parametrize("how", FAILING)
async def test_new_code_that_cannot_run_fails_its_row_alone(workshop: Workshop, how: str) -> None:
    workshop.write("t.py", "def apply(ctx):\n    ctx.provide('taken', 1)\n")
    await workshop.start(workshop.plugin("a", "one"), {"id": "t", "name": "./t.py"})
    workshop.did()
    workshop.write("a.py", FAILING[how])
    await workshop.edited()
    failed, fine = workshop.loader.resolve("a").fiber, workshop.loader.resolve("t").fiber
    assert failed is not None
    assert fine is not None
    assert (failed.state, fine.state) == (FiberState.FAILED, FiberState.ACTIVE)
    workshop.plugin("a", "two")
    await workshop.edited()
    assert workshop.did() == ["one down", "two up"]


@pytest.mark.parametrize("source", ["x = 1", "def apply(): pass\nplugin = apply", "\0", "\xff"])
async def test_what_is_no_plugin_any_more_is_refused(workshop: Workshop, source: str) -> None:
    await workshop.start(workshop.plugin("a", "one"))
    workshop.did()
    (workshop.folder / "a.py").write_bytes(source.encode("latin-1"))
    await workshop.edited()
    assert workshop.refused().stage == "import"
    assert workshop.did() == []
    workshop.plugin("a", "two")
    await workshop.edited()
    assert workshop.did() == ["one down", "two up"]


async def test_an_undo_that_fails_does_not_stop_the_new_code(workshop: Workshop) -> None:
    workshop.write("a.py", "def apply(ctx):\n    ctx.defer(lambda: 1 / 0)\n")
    await workshop.start({"id": "a", "name": "./a.py"})
    workshop.plugin("a", "two")
    await workshop.edited()
    assert workshop.did() == ["two up"]
    assert [type(error) for error in workshop.errors] == [ZeroDivisionError]


async def test_a_row_keeps_what_it_asked_to_keep(workshop: Workshop) -> None:
    def counting(step: int) -> dict[str, str]:
        workshop.write(
            "a.py",
            f"""
            from hmr_support import LOG
            from dsh.loader.hmr.keep import keep
            def apply(ctx):
                counts = keep(ctx, "counts", list)
                counts.append({step})
                ctx.inject((), lambda inner: LOG.append(str(keep(inner, "counts", list))))
            """,
        )
        return {"id": "a", "name": "./a.py"}

    row = counting(1)
    await workshop.start(row, {**row, "id": "other"})
    counting(2)
    await workshop.edited()
    assert workshop.did() == ["[1]", "[1]", "[1, 2]", "[1, 2]"]
    await workshop.loader.remove("a")
    await workshop.loader.create(row)
    assert workshop.did() == ["[2]"]
    assert keep(workshop.root, "counts", list) == []
