"""A disk that fails in the middle of a turn: the turn fails, and nothing else does."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from crash_media import DatabaseCrash, FileCrash
from loop_harness import assert_balanced
from working_agents import WorkingAgents

from dsh.base.files import Disk, writing_through
from dsh.execution.agent.service import Agent
from dsh.kernel import Context
from dsh.state.persistence.artifact.aside import kept_aside
from dsh.state.persistence.artifact.layout import find_artifact
from dsh.state.persistence.artifact.store import ArtifactStore
from dsh.state.persistence.errors import SessionHeld
from dsh.testing.faults import Operation, faulty_disk
from dsh.testing.persistence.logs import interrupted_turn, whole_turn
from dsh.testing.persistence.medium import Host


class Broken(NamedTuple):
    """How the disk fails."""

    operation: Operation
    error: int
    room: int = 0


IN_A_TURN = [
    Broken("write", errno.ENOSPC),
    Broken("write", errno.ENOSPC, room=40),
    Broken("write", errno.EIO),
    Broken("sync", errno.EIO),
    Broken("open", errno.EROFS),
    Broken("open", errno.EACCES),
]
AT_BIRTH = [*IN_A_TURN, Broken("mkdir", errno.EROFS), Broken("link", errno.EIO)]


def named(broken: Broken) -> str:
    words = [broken.operation, errno.errorcode[broken.error]]
    return "-".join([*words, str(broken.room)] if broken.room else words)


@pytest.fixture
def sessions(tmp_path: Path) -> Path:
    return tmp_path / "sessions"


@pytest.fixture(params=["zstd", "none"])
async def agents(request: pytest.FixtureRequest, root: Context, sessions: Path) -> WorkingAgents:
    return await WorkingAgents(root, FileCrash(sessions, request.param).medium).open()


async def fails_while_others_go_on(
    agents: WorkingAgents, victim: Agent, breaks: Callable[[], object], says: str
) -> None:
    """Break the disk of a session in its second step, while two others are in theirs."""
    failed = asyncio.Event()

    async def break_it() -> None:
        breaks()

    others = [await agents.loop.agent(name) for name in ("other", "third")]
    agents.during["victim", 2] = break_it
    for other in others:
        agents.during[other.session.id, 2] = failed.wait
    turns = [asyncio.ensure_future(agents.turn(other)) for other in others]
    try:
        reason = await agents.turn(victim)
    finally:
        failed.set()
    assert [await turn for turn in turns] == [{"kind": "completed"}] * 2
    assert not agents.during
    failed_with(reason, says)
    assert_balanced(victim.session)
    for other in others:
        await agents.flush(other)
        assert await agents.stored(other.session.id) == list(other.session.events)


def failed_with(reason: dict[str, object], says: str) -> None:
    assert reason["kind"] == "error"
    assert says in str(reason), reason


async def keeps_what_it_acknowledged(agents: WorkingAgents, agent: Agent) -> None:
    """What a tool could rely on is stored, and what is stored is the log."""
    acknowledged = agents.acknowledged.get(agent.session.id, 0)
    stored = await agents.stored(agent.session.id) if acknowledged else []
    assert len(stored) >= acknowledged
    assert stored == list(agent.session.events[: len(stored)])


async def goes_on(agents: WorkingAgents, agent: Agent) -> None:
    """The next turn completes, and then all is stored."""
    assert await agents.turn(agent) == {"kind": "completed"}
    await agents.flush(agent)
    assert await agents.stored(agent.session.id) == list(agent.session.events)
    assert_balanced(agent.session)


@pytest.mark.parametrize("broken", IN_A_TURN, ids=named)
async def test_a_turn_fails_with_what_the_system_says_and_a_later_one_goes_on(
    agents: WorkingAgents, sessions: Path, broken: Broken
) -> None:
    victim = await agents.loop.agent("victim")
    assert await agents.turn(victim) == {"kind": "completed"}
    path = find_artifact(sessions, "victim")
    assert path is not None
    reason = os.strerror(broken.error)
    with faulty_disk() as disk:
        fails = partial(disk.fail, broken.operation, broken.error, below=path.parent)
        await fails_while_others_go_on(agents, victim, partial(fails, room=broken.room), reason)
        await keeps_what_it_acknowledged(agents, victim)
        asked = len(agents.model.requests)
        failed_with(await agents.turn(victim), reason)
        assert len(agents.model.requests) == asked
        await keeps_what_it_acknowledged(agents, victim)

        disk.mend()
        await goes_on(agents, victim)


@pytest.mark.parametrize("broken", AT_BIRTH, ids=named)
async def test_a_session_that_cannot_be_stored_asks_no_model_until_it_can(
    agents: WorkingAgents, sessions: Path, broken: Broken
) -> None:
    victim = await agents.loop.agent("victim", meta={"cwd": "/victim"})
    other = await agents.loop.agent("other", meta={"cwd": "/other"})
    reason = os.strerror(broken.error)
    with faulty_disk() as disk:
        below = sessions / "--victim--"
        disk.fail(broken.operation, broken.error, below=below, room=broken.room)
        failed_with(await agents.turn(victim), reason)
        assert agents.model.requests == []
        assert find_artifact(sessions, "victim") is None
        assert_balanced(victim.session)
        await goes_on(agents, other)
        disk.mend()
        await goes_on(agents, victim)


async def test_a_write_that_cannot_be_taken_back_is_taken_back_later(
    agents: WorkingAgents, sessions: Path
) -> None:
    victim = await agents.loop.agent("victim")
    await goes_on(agents, victim)
    path = find_artifact(sessions, "victim")
    assert path is not None
    with faulty_disk() as disk:

        def breaks() -> None:
            disk.fail("write", errno.ENOSPC, below=path, room=30)
            disk.fail("truncate", errno.EIO, below=path)

        await fails_while_others_go_on(agents, victim, breaks, os.strerror(errno.ENOSPC))
        await keeps_what_it_acknowledged(agents, victim)
        disk.mend()
        await goes_on(agents, victim)


async def test_a_session_whose_folder_is_removed_ends_alone(
    agents: WorkingAgents, sessions: Path
) -> None:
    victim = await agents.loop.agent("victim", meta={"cwd": "/victim"})
    await goes_on(agents, victim)
    path = find_artifact(sessions, "victim")
    assert path is not None
    await fails_while_others_go_on(
        agents, victim, partial(shutil.rmtree, path.parent), "was removed from disk"
    )
    assert find_artifact(sessions, "victim") is None
    await goes_on(agents, await agents.loop.agent("next", meta={"cwd": "/victim"}))
    await agents.ends_with_something_unwritten()
    await agents.mount()
    await goes_on(agents, victim)


async def test_after_the_whole_root_is_removed_new_sessions_are_stored_and_held(
    agents: WorkingAgents, sessions: Path
) -> None:
    victim = await agents.loop.agent("victim")
    await goes_on(agents, victim)
    shutil.rmtree(sessions)
    failed_with(await agents.turn(victim), "was removed from disk")
    await goes_on(agents, await agents.loop.agent("next"))
    with pytest.raises(SessionHeld):
        await asyncio.to_thread(ArtifactStore(sessions).hold, "next")
    await agents.ends_with_something_unwritten()
    await agents.mount()
    await goes_on(agents, victim)


async def test_a_database_that_is_removed_takes_no_more_until_it_is_mounted_again(
    root: Context, tmp_path: Path
) -> None:
    media = DatabaseCrash(tmp_path / "store" / "sessions.db", "wal")
    agents = await WorkingAgents(root, media.medium).open()
    one, two = await agents.loop.agent("one"), await agents.loop.agent("two")
    await goes_on(agents, one)

    async def remove() -> None:
        shutil.rmtree(media.path.parent)

    agents.during["one", 2] = remove
    failed_with(await agents.turn(one), "it was removed")
    failed_with(await agents.turn(two), "it was removed")
    assert not media.path.parent.exists()
    await agents.ends_with_something_unwritten()
    await agents.mount()
    await goes_on(agents, one)
    await goes_on(agents, two)


@pytest.mark.parametrize("operation", ["open", "write", "sync", "truncate"])
@pytest.mark.parametrize("compression", ["zstd", "none"])
async def test_a_repair_that_fails_at_any_step_is_completed_by_the_next(
    tmp_path: Path, compression: str, operation: Operation
) -> None:
    origin = FileCrash(tmp_path / "origin", compression)
    writer = await Host(origin.medium).open()
    session = writer.store.create("s")
    for write in (whole_turn, interrupted_turn):
        write(session, 1)
        await writer.flush(session)
    await writer.close()
    path = find_artifact(origin.root, "s")
    assert path is not None
    torn = path.read_bytes()[:-5]
    path.write_bytes(torn)
    passes, has_failed = 0, True
    while has_failed:
        media = FileCrash(tmp_path / f"{passes}", compression)
        shutil.copytree(origin.root, media.root)
        file = media.root / path.relative_to(origin.root)
        host = await Host(media.medium).open()
        with faulty_disk() as disk:
            fault = disk.fail(operation, errno.EIO, below=media.root, passes=passes, times=1)
            with suppress(OSError):
                await host.persistence.load("s")
            has_failed = fault.hits > 0
        await host.persistence.load("s")
        kept = b"".join(each.read_bytes() for each in kept_aside(file))
        assert torn.endswith(kept)
        assert file.read_bytes().startswith(torn[: len(torn) - len(kept)])
        assert await host.stored("s") == list((await host.persistence.inspect("s")).events)
        await host.close()
        passes += 1
    assert passes > 1


class HangingDisk(Disk):
    """Does not come back from making anything durable below a folder until it is let go."""

    def __init__(self, below: Path) -> None:
        self.hangs = threading.Event()
        self.go = threading.Event()
        self._below = below

    def sync(self, fd: int) -> None:
        if Path(f"/proc/self/fd/{fd}").readlink().is_relative_to(self._below):
            self.hangs.set()
            self.go.wait()
        super().sync(fd)


async def test_a_disk_that_hangs_holds_up_its_session_alone(
    agents: WorkingAgents, sessions: Path
) -> None:
    victim = await agents.loop.agent("victim", meta={"cwd": "/victim"})
    other = await agents.loop.agent("other", meta={"cwd": "/other"})
    disk = HangingDisk(sessions / "--victim--")
    with writing_through(disk):
        turn = asyncio.ensure_future(agents.turn(victim))
        try:
            await asyncio.to_thread(disk.hangs.wait)
            await goes_on(agents, other)
            assert not turn.done()
            assert agents.acknowledged.keys() == {"other"}
        finally:
            disk.go.set()
        assert await turn == {"kind": "completed"}
    await goes_on(agents, victim)


@pytest.mark.slow
@pytest.mark.timeout(90)
@pytest.mark.parametrize("seed", range(int(os.environ.get("DSH_FAULT_SEEDS", "3"))))
async def test_whatever_fails_whenever_nothing_is_lost_and_all_goes_on(
    agents: WorkingAgents, sessions: Path, seed: int
) -> None:
    dice = random.Random(seed)
    several = [await agents.loop.agent(f"s{n}", meta={"cwd": f"/{n % 2}"}) for n in range(4)]
    operations: list[Operation] = ["open", "write", "sync", "truncate", "link", "mkdir"]
    for _ in range(6):
        with faulty_disk() as disk:
            for _ in range(dice.randrange(1, 5)):
                disk.fail(
                    dice.choice(operations),
                    dice.choice([errno.EIO, errno.ENOSPC, errno.EROFS]),
                    below=dice.choice([sessions, sessions / "--0--"]),
                    room=dice.choice([0, 0, 30]),
                    passes=dice.randrange(25),
                    times=dice.randrange(1, 6),
                )
            kinds = [reason["kind"] for reason in await asyncio.gather(*map(agents.turn, several))]
            assert set(kinds) <= {"completed", "error"}
            for agent in several:
                await keeps_what_it_acknowledged(agents, agent)
    for agent in several:
        await goes_on(agents, agent)
    await agents.provider.dispose()
    host = await Host(agents.medium).open()
    for agent in several:
        resumed = await host.resume(agent.session.id)
        assert resumed.events[: agent.session.seq] == agent.session.events
    await host.close()
