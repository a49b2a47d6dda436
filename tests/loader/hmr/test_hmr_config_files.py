from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hmr_support import wait_until

from dsh.base.clock import SYSTEM_CLOCK, Clock
from dsh.kernel import Context
from dsh.loader.hmr.config_files import ConfigFiles
from dsh.loader.hmr.events import HMR_CONFIG_UPDATE_FAILED, ConfigUpdateFailed
from dsh.loader.hmr.poll import differs, look
from dsh.loader.hmr.service import Hmr, PathTaken


class Reader:
    """A refresh that notes what the file holds, and can be held up."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seen: list[str | None] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.entered = asyncio.Event()
        self.active = 0
        self.most_active = 0

    async def __call__(self) -> None:
        self.active += 1
        self.most_active = max(self.most_active, self.active)
        self.entered.set()
        await self.gate.wait()
        self.seen.append(self.path.read_text() if self.path.exists() else None)
        self.active -= 1


class ManualFiles(ConfigFiles):
    """Looks only when a test says so."""

    def _begin(self) -> None:
        pass


async def mounted(root: Context, plugin: Any = ManualFiles) -> Hmr:
    await root.plugin(plugin)
    return root.require(Hmr)


async def looked(hmr: Hmr) -> None:
    await hmr.scan()
    await hmr.quiesce()


async def test_a_file_is_followed_as_it_appears_changes_and_goes(
    root: Context, tmp_path: Path
) -> None:
    hmr, file = await mounted(root), tmp_path / "rows.yml"
    reader = Reader(file)
    hmr.register_config(file, reader)
    await looked(hmr)
    assert reader.seen == []
    for text in ("one", "two"):
        file.write_text(text)
        await looked(hmr)
    file.unlink()
    await looked(hmr)
    await looked(hmr)
    assert reader.seen == ["one", "two", None]


async def test_a_file_that_is_there_at_registration_applies_once(
    root: Context, tmp_path: Path
) -> None:
    hmr, file = await mounted(root), tmp_path / "rows.yml"
    file.write_text("one")
    reader = Reader(file)
    hmr.register_config(file, reader)
    await looked(hmr)
    await looked(hmr)
    assert reader.seen == ["one"]


async def test_what_a_refresh_finds_already_is_no_change_afterwards(
    root: Context, tmp_path: Path
) -> None:
    hmr, file = await mounted(root), tmp_path / "rows.yml"
    file.write_text("one")
    reader = Reader(file)
    hmr.register_config(file, reader)
    await hmr.scan()
    file.write_text("two")
    await looked(hmr)
    await looked(hmr)
    assert reader.seen == ["two"]


async def test_the_first_look_is_only_remembered_when_the_owner_has_read_the_file(
    root: Context, tmp_path: Path
) -> None:
    hmr, file = await mounted(root), tmp_path / "rows.yml"
    file.write_text("one")
    reader = Reader(file)
    hmr.register_config(file, reader, initial=False)
    await looked(hmr)
    assert reader.seen == []
    file.write_text("two")
    await looked(hmr)
    assert reader.seen == ["two"]


async def test_the_folder_of_a_file_may_be_made_later(root: Context, tmp_path: Path) -> None:
    hmr, file = await mounted(root), tmp_path / "later" / "deep" / "rows.yml"
    reader = Reader(file)
    hmr.register_config(file, reader)
    await looked(hmr)
    file.parent.mkdir(parents=True)
    file.write_text("one")
    await looked(hmr)
    assert reader.seen == ["one"]


async def test_a_replaced_file_and_a_retargeted_link_are_changes(
    root: Context, tmp_path: Path
) -> None:
    hmr = await mounted(root)
    file, other, link = tmp_path / "a", tmp_path / "b", tmp_path / "link"
    file.write_text("one")
    other.write_text("two")
    link.symlink_to(file)
    reader = Reader(link)
    hmr.register_config(link, reader, initial=False)
    await looked(hmr)
    fresh = tmp_path / "fresh"
    fresh.write_text("new")
    fresh.replace(file)
    await looked(hmr)
    link.unlink()
    link.symlink_to(other)
    await looked(hmr)
    assert reader.seen == ["new", "two"]


class LaterClock:
    """A clock by which no time stamp is fresh."""

    def now_ms(self) -> int:
        return SYSTEM_CLOCK.now_ms() + 3_600_000

    monotonic = SYSTEM_CLOCK.monotonic


@pytest.mark.parametrize("clock", [SYSTEM_CLOCK, LaterClock()], ids=["now", "later"])
async def test_an_edit_that_leaves_size_and_time_as_they_were_is_seen(
    root: Context, tmp_path: Path, clock: Clock
) -> None:
    hmr, file = await mounted(root), tmp_path / "rows.yml"
    assert isinstance(hmr, ConfigFiles)
    hmr.clock = clock
    file.write_text("one")
    stamp = file.stat().st_mtime_ns
    reader = Reader(file)
    hmr.register_config(file, reader, initial=False)
    await looked(hmr)
    file.write_text("two")
    os.utime(file, ns=(stamp, stamp))
    await looked(hmr)
    assert reader.seen == ["two"]


def test_a_fresh_time_stamp_does_not_hide_the_next_write(tmp_path: Path) -> None:
    class Clock:
        def now_ms(self) -> int:
            return file.stat().st_mtime_ns // 1_000_000 + late_ms

        monotonic = SYSTEM_CLOCK.monotonic

    file, late_ms = tmp_path / "a", 0
    file.write_text("one")
    fresh = look(str(file), None, Clock())
    late_ms = 5_000
    assert not fresh.settled
    assert differs(fresh, fresh._replace(digest=b"")), "marks alone do not decide"
    assert look(str(file), fresh._replace(digest=b""), Clock()).digest == fresh.digest
    assert look(str(file), None, Clock()).settled


async def test_touching_a_file_is_no_change(root: Context, tmp_path: Path) -> None:
    hmr, file = await mounted(root), tmp_path / "rows.yml"
    file.write_text("one")
    reader = Reader(file)
    hmr.register_config(file, reader, initial=False)
    await looked(hmr)
    os.utime(file, (1, 1))
    await looked(hmr)
    assert reader.seen == []


@pytest.mark.parametrize("block", ["folder", "unreadable"])
async def test_what_is_no_readable_file_counts_as_another_content(
    root: Context, tmp_path: Path, block: str
) -> None:
    hmr, file = await mounted(root), tmp_path / "rows.yml"
    file.write_text("one")
    calls: list[str] = []
    hmr.register_config(file, lambda: calls.append("refresh"), initial=False)
    await looked(hmr)
    file.unlink()
    file.mkdir() if block == "folder" else file.symlink_to(file)
    await looked(hmr)
    assert calls == ["refresh"]


async def test_two_spellings_of_one_file_are_one_path(root: Context, tmp_path: Path) -> None:
    hmr = await mounted(root)
    folder, alias = tmp_path / "real", tmp_path / "alias"
    folder.mkdir()
    alias.symlink_to(folder)
    first = hmr.register_config(folder / "rows.yml", Reader(folder))
    for spelling in (
        folder / "rows.yml",
        alias / "rows.yml",
        folder / "." / ".." / "real/rows.yml",
    ):
        with pytest.raises(PathTaken, match="config path already registered"):
            hmr.register_config(spelling, Reader(folder))
    await first.dispose()
    await hmr.register_config(alias / "rows.yml", Reader(folder)).dispose()


async def test_a_relative_path_is_relative_to_the_trees_folder(
    root: Context, tmp_path: Path
) -> None:
    await root.extend(base_url=tmp_path.as_uri() + "/").plugin(ManualFiles)
    hmr = root.require(Hmr)
    assert hmr.base_dir == tmp_path
    reader = Reader(tmp_path / "rows.yml")
    hmr.register_config("rows.yml", reader)
    (tmp_path / "rows.yml").write_text("one")
    await looked(hmr)
    assert reader.seen == ["one"]


async def test_refreshes_of_a_file_never_overlap_and_coalesce(
    root: Context, tmp_path: Path
) -> None:
    hmr, file = await mounted(root), tmp_path / "rows.yml"
    reader = Reader(file)
    hmr.register_config(file, reader)
    await hmr.scan()
    reader.gate.clear()
    for n in range(5):
        file.write_text(f"edit {n}")
        await hmr.scan()
        await reader.entered.wait()
    reader.gate.set()
    await hmr.quiesce()
    assert reader.most_active == 1
    assert reader.seen == ["edit 4", "edit 4"]


async def test_an_edit_during_disposal_is_applied_before_the_disposal_ends(
    root: Context, tmp_path: Path
) -> None:
    hmr, file = await mounted(root), tmp_path / "rows.yml"
    reader = Reader(file)
    registration = hmr.register_config(file, reader)
    await hmr.scan()
    reader.gate.clear()
    file.write_text("one")
    await hmr.scan()
    await reader.entered.wait()
    going = registration.dispose()
    file.write_text("two")
    await hmr.scan()
    assert not going.done
    reader.gate.set()
    await going
    assert reader.seen == ["two", "two"]
    file.write_text("three")
    await looked(hmr)
    assert reader.seen == ["two", "two"]


async def test_the_owners_unload_waits_for_its_running_refresh(
    root: Context, tmp_path: Path
) -> None:
    hmr, file = await mounted(root), tmp_path / "rows.yml"
    file.write_text("one")
    reader = Reader(file)
    reader.gate.clear()
    owner = await root.inject([Hmr], lambda ctx: ctx.require(Hmr).register_config(file, reader))
    await hmr.scan()
    await reader.entered.wait()
    going = owner.dispose()
    await asyncio.sleep(0)
    assert not going.done
    reader.gate.set()
    await going
    assert reader.seen == ["one"]


async def test_teardown_of_the_service_drops_what_is_due_but_not_what_runs(
    root: Context, tmp_path: Path
) -> None:
    fiber = await root.plugin(ManualFiles)
    hmr, file = root.require(Hmr), tmp_path / "rows.yml"
    reader = Reader(file)
    hmr.register_config(file, reader)
    await hmr.scan()
    reader.gate.clear()
    for text in ("one", "two"):
        file.write_text(text)
        await hmr.scan()
        await reader.entered.wait()
    await fiber.dispose()
    assert reader.active == 1
    reader.gate.set()
    await root.dispose()
    assert reader.seen == ["two"]


async def test_a_refresh_may_dispose_its_own_registration(root: Context, tmp_path: Path) -> None:
    hmr, file = await mounted(root), tmp_path / "rows.yml"
    file.write_text("one")
    calls: list[str] = []

    async def refresh() -> None:
        calls.append("refresh")
        await registration.dispose()

    registration = hmr.register_config(file, refresh)
    await looked(hmr)
    file.write_text("two")
    await looked(hmr)
    assert calls == ["refresh"]


def _raise(error: BaseException) -> Callable[[], None]:
    def refresh() -> None:
        raise error

    return refresh


async def test_a_failed_refresh_is_reported_and_told_and_the_next_edit_counts(
    root: Context, tmp_path: Path
) -> None:
    reported: list[BaseException] = []
    root.set_reporter(lambda error, *_: reported.append(error))
    told: list[ConfigUpdateFailed] = []
    root.on(HMR_CONFIG_UPDATE_FAILED, told.append)
    hmr, file = await mounted(root), tmp_path / "rows.yml"
    error = ValueError("not a list")
    hmr.register_config(file, _raise(error))
    for text in ("one", "two"):
        file.write_text(text)
        await looked(hmr)
    assert reported == [error, error]
    assert [(each.filename, each.error) for each in told] == [(str(file), error)] * 2


async def test_what_is_no_exception_of_a_program_is_made_one(root: Context, tmp_path: Path) -> None:
    root.set_reporter(lambda *_: None)
    told: list[ConfigUpdateFailed] = []
    root.on(HMR_CONFIG_UPDATE_FAILED, told.append)
    hmr, file = await mounted(root), tmp_path / "rows.yml"
    file.write_text("one")
    hmr.register_config(file, _raise(SystemExit(42)))
    await looked(hmr)
    assert [str(each.error) for each in told] == ["42"]
    assert isinstance(told[0].error, Exception)


async def test_a_failing_observer_is_reported_and_does_not_stop_later_broadcasts(
    root: Context, tmp_path: Path
) -> None:
    reported: list[BaseException] = []
    root.set_reporter(lambda error, *_: reported.append(error))
    told: list[ConfigUpdateFailed] = []

    async def reject(_: ConfigUpdateFailed) -> None:
        raise RuntimeError("observer")

    root.on(HMR_CONFIG_UPDATE_FAILED, reject)
    root.on(HMR_CONFIG_UPDATE_FAILED, told.append)
    hmr, file = await mounted(root), tmp_path / "rows.yml"
    hmr.register_config(file, _raise(ValueError("bad")))
    for text in ("one", "two"):
        file.write_text(text)
        await looked(hmr)
    assert len(told) == 2
    assert [str(error) for error in reported].count("bad") == 2
    assert len(reported) == 4


async def test_the_service_looks_by_itself_until_nothing_is_registered(
    root: Context, tmp_path: Path
) -> None:
    await root.plugin(ConfigFiles)
    hmr, file = root.require(Hmr), tmp_path / "rows.yml"
    changed = asyncio.Event()
    registration = hmr.register_config(file, changed.set)
    tasks = root.census().tasks
    file.write_text("one")
    async with asyncio.timeout(5):
        await changed.wait()
    await registration.dispose()
    assert isinstance(hmr, ConfigFiles)
    hmr.look_soon()
    await wait_until(lambda: root.census().tasks < tasks)
