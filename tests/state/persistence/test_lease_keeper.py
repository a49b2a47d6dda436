"""Leases that are held: renewed in the background, and told when they are lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from state_logs import whole_turn

from dsh.state.persistence.artifact.store import ArtifactStore
from dsh.state.persistence.background import Tasks
from dsh.state.persistence.errors import SessionHeld
from dsh.state.persistence.jsonl.backend import JsonlBackend
from dsh.state.persistence.keeper import LeaseKeeper
from dsh.state.persistence.lease import Lease
from dsh.state.session.session import Session

LENGTH_S = 15


class Clock:
    now = 1_000_000

    def now_ms(self) -> int:
        return self.now

    def monotonic(self) -> float:
        return self.now / 1000


class Side:
    """One process: files, a backend, and what keeps its leases."""

    def __init__(self, root: Path, clock: Clock, lease_s: float = LENGTH_S) -> None:
        self.files = ArtifactStore(root, lease_s=lease_s, clock=clock)
        self.backend = JsonlBackend(self.files, lease_s)
        self.tasks = Tasks()
        self.keeper = LeaseKeeper(self.backend, self.tasks)

    async def hold(self) -> Lease:
        lease = await self.backend.hold("s")
        assert lease is not None
        self.keeper.keep(lease)
        return lease

    async def close(self) -> None:
        await self.keeper.close()
        await self.tasks.join()
        await self.backend.close()


def lease_file(root: Path) -> Path:
    return next(root.rglob("session.lease"))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def one(tmp_path: Path, clock: Clock) -> AsyncIterator[Side]:
    session = Session.create("s")
    whole_turn(session)
    ArtifactStore(tmp_path).create(session.header, session.events)
    side = Side(tmp_path, clock)
    yield side
    await side.close()


@pytest.fixture
async def two(tmp_path: Path, clock: Clock) -> AsyncIterator[Side]:
    side = Side(tmp_path, clock)
    yield side
    await side.close()


async def test_a_renewed_lease_lasts_on(clock: Clock, one: Side, two: Side) -> None:
    await one.hold()
    for _ in range(5):
        clock.now += 14_000
        await one.keeper.renew()
    with pytest.raises(SessionHeld):
        await two.hold()


async def test_a_lost_lease_is_told_once_and_kept_no_longer(
    clock: Clock, one: Side, two: Side, caplog: pytest.LogCaptureFixture
) -> None:
    await one.hold()
    clock.now += 15_000
    await two.hold()
    with caplog.at_level(logging.WARNING):
        await one.keeper.renew()
        await one.keeper.renew()
    assert caplog.text.count("was taken over") == 1
    clock.now += 15_000
    await one.hold()


async def test_a_lease_that_was_given_up_is_not_renewed(clock: Clock, one: Side, two: Side) -> None:
    await one.keeper.give_up(await one.hold())
    await two.hold()
    await one.keeper.renew()
    with pytest.raises(SessionHeld):
        await one.hold()


async def test_renewals_come_by_themselves_well_before_the_end(
    tmp_path: Path, clock: Clock, one: Side
) -> None:
    side = Side(tmp_path, clock, lease_s=0.03)
    lease = await side.hold()
    path = lease_file(tmp_path)
    before = path.read_bytes()
    clock.now += 1
    async with asyncio.timeout(5):
        while path.read_bytes() == before:  # noqa: ASYNC110 - a file is watched
            await asyncio.sleep(0.002)
    await side.keeper.give_up(lease)
    await side.close()


async def test_a_renewal_that_fails_is_told_and_tried_again(
    tmp_path: Path, clock: Clock, one: Side, caplog: pytest.LogCaptureFixture
) -> None:
    side = Side(tmp_path, clock, lease_s=0.03)
    await side.hold()
    path = lease_file(tmp_path)
    moved = path.with_name("moved")
    path.rename(moved)
    path.mkdir()
    with caplog.at_level(logging.WARNING):
        async with asyncio.timeout(5):
            while "could not be renewed" not in caplog.text:  # noqa: ASYNC110 - a log is watched
                await asyncio.sleep(0.002)
    path.rmdir()
    moved.rename(path)
    before = path.read_bytes()
    clock.now += 1
    async with asyncio.timeout(5):
        while path.read_bytes() == before:  # noqa: ASYNC110 - a file is watched
            await asyncio.sleep(0.002)
    assert caplog.text.count("could not be renewed") == 1
    await side.close()
