"""What a log goes through: damaged bytes, full disks, removed files, other processes, kills."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from state_home import HERE, Home
from state_logs import answer, call, open_turn, reply, say, whole_turn

from dsh.base.json import dumps, loads
from dsh.kernel import Context
from dsh.state.persistence.artifact.aside import kept_aside
from dsh.state.persistence.artifact.layout import Encoding, find_artifact
from dsh.state.persistence.artifact.store import ArtifactStore
from dsh.state.persistence.errors import (
    PersistenceError,
    SessionConflict,
    SessionPersistenceCorruptionError,
)
from dsh.state.session.repair import interrupted_turn_closers
from dsh.state.session.session import Session

both = pytest.mark.parametrize("encoding", list(Encoding))


def a_small_log(folder: Path, encoding: Encoding) -> tuple[ArtifactStore, Path]:
    session = Session.create("s", header={"version": 0, "id": "s", "createdAt": 1})
    whole_turn(session, words=3)
    first = session.seq
    open_turn(session, 2)
    reply(session, calls={"c": "bash", "d": "read"})
    answer(session, call(session, "c"))
    call(session, "d")
    store = ArtifactStore(folder, encoding, sync=lambda fd: None)
    position = store.create(session.header, session.events[:first])
    position = store.append("s", position, session.events[first:-1])
    return store, store.append("s", position, session.events[-1:]).path


def damaged(data: bytes) -> Iterator[bytes]:
    for at in range(len(data)):
        for byte in {data[at] ^ 1, 0} - {data[at]}:
            yield data[:at] + bytes([byte]) + data[at + 1 :]
        if at % 3 == 0:
            yield data[:at] + data[at : at + 1] + data[at:]
            yield data[:at] + bytes(len(data) - at)


@pytest.mark.timeout(120)
@both
def test_whatever_byte_is_wrong_a_log_opens_or_says_why(tmp_path: Path, encoding: Encoding) -> None:
    store, path = a_small_log(tmp_path, encoding)
    for data in damaged(path.read_bytes()):
        path.write_bytes(data)
        try:
            stored = store.load("s")
        except PersistenceError:
            assert path.read_bytes() == data
            continue
        assert stored is not None
        closers = interrupted_turn_closers(stored.events)
        store.repair(stored, closers)

        kept = len(data) if stored.tail is None else stored.tail.keep
        assert path.read_bytes().startswith(data[:kept])
        aside = [lost.read_bytes() for lost in kept_aside(path)]
        assert aside == ([] if stored.tail is None else [data[kept:]])
        for lost in kept_aside(path):
            lost.unlink()
        whole = store.load("s")
        assert whole is not None
        assert whole.tail is None
        assert whole.events == [*stored.events, *closers]
        assert interrupted_turn_closers(whole.events) == []


@both
def test_a_log_that_grows_while_it_is_read_is_read_again(
    tmp_path: Path, encoding: Encoding, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, path = a_small_log(tmp_path, encoding)
    before = store.load("s")
    assert before is not None
    calls = 0

    def fstat(fd: int) -> os.stat_result:
        nonlocal calls
        calls += 1
        if calls == 2:
            closers = interrupted_turn_closers(before.events)
            store.append("s", before.position, closers)
        return os.stat(fd)

    monkeypatch.setattr(os, "fstat", fstat)
    after = store.load("s")
    assert after is not None
    assert len(after.events) > len(before.events)
    assert interrupted_turn_closers(after.events) == []
    assert after.position.size == path.stat().st_size


@pytest.mark.parametrize(
    ("type", "data"),
    [
        ("turn/start", {}),
        ("turn/start", {"turn": -1}),
        ("turn/end", {"turn": 1}),
        ("step/start", {"turn": 1}),
        ("step/end", {"step": 1}),
        ("tool/call", {"turn": 1, "step": 1, "callId": ""}),
    ],
)
def test_brackets_that_repair_relies_on_must_be_whole(
    tmp_path: Path, type: str, data: dict[str, Any]
) -> None:
    store, path = a_small_log(tmp_path, Encoding.PLAIN)
    log = store.load("s")
    assert log is not None
    seq = len(log.events)
    with path.open("ab") as file:
        file.write(dumps({"type": type, "seq": seq, "time": 1, "data": data}) + b"\n")
    damaged_log = store.load("s")
    assert damaged_log is not None
    assert damaged_log.tail is not None
    assert damaged_log.events == log.events
    with pytest.raises(ValueError, match=type):
        Session.create("x", [{"type": type, "seq": 0, "time": 1, "data": data}])


async def test_nothing_is_written_to_a_log_that_cannot_be_used(home: Home) -> None:
    _, path = a_small_log(home.folder, Encoding.PLAIN)
    lines = path.read_bytes().splitlines(keepends=True)
    event = loads(lines[3])
    assert event.pop("surfaceOp") == "append"
    lines[3] = dumps(event) + b"\n"
    path.write_bytes(b"".join(lines))

    with pytest.raises(SessionPersistenceCorruptionError, match=r"seed event 2 .*session\.jsonl"):
        await home.persistence.prepare("s")

    assert path.read_bytes() == b"".join(lines)
    free = ArtifactStore(home.folder)
    free.hold("s")
    free.close()


@contextmanager
def files_no_longer_than(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("compression", ["zstd", "none"])
async def test_a_full_disk_costs_nothing(root: Context, tmp_path: Path, compression: str) -> None:
    home = await Home(root, tmp_path / "s", compression=compression).open()
    session = home.store.create("s")
    with files_no_longer_than(50):
        whole_turn(session)
        with pytest.raises(OSError, match="too large"):
            await home.store.flush(session)
        assert home.files() == []
    await home.store.flush(session)
    before = home.persistence.locate(session.header).path.read_bytes()

    with files_no_longer_than(len(before) + 30):
        whole_turn(session, 2)
        for _ in range(2):
            with pytest.raises(OSError, match="too large"):
                await home.store.flush(session)
        assert home.persistence.locate(session.header).path.read_bytes() == before
        whole_turn(session, 3)

    await home.store.flush(session)
    assert home.stored("s") == list(session.events)


async def test_what_could_not_be_taken_back_is_taken_back_by_the_next_write(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = home.store.create("s")
    whole_turn(session)
    await home.store.flush(session)
    path = home.persistence.locate(session.header).path
    before = path.read_bytes()

    def broken(fd: int, size: int) -> None:
        raise OSError(5, "input/output error")

    whole_turn(session, 2)
    with monkeypatch.context() as disk, files_no_longer_than(len(before) + 30):
        disk.setattr(os, "ftruncate", broken)
        with pytest.raises(ExceptionGroup, match="could not be taken back"):
            await home.store.flush(session)
        assert len(path.read_bytes()) == len(before) + 30
        with pytest.raises(OSError, match="input/output"):
            await home.store.flush(session)

    await home.store.flush(session)
    assert path.read_bytes().startswith(before)
    assert home.stored("s") == list(session.events)


@both
def test_only_our_own_rest_is_taken_back(tmp_path: Path, encoding: Encoding) -> None:
    fails = [True]

    def sync(fd: int) -> None:
        if fails.pop() if fails else False:
            raise OSError(5, "input/output error")

    _, path = a_small_log(tmp_path, encoding)
    store = ArtifactStore(tmp_path, encoding, sync=sync)
    log = store.load("s")
    assert log is not None
    store.hold("s")
    closers = interrupted_turn_closers(log.events)
    with pytest.raises(OSError, match="input/output"):
        store.append("s", log.position, closers)
    with path.open("ab") as other:
        other.write(b"\n")
    before = path.read_bytes()

    with pytest.raises(SessionConflict, match="written by another process"):
        store.append("s", log.position, closers)

    assert path.read_bytes() == before
    store.close()


async def test_a_log_that_is_removed_while_it_grows_is_told_and_kept_in_memory(home: Home) -> None:
    session = home.store.create("s")
    whole_turn(session)
    await home.store.flush(session)
    shutil.rmtree(home.folder)
    whole_turn(session, 2)

    for _ in range(2):
        with pytest.raises(SessionConflict, match="was removed from disk"):
            await home.store.flush(session)

    assert session.seq == 20
    assert not home.folder.exists()
    with pytest.raises(ExceptionGroup, match="jsonl dispose failed"):
        await home.persistence._coordinator.close()


async def test_a_flush_that_is_cancelled_doubles_and_loses_nothing(home: Home) -> None:
    session = home.store.create("s")
    for turn in range(1, 30):
        whole_turn(session, turn)
        flush = asyncio.ensure_future(home.store.flush(session))
        for _ in range(turn % 7):
            await asyncio.sleep(0)
        flush.cancel()
        await asyncio.wait({flush})
    await home.store.flush(session)
    assert home.stored("s") == list(session.events)


@pytest.mark.parametrize("steps", range(6))
async def test_unloading_during_a_flush_loses_nothing(home: Home, steps: int) -> None:
    session = home.store.create("s")
    whole_turn(session)
    flush = asyncio.ensure_future(home.store.flush(session))
    for _ in range(steps):
        await asyncio.sleep(0)
    whole_turn(session, 2)
    await home.fiber.dispose()
    await flush
    assert home.stored("s") == list(session.events)


@pytest.mark.parametrize(
    "cwd", ["/", "/a b/\u4e2d~", "/x\udcff", "/line\nbreak", "/" + "deep/" * 200, "C:\\work", "/.."]
)
async def test_any_working_directory_has_its_sessions(home: Home, again: Home, cwd: str) -> None:
    session = home.store.create("s", meta={"cwd": cwd})
    whole_turn(session)
    await home.fiber.dispose()
    newest = await again.persistence.newest(cwd)
    assert newest is not None
    assert newest["cwd"] == cwd
    assert await again.persistence.newest(cwd + "/other") is None
    resumed = await again.resume("s")
    assert resumed.events[: session.seq] == session.events


_ENDING = """
import asyncio, sys
from state_logs import whole_turn
from dsh.kernel import Context
from dsh.state.persistence.jsonl import JsonlPersistence
from dsh.state.session.store import LocalSessionStore

async def main():
    root = Context()
    await root.plugin(LocalSessionStore)
    await root.plugin(JsonlPersistence, {"root": sys.argv[1]})
    store = root.require(LocalSessionStore)
    session = store.create("s")
    whole_turn(session)
    await store.flush(session)
    print(session.seq, flush=True)
    whole_turn(session, 2)
    flush = asyncio.ensure_future(store.flush(session))
    await asyncio.sleep(0)
    await asyncio.sleep(0)

asyncio.run(main())
"""


async def test_a_loop_that_closes_under_a_write_ends_and_leaves_a_whole_log(home: Home) -> None:
    env = {**os.environ, "PYTHONPATH": str(HERE)}
    command = [sys.executable, "-c", _ENDING, str(home.folder)]
    run = partial(subprocess.run, env=env, capture_output=True, text=True, check=True, timeout=15)
    done = await asyncio.to_thread(run, command)
    log = ArtifactStore(home.folder).load("s")
    assert log is not None
    assert log.tail is None
    assert len(log.events) >= int(done.stdout)


@both
def test_an_event_of_fifty_megabytes_comes_back(tmp_path: Path, encoding: Encoding) -> None:
    session = Session.create("s")
    whole_turn(session)
    say(session, "é, null\n" * 5_500_000)
    store = ArtifactStore(tmp_path, encoding)
    store.create(session.header, session.events)
    assert find_artifact(tmp_path, "s") is not None
    log = store.load("s")
    assert log is not None
    assert log.events == list(session.events)
