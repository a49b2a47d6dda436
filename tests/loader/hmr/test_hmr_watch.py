from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hmr_support import DEADLINE_S, Workshop, wait_until

from dsh.loader.errors import EntryError
from dsh.loader.hmr.events import HMR_CHANGE
from dsh.loader.hmr.plugin import HmrConfig, HotReload
from dsh.loader.hmr.roots import Roots
from dsh.loader.hmr.watch import FolderWatch

WATCHER = "dsh.loader.hmr.plugin"


async def armed(workshop: Workshop) -> HotReload:
    hmr = workshop.hmr
    assert isinstance(hmr, HotReload)
    async with asyncio.timeout(DEADLINE_S):
        await hmr.watching.wait()
    await hmr.quiesce()
    return hmr


@pytest.mark.parametrize("polling", [False, True])
async def test_the_watcher_notices_an_edit(workshop: Workshop, polling: bool) -> None:
    row = workshop.plugin("a", "one")
    await workshop.start(row, watch=WATCHER, debounce=10, usePolling=polling)
    await armed(workshop)
    assert workshop.did() == ["one up"], "what is there at the start is no edit"
    workshop.plugin("a", "two")
    await wait_until(lambda: workshop.reloads)
    assert workshop.did() == ["one down", "two up"]


async def test_three_writes_in_a_row_are_at_most_two_reloads(workshop: Workshop) -> None:
    await workshop.start(workshop.plugin("a", "0"), watch=WATCHER)
    hmr = await armed(workshop)
    for n in range(1, 4):
        workshop.plugin("a", str(n))
    await wait_until(lambda: workshop.loader.resolve("a").fiber and "3 up" in workshop.log())
    await hmr.quiesce()
    assert len(workshop.reloads) <= 2


async def test_an_edit_by_way_of_another_file_is_noticed(workshop: Workshop) -> None:
    await workshop.start(workshop.plugin("a", "one"), watch=WATCHER, debounce=10)
    await armed(workshop)
    file = workshop.folder / "a.py"
    fresh = workshop.folder / "a.py.tmp"
    fresh.write_text(file.read_text().replace("one", "two"))
    fresh.replace(file)
    await wait_until(lambda: workshop.reloads)
    assert workshop.did()[-1] == "two up"


async def test_files_of_a_folder_that_is_made_later_are_followed(workshop: Workshop) -> None:
    await workshop.start(watch=WATCHER, debounce=10)
    await armed(workshop)
    told: list[str] = []
    workshop.root.on(HMR_CHANGE, lambda event: told.append(event.url))
    row = workshop.plugin("late/deep/a", "one")
    url = (workshop.folder / "late/deep/a.py").as_uri()
    await wait_until(lambda: url in told)
    await workshop.loader.create({**row, "id": "a"})
    workshop.plugin("late/deep/a", "two")
    await wait_until(lambda: workshop.reloads)
    assert workshop.did()[-1].endswith("two up")


async def test_excluded_files_are_not_told(workshop: Workshop) -> None:
    for folder in ("node_modules", ".git", "cache"):
        (workshop.folder / folder).mkdir()
    await workshop.start(watch=WATCHER)
    await armed(workshop)
    told: list[str] = []
    workshop.root.on(HMR_CHANGE, lambda event: told.append(event.url))
    for name in ("node_modules/x.js", ".git/index", "cache/y", ".swap", "seen.txt"):
        workshop.write(name, "x")
    await wait_until(lambda: told)
    assert set(told) == {(workshop.folder / "seen.txt").as_uri()}


async def test_the_library_is_loaded_only_where_roots_are_watched(workshop: Workshop) -> None:
    loaded = {name: sys.modules.pop(name) for name in tuple(sys.modules) if "watchfiles" in name}
    try:
        await workshop.start(watch=WATCHER, root=[])
        await workshop.edited()
        assert not any("watchfiles" in name for name in sys.modules)
    finally:
        sys.modules.update(loaded)


async def test_nothing_is_left_when_the_row_goes(workshop: Workshop) -> None:
    finders = list(sys.meta_path)
    await workshop.start(workshop.plugin("a", "one"), watch=WATCHER)
    await armed(workshop)
    await workshop.loader.remove("hmr")
    assert sys.meta_path == finders
    await wait_until(lambda: workshop.root.census().tasks == 0)


async def test_the_watcher_goes_on_without_a_root_that_went(workshop: Workshop) -> None:
    gone = workshop.folder / "gone"
    gone.mkdir()
    await workshop.start(workshop.plugin("a", "one"), watch=WATCHER, root=[".", "gone"])
    await armed(workshop)
    gone.rmdir()
    (workshop.folder / "new").mkdir()
    workshop.plugin("a", "two")
    await wait_until(lambda: workshop.reloads)


def test_upstreams_spelling_of_the_config_is_taken() -> None:
    config = HmrConfig.model_validate({"usePolling": True, "debounce": 5, "root": ["src"]})
    assert (config.use_polling, config.debounce, config.root) == (True, 5, ["src"])
    assert HmrConfig().root == ["."]
    with pytest.raises(ValueError, match="Extra inputs"):
        HmrConfig.model_validate({"roots": []})


async def test_a_failing_start_with_a_watcher_ends_in_an_error_and_not_in_a_hang(
    workshop: Workshop,
) -> None:
    workshop.write("rows.yml", "[]")
    workshop.write(
        "b.py",
        """
        inject = ("hmr",)
        async def apply(ctx):
            ctx.hmr.register_config("rows.yml", lambda: None)
            raise ValueError("no start")
        """,
    )
    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(EntryError, match="no start"):
            await workshop.start({"id": "b", "name": "./b.py"}, watch=WATCHER)
    assert list(workshop.loader.entries()) == []


async def test_a_folder_that_goes_before_it_is_watched_costs_a_moment(tmp_path: Path) -> None:
    class Stale(Roots):
        walks = 0

        def walk(self) -> Iterator[str]:
            self.walks += 1
            yield from super().walk()
            if self.walks == 1:
                yield str(tmp_path / "gone")

    errors: list[Exception] = []
    seen: list[str] = []
    watch = FolderWatch(Stale([tmp_path]), seen.extend, lambda: None, errors.append)
    task = asyncio.create_task(watch.run())
    try:
        async with asyncio.timeout(DEADLINE_S):
            await watch.armed.wait()
        (tmp_path / "a.txt").write_text("x")
        await wait_until(lambda: seen)
    finally:
        task.cancel()
        await asyncio.wait([task])
    assert errors == []
    assert set(seen) == {str(tmp_path / "a.txt")}
