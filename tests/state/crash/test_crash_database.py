"""A database whose journal or main file ends early, as a crash of the machine may leave it.

The files are copied while they are open, so nothing is tidied up at the end of a process.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

import pytest
from crash_media import DatabaseCrash, Rows

from dsh.base.errors import DshError
from dsh.state.session.repair import interrupted_turn_closers
from dsh.testing.persistence.logs import whole_turn
from dsh.testing.persistence.medium import Host

CHILD = Path(__file__).with_name("database_child.py")
_PAGE = 4096
_WAL_HEAD = 32
_FRAME_HEAD = 24
_FRAME = _FRAME_HEAD + _PAGE


class Crashed(NamedTuple):
    """Files of a database that was in use."""

    folder: Path
    commits: list[int]
    """How many events there were after each commit."""
    rows: Rows
    """The rows of these events, as they are stored."""

    def again(self, folder: Path) -> DatabaseCrash:
        """Return a copy."""
        shutil.copytree(self.folder, folder)
        return DatabaseCrash(folder / "sessions.db", "wal")


def journal_of(path: Path) -> Path:
    """Return the journal of a database."""
    return path.with_name(f"{path.name}-wal")


@pytest.fixture
def crashed(tmp_path: Path) -> Crashed:
    """What a writer left that was killed while all of its commits were in the journal."""
    path = tmp_path / "live" / "sessions.db"
    environment = {**os.environ, "PYTHONPATH": str(CHILD.parents[1])}
    command = [sys.executable, str(CHILD), str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as child:
        assert child.stdout is not None
        commits = json.loads(child.stdout.readline())
        child.kill()
    reading = tmp_path / "reading"
    shutil.copytree(path.parent, reading)
    rows = DatabaseCrash(reading / path.name, "wal").stored("s")
    return Crashed(path.parent, commits, rows)


def journal_cuts(size: int) -> Iterator[int]:
    """Yield each border of a frame, and a place in each frame that is another one each time."""
    yield from (0, 1, _WAL_HEAD - 1)
    inside = cycle((1, _FRAME_HEAD - 1, _FRAME_HEAD, 1777, _FRAME - 1))
    for at in range(_WAL_HEAD, size, _FRAME):
        yield from (at, at + next(inside))
    yield size


async def check(media: DatabaseCrash, crashed: Crashed) -> int:
    """Open, repair once and go on; return how many events were still there."""
    host = await Host(media.medium).open()
    if not await host.persistence.all():
        session = host.store.create("s", meta={"cwd": "/w"})
        whole_turn(session)
        await host.flush(session)
        await host.close()
        return 0
    survived = await host.stored("s")
    before = media.stored("s")
    assert before == crashed.rows[: len(before)]
    seen = await host.persistence.inspect("s")
    assert media.stored("s") == before
    assert interrupted_turn_closers(seen.events) == []
    assert (await host.persistence.load("s")).events == seen.events
    repaired = media.stored("s")
    assert repaired[: len(before)] == before
    await host.close()
    again = await Host(media.medium).open()
    assert (await again.persistence.load("s")).events == seen.events
    assert media.stored("s") == repaired
    session = await again.resume("s")
    whole_turn(session, 9)
    await again.flush(session)
    assert media.stored("s")[: len(repaired)] == repaired
    await again.close()
    return len(survived)


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("end", ["cut", "zeros", "noise"])
async def test_a_cut_journal_keeps_every_commit_before_the_cut(
    tmp_path: Path, crashed: Crashed, end: str
) -> None:
    data = journal_of(crashed.folder / "sessions.db").read_bytes()
    places = [*journal_cuts(len(data))]
    if end != "cut":
        places = places[3::4]
    survived = []
    for place in places:
        media = crashed.again(tmp_path / f"{place}")
        rest = len(data) - place
        filler = {"cut": b"", "zeros": bytes(rest), "noise": b"\xa5" * rest}[end]
        journal_of(media.path).write_bytes(data[:place] + filler)
        survived.append(await check(media, crashed))
    assert survived == sorted(survived)
    assert set(survived) <= set(crashed.commits)
    if end == "cut":
        assert set(survived) == set(crashed.commits)


@pytest.mark.timeout(60)
async def test_leases_that_lost_their_end_cost_no_session(tmp_path: Path, crashed: Crashed) -> None:
    journal = journal_of(crashed.folder / "sessions.db.leases").name
    data = (crashed.folder / journal).read_bytes()
    for place in list(journal_cuts(len(data)))[::3]:
        media = crashed.again(tmp_path / f"{place}")
        (media.path.parent / journal).write_bytes(data[:place])
        assert await check(media, crashed) == crashed.commits[-1]


@pytest.mark.timeout(60)
async def test_a_crash_while_the_journal_is_copied_into_the_database_costs_nothing(
    tmp_path: Path, crashed: Crashed
) -> None:
    whole = crashed.again(tmp_path / "whole").path
    with closing(sqlite3.connect(whole)) as db:
        db.execute("PRAGMA wal_checkpoint(PASSIVE)")
        data = whole.read_bytes()
    for place in [*range(_PAGE, len(data) + 1, _PAGE), _PAGE + 1, 2 * _PAGE - 1, len(data) - 7]:
        media = crashed.again(tmp_path / f"{place}")
        media.path.write_bytes(data[:place])
        assert await check(media, crashed) == crashed.commits[-1]


@pytest.mark.timeout(60)
async def test_a_database_that_lost_its_end_is_refused_or_whole_and_never_overwritten(
    tmp_path: Path, crashed: Crashed
) -> None:
    tidy = crashed.again(tmp_path / "tidy").path
    with closing(sqlite3.connect(tidy)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    data = tidy.read_bytes()
    refused = 0
    for place in [1, 50, 99, *range(_PAGE, len(data), _PAGE), _PAGE + 1, len(data) - 7]:
        media = crashed.again(tmp_path / f"{place}")
        media.path.write_bytes(data[:place])
        journal_of(media.path).unlink()
        try:
            host = await Host(media.medium).open()
        except DshError:
            refused += 1
            assert media.path.read_bytes() == data[:place]
            continue
        try:
            await host.stored("s")
        except DshError:
            refused += 1
            with pytest.raises(DshError):
                await host.resume("s")
        else:
            assert media.stored("s") == crashed.rows
        await host.close()
        assert media.path.read_bytes()[:place][100:] == data[100:place]
    assert refused


async def test_an_empty_database_beside_a_full_journal_is_refused(
    tmp_path: Path, crashed: Crashed
) -> None:
    media = crashed.again(tmp_path / "again")
    journal = journal_of(media.path)
    data = journal.read_bytes()
    media.path.write_bytes(b"")
    with pytest.raises(DshError):
        await Host(media.medium).open()
    assert journal.read_bytes() == data
