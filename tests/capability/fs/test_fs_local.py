from __future__ import annotations

import asyncio
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from fs_harness import names

from dsh.base.signal import AbortController
from dsh.capability.fs import paths
from dsh.capability.fs.change import edit as change_edit
from dsh.capability.fs.change import write as change_write
from dsh.capability.fs.local import LocalFileSystem, unfenced
from dsh.capability.fs.place import Folder, publish
from dsh.capability.fs.service import (
    CreateIfAbsent,
    FileSystem,
    FsEdit,
    FsError,
    FsTarget,
    FsWritten,
    ReplaceIfVersion,
)
from dsh.capability.fs.worker import KeyedLocks, Stop, run_blocking
from dsh.kernel import Context


@pytest.fixture
async def fs(root: Context, tmp_path: Path) -> FileSystem:
    await root.plugin(LocalFileSystem, {"cwd": str(tmp_path), "diffBasisMaxBytes": 100})
    return root.require(FileSystem)


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0o027)
    yield
    os.umask(before)


async def version(fs: FileSystem, target: FsTarget) -> str:
    info = await fs.stat(target)
    assert info is not None
    return info.version


def code_of(caught: pytest.ExceptionInfo[FsError]) -> str:
    return caught.value.code


async def test_a_relative_path_starts_at_the_given_folder(fs: FileSystem, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    assert (await fs.resolve("x")).display_path == f"{tmp_path}/x"
    assert (await fs.resolve("x", cwd=f"{tmp_path}/sub")).target_key == f"{tmp_path}/sub/x"
    assert (await fs.resolve("/x", cwd=f"{tmp_path}/sub")).target_key == "/x"


async def test_aliases_share_one_identity(fs: FileSystem, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    through, direct = await fs.resolve("link/new/f"), await fs.resolve("real/new/f")
    assert through.target_key == direct.target_key
    assert through.display_path.endswith("link/new/f")


async def test_dot_dot_after_a_link_leads_where_the_system_goes(
    fs: FileSystem, tmp_path: Path
) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "link").symlink_to("a/b")
    target = await fs.resolve("link/../f")
    assert target.target_key == target.display_path == f"{tmp_path}/a/f"


async def test_dot_dot_through_a_missing_folder_still_follows_links(
    fs: FileSystem, tmp_path: Path
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert (await fs.resolve("missing/../link/f")).target_key == f"{tmp_path}/real/f"


@pytest.mark.parametrize("path", ["", "  ", "a\0b", "a\ud800"])
async def test_impossible_paths_are_not_found(fs: FileSystem, path: str) -> None:
    with pytest.raises(FsError) as caught:
        await fs.resolve(path)
    assert code_of(caught) == "FS_NOT_FOUND"


async def test_a_file_as_a_folder_counts_as_missing(fs: FileSystem, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x")
    target = await fs.resolve("f/inner")
    assert await fs.stat(target) is None
    with pytest.raises(FsError) as caught:
        await fs.read_text(target)
    assert code_of(caught) == "FS_NOT_FOUND"
    with pytest.raises(FsError) as caught:
        await fs.write_text(target, "x")
    assert code_of(caught) == "FS_NOT_DIRECTORY"


async def test_a_way_through_a_link_without_end_is_no_folder(
    fs: FileSystem, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to("missing")
    with pytest.raises(FsError, match="leads nowhere") as caught:
        await fs.write_text(await fs.resolve("link/f"), "x")
    assert code_of(caught) == "FS_NOT_DIRECTORY"


async def test_a_loop_of_links_is_an_error_of_its_own(fs: FileSystem, tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(FsError) as caught:
        await fs.resolve("a")
    assert code_of(caught) == "FS_IO_ERROR"


def test_permissions_of_the_system_have_their_own_code() -> None:
    assert paths.system_error(PermissionError(13, "denied"), "f").code == "FS_PERMISSION_DENIED"


async def test_the_version_changes_though_size_and_time_do_not(
    fs: FileSystem, tmp_path: Path
) -> None:
    file = tmp_path / "f"
    file.write_text("one")
    status = file.stat()
    target = await fs.resolve("f")
    before = await version(fs, target)
    (tmp_path / "g").write_text("two")
    (tmp_path / "g").replace(file)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert await version(fs, target) != before


async def test_lstat_tells_a_link(fs: FileSystem, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("missing")
    info = await fs.lstat("link")
    assert info is not None
    assert info.type == "symlink"
    assert await fs.lstat("missing") is None


async def test_urls_and_process_paths_are_canonical(fs: FileSystem, tmp_path: Path) -> None:
    (tmp_path / "re al").mkdir()
    (tmp_path / "link").symlink_to("re al")
    target = await fs.resolve("link")
    assert fs.process_path(target) == f"{tmp_path}/re al"
    assert fs.file_url(target) == (tmp_path / "re al").as_uri()
    assert fs.contains(await fs.resolve("."), target)
    assert not fs.contains(target, await fs.resolve("re al2"))


@pytest.mark.parametrize("kind", ["folder", "pipe"])
async def test_only_regular_files_are_read_and_written(
    fs: FileSystem, tmp_path: Path, kind: str
) -> None:
    if kind == "folder":
        (tmp_path / "x").mkdir()
    else:
        os.mkfifo(tmp_path / "x")
    target = await fs.resolve("x")
    with pytest.raises(FsError) as caught:
        await fs.read_text(target)
    assert code_of(caught) == "FS_NOT_REGULAR_FILE"
    for expected in (None, CreateIfAbsent(), ReplaceIfVersion("v")):
        with pytest.raises(FsError) as caught:
            await fs.write_text(target, "x", expected=expected)
        assert code_of(caught) == "FS_NOT_REGULAR_FILE"
    with pytest.raises(FsError) as caught:
        await fs.edit_text(target, FsEdit("a", "b"))
    assert code_of(caught) == "FS_NOT_REGULAR_FILE"


async def test_streams_give_the_same_text(fs: FileSystem, tmp_path: Path) -> None:
    text = "漢字" * 700_000 + "\r\nend"
    (tmp_path / "f").write_bytes(b"\xef\xbb\xbf" + text.encode())
    target = await fs.resolve("f")
    assert "".join([piece async for piece in fs.stream_text(target)]) == text
    assert await fs.read_text(target) == text


@pytest.mark.parametrize("data", [b"a\0", b"\xff", "漢".encode()[:2]])
async def test_streams_refuse_what_is_not_text(fs: FileSystem, tmp_path: Path, data: bytes) -> None:
    (tmp_path / "f").write_bytes(data)
    with pytest.raises(FsError) as caught:
        async for _ in fs.stream_text(await fs.resolve("f")):
            pass
    assert code_of(caught) == "FS_NOT_TEXT"


async def test_read_bytes_has_a_limit(fs: FileSystem, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"12345")
    target = await fs.resolve("f")
    assert await fs.read_bytes(target, max_bytes=5) == b"12345"
    with pytest.raises(FsError) as caught:
        await fs.read_bytes(target, max_bytes=4)
    assert code_of(caught) == "FS_TOO_LARGE"


async def test_a_folder_is_listed_by_name(fs: FileSystem, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "a").write_text("12")
    (tmp_path / "c").symlink_to("b")
    (tmp_path / "d").symlink_to("missing")
    entries = await fs.list_dir(await fs.resolve("."))
    assert [(e.name, e.type) for e in entries] == [
        ("a", "file"),
        ("b", "directory"),
        ("c", "directory"),
        ("d", "other"),
    ]
    assert entries[0].size == 2
    assert entries[2].target.target_key == f"{tmp_path}/b"
    assert entries[3].version is None
    for path, expected in (("a", "FS_NOT_DIRECTORY"), ("x", "FS_NOT_FOUND")):
        with pytest.raises(FsError) as caught:
            await fs.list_dir(await fs.resolve(path))
        assert code_of(caught) == expected


async def test_open_text_leaves_big_files_to_streams(fs: FileSystem, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("12345")
    small = await fs.open_text("f", stream_from=6)
    big = await fs.open_text("f", stream_from=5)
    missing = await fs.open_text("x")
    assert (small.text, big.text, missing.text) == ("12345", None, None)
    assert small.info == big.info
    assert missing.info is None


@pytest.mark.usefixtures("umask")
async def test_new_files_and_folders_honour_the_umask(fs: FileSystem, tmp_path: Path) -> None:
    for expected in (None, CreateIfAbsent()):
        name = "a/f" if expected else "b/f"
        await fs.write_text(await fs.resolve(name), "x", expected=expected)
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o640
        assert stat.S_IMODE((tmp_path / name).parent.stat().st_mode) == 0o750


async def test_existing_files_keep_mode_and_links(fs: FileSystem, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("old")
    (tmp_path / "run.sh").chmod(0o755)
    (tmp_path / "link").symlink_to("run.sh")
    await fs.write_text(await fs.resolve("link"), "new")
    await fs.edit_text(await fs.resolve("link"), FsEdit("new", "newer"))
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "run.sh").read_text() == "newer"
    assert stat.S_IMODE((tmp_path / "run.sh").stat().st_mode) == 0o755


@pytest.mark.skipif(os.getuid() == 0, reason="root may write to every file")
async def test_a_write_protected_file_is_not_replaced(fs: FileSystem, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("old")
    (tmp_path / "f").chmod(0o444)
    target = await fs.resolve("f")
    for attempt in (fs.write_text(target, "x"), fs.edit_text(target, FsEdit("old", "x"))):
        with pytest.raises(FsError) as caught:
            await attempt
        assert code_of(caught) == "FS_PERMISSION_DENIED"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
async def test_an_existing_file_keeps_its_owner(fs: FileSystem, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("old")
    os.chown(tmp_path / "f", 1234, 1234)
    await fs.write_text(await fs.resolve("f"), "new")
    assert (tmp_path / "f").stat().st_uid == 1234


async def test_create_if_absent_never_replaces(fs: FileSystem, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("theirs")
    with pytest.raises(FsError) as caught:
        await fs.write_text(await fs.resolve("f"), "mine", expected=CreateIfAbsent())
    assert code_of(caught) == "FS_NOT_OBSERVED"
    assert (tmp_path / "f").read_text() == "theirs"


@pytest.mark.parametrize("competitor", ["file", "link"])
def test_a_competitor_that_comes_late_survives(tmp_path: Path, competitor: str) -> None:
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)

    def compete() -> None:
        if competitor == "file":
            (tmp_path / "f").write_text("theirs")
        else:
            (tmp_path / "f").symlink_to("nowhere")

    try:
        with pytest.raises(FileExistsError):
            publish(Folder(fd, "f", "f"), b"mine", replaces=None, exclusive=True, commit=compete)
    finally:
        os.close(fd)
    assert names(tmp_path) == ["f"]
    assert (tmp_path / "f").is_symlink() or (tmp_path / "f").read_text() == "theirs"


@pytest.mark.parametrize(
    ("competitor", "expected"), [("file", "FS_NOT_OBSERVED"), ("folder", "FS_NOT_REGULAR_FILE")]
)
def test_a_competitor_is_named_for_what_it_is(
    tmp_path: Path, competitor: str, expected: str
) -> None:
    place = unfenced(FsTarget(f"{tmp_path}/f", f"{tmp_path}/f"))

    class Competitor(Stop):
        def check(self) -> None:
            (tmp_path / "f").mkdir() if competitor == "folder" else (tmp_path / "f").touch()

    with pytest.raises(FsError) as caught:
        change_write(place, "mine", CreateIfAbsent(), basis_max=100, stop=Competitor(None))
    assert code_of(caught) == expected
    assert names(tmp_path) == ["f"]


def test_an_abort_right_before_the_publication_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("old")
    stop = Stop(None)
    stop.cancelled = True
    for name in ("f", "g"):
        place = unfenced(FsTarget(f"{tmp_path}/{name}", f"{tmp_path}/{name}"))
        with pytest.raises(FsError) as caught:
            change_write(place, "new", None, basis_max=100, stop=stop)
        assert code_of(caught) == "FS_ABORTED"
    assert names(tmp_path) == ["f"]
    assert (tmp_path / "f").read_text() == "old"


async def test_a_dangling_link_is_preserved(fs: FileSystem, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("missing")
    target = await fs.resolve("link")
    for expected, code in ((CreateIfAbsent(), "FS_NOT_OBSERVED"), (None, "FS_NOT_REGULAR_FILE")):
        with pytest.raises(FsError) as caught:
            await fs.write_text(target, "x", expected=expected)
        assert code_of(caught) == code
    assert (tmp_path / "link").is_symlink()
    assert not (tmp_path / "missing").exists()


async def test_a_deleted_target_is_stale_and_stays_deleted(fs: FileSystem, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d/f").write_text("x")
    target = await fs.resolve("d/f")
    seen = ReplaceIfVersion(await version(fs, target))
    (tmp_path / "d/f").unlink()
    for _ in range(2):
        with pytest.raises(FsError) as caught:
            await fs.write_text(target, "y", expected=seen)
        assert code_of(caught) == "FS_STALE_VERSION"
        (tmp_path / "d").rmdir() if (tmp_path / "d").exists() else None
    assert not (tmp_path / "d").exists()
    with pytest.raises(FsError) as caught:
        await fs.edit_text(target, FsEdit("x", "y"))
    assert code_of(caught) == "FS_STALE_VERSION"


async def test_staleness_comes_before_matching(fs: FileSystem, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x")
    with pytest.raises(FsError) as caught:
        await fs.edit_text(
            await fs.resolve("f"), FsEdit("nowhere", "y"), expected=ReplaceIfVersion("old")
        )
    assert code_of(caught) == "FS_STALE_VERSION"


@pytest.mark.parametrize("operation", ["write", "edit"])
async def test_of_two_changes_of_one_version_one_wins(
    fs: FileSystem, tmp_path: Path, operation: str
) -> None:
    (tmp_path / "f").write_text("x")
    target = await fs.resolve("f")
    seen = ReplaceIfVersion(await version(fs, target))

    async def attempt(new: str) -> str:
        try:
            if operation == "write":
                await fs.write_text(target, new, expected=seen)
            else:
                await fs.edit_text(target, FsEdit("x", new), expected=seen)
        except FsError as error:
            return error.code
        return new

    outcomes = await asyncio.gather(*(attempt(new) for new in "abcd"))
    assert outcomes == ["a", *["FS_STALE_VERSION"] * 3]
    assert (tmp_path / "f").read_text() == "a"


async def test_a_chain_of_changes_needs_no_other_version(fs: FileSystem, tmp_path: Path) -> None:
    target = await fs.resolve("f")
    done = await fs.write_text(target, "a", expected=CreateIfAbsent())
    assert done.version == await version(fs, target)
    again = await fs.write_text(target, "b", expected=ReplaceIfVersion(done.version))
    edited = await fs.edit_text(target, FsEdit("b", "c"), expected=ReplaceIfVersion(again.version))
    assert edited.version == await version(fs, target)


def test_an_edit_does_not_lose_a_change_made_meanwhile(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x")
    place = unfenced(FsTarget(f"{tmp_path}/f", f"{tmp_path}/f"))

    class Meddler(Stop):
        def check(self) -> None:
            (tmp_path / "f").write_text("theirs")

    with pytest.raises(FsError) as caught:
        change_edit(place, FsEdit("x", "y"), None, basis_max=100, stop=Meddler(None))
    assert code_of(caught) == "FS_STALE_VERSION"
    assert (tmp_path / "f").read_text() == "theirs"


@pytest.mark.parametrize("data", [b"\xff\xfe", b"a\0b"])
async def test_binary_content_may_be_overwritten(
    fs: FileSystem, tmp_path: Path, data: bytes
) -> None:
    (tmp_path / "f").write_bytes(data)
    done = await fs.write_text(await fs.resolve("f"), "text")
    assert done == FsWritten("update", done.version, None, "text")


async def test_the_basis_is_limited_by_bytes_on_both_sides(fs: FileSystem, tmp_path: Path) -> None:
    target = await fs.resolve("f")
    await fs.write_text(target, "漢" * 33)
    assert (await fs.write_text(target, "x" * 99)).before == "漢" * 33
    assert (await fs.write_text(target, "漢" * 34)).before is None
    assert (await fs.write_text(target, "x")).before is None


async def test_a_rewrite_with_other_line_ends_has_a_comparable_basis(
    fs: FileSystem, tmp_path: Path
) -> None:
    (tmp_path / "f").write_bytes(b"a\r\nb\r\n")
    done = await fs.write_text(await fs.resolve("f"), "a\nc\n")
    assert (done.before, done.after) == ("a\nb\n", "a\nc\n")


@pytest.mark.parametrize("operation", ["write", "edit"])
async def test_a_byte_order_mark_survives(fs: FileSystem, tmp_path: Path, operation: str) -> None:
    (tmp_path / "f").write_bytes(b"\xef\xbb\xbfa\r\nb")
    target = await fs.resolve("f")
    if operation == "write":
        await fs.write_text(target, "a\r\nc")
    else:
        done = await fs.edit_text(target, FsEdit("b", "c"))
        assert done.before == "a\nb"
    assert (tmp_path / "f").read_bytes() == b"\xef\xbb\xbfa\r\nc"


async def test_a_failed_publication_leaves_nothing(fs: FileSystem, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("old")
    with pytest.raises(FsError):
        await fs.write_text(
            await fs.resolve("f"), "new", expected=ReplaceIfVersion("another version")
        )
    with pytest.raises(FsError):
        await fs.edit_text(await fs.resolve("f"), FsEdit("missing", "new"))
    assert names(tmp_path) == ["f"]
    assert (tmp_path / "f").read_text() == "old"


@pytest.mark.parametrize("name", ["漢字", "Ā.txt", "x" * 255, "-rf", "a\nb"])
async def test_unusual_names_work(fs: FileSystem, tmp_path: Path, name: str) -> None:
    target = await fs.resolve(name)
    if len(name.encode()) > 255:
        return
    await fs.write_text(target, "x", expected=CreateIfAbsent())
    await fs.edit_text(target, FsEdit("x", "y"))
    assert (tmp_path / name).read_text() == "y"


async def test_an_aborted_signal_ends_everything_before_it_starts(
    fs: FileSystem, tmp_path: Path
) -> None:
    (tmp_path / "g").write_text("x")
    new, old = await fs.resolve("f"), await fs.resolve("g")
    controller = AbortController()
    controller.abort()
    signal = controller.signal
    for attempt in (
        fs.resolve("f", signal=signal),
        fs.stat(old, signal=signal),
        fs.read_text(old, signal=signal),
        fs.open_text("g", signal=signal),
        fs.write_text(new, "x", signal=signal),
        fs.edit_text(old, FsEdit("x", "y"), signal=signal),
    ):
        with pytest.raises(FsError) as caught:
            await attempt
        assert code_of(caught) == "FS_ABORTED"
    assert not (tmp_path / "f").exists()
    assert (tmp_path / "g").read_text() == "x"


async def test_a_cancelled_operation_waits_for_its_thread() -> None:
    started, release = threading.Event(), threading.Event()
    seen: list[str] = []

    def work(stop: Stop) -> None:
        started.set()
        release.wait()
        with pytest.raises(FsError):
            stop.check()
        seen.append("ended")

    task = asyncio.create_task(run_blocking(work, None))
    await asyncio.to_thread(started.wait)
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    assert not task.done()
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["ended"]


async def test_locks_are_first_come_first_served_and_forgotten() -> None:
    locks, order = KeyedLocks(), list[int]()

    async def use(number: int) -> None:
        async with locks.hold("k"):
            await asyncio.sleep(0)
            order.append(number)
            if number == 1:
                raise ValueError

    results = await asyncio.gather(*map(use, range(4)), return_exceptions=True)
    assert order == [0, 1, 2, 3]
    assert isinstance(results[1], ValueError)
    assert len(locks) == 0


async def test_the_service_goes_with_its_plugin(root: Context) -> None:
    fiber = await root.plugin(LocalFileSystem)
    assert root.get(FileSystem) is not None
    await fiber.dispose()
    assert root.get(FileSystem) is None
