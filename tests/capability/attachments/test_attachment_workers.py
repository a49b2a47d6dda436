"""Bounded threads in the order of asking, and work that callers share."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from dsh.base.signal import AbortedError
from dsh.capability.attachments.workers import Lane, SharedWork, Stop


@pytest.fixture
async def lane() -> AsyncIterator[Lane]:
    lane = Lane("test-lane", 2)
    yield lane
    await lane.close()


async def test_no_more_calls_run_than_there_are_threads_and_in_their_order(lane: Lane) -> None:
    started: list[int] = []
    gate = threading.Semaphore(0)
    both = threading.Barrier(3)

    def call(number: int) -> None:
        started.append(number)
        if number < 2:
            both.wait(10)
        assert gate.acquire(timeout=10)

    calls = [asyncio.create_task(lane.run(call, number)) for number in range(6)]
    await asyncio.to_thread(both.wait, 10)
    assert sorted(started) == [0, 1]
    for _ in calls:
        gate.release()
    await asyncio.gather(*calls)
    assert sorted(started[:2]) + started[2:] == [0, 1, 2, 3, 4, 5]


async def test_a_queued_call_whose_caller_is_cancelled_never_runs(lane: Lane) -> None:
    gate, ran = threading.Event(), []
    busy = [asyncio.create_task(lane.run(gate.wait, 10)) for _ in range(2)]
    queued = asyncio.create_task(lane.run(ran.append, "ran"))
    await asyncio.sleep(0)
    queued.cancel()
    with pytest.raises(asyncio.CancelledError):
        await queued
    gate.set()
    await asyncio.gather(*busy)
    assert ran == []


async def test_a_running_call_ends_at_its_next_check_once_nobody_waits(lane: Lane) -> None:
    running, stopped = threading.Event(), threading.Event()

    def call(stop: Stop) -> None:
        running.set()
        try:
            while True:
                stop.check()
        except AbortedError:
            stopped.set()
            raise

    task = asyncio.create_task(lane.run_stoppable(call))
    assert await asyncio.to_thread(running.wait, 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(stopped.wait, 10)


class Job:
    """Work that waits to be let go, and counts its runs."""

    def __init__(self) -> None:
        self.runs = 0
        self.started = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.gate = asyncio.Event()

    async def __call__(self) -> int:
        self.runs += 1
        self.started.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return self.runs


async def asking(shared: SharedWork[int], job: Job, count: int) -> list[asyncio.Task[int]]:
    waiters = [asyncio.create_task(shared.run("key", job)) for _ in range(count)]
    await job.started.wait()
    return waiters


async def test_callers_at_the_same_time_share_one_run() -> None:
    shared, job = SharedWork[int]("test"), Job()
    waiters = await asking(shared, job, 5)
    job.gate.set()
    assert await asyncio.gather(*waiters) == [1] * 5
    assert await shared.run("key", job) == 2


async def test_work_goes_on_while_somebody_waits_for_it() -> None:
    shared, job = SharedWork[int]("test"), Job()
    first, *others = await asking(shared, job, 3)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    job.gate.set()
    assert await asyncio.gather(*others) == [1, 1]


async def test_work_is_cancelled_when_the_last_waiter_leaves() -> None:
    shared, job = SharedWork[int]("test"), Job()
    for waiter in await asking(shared, job, 3):
        waiter.cancel()
    await asyncio.wait_for(job.cancelled.wait(), 10)
    job.gate.set()
    assert await shared.run("key", job) == 2


async def test_a_failure_reaches_all_waiters_and_is_forgotten() -> None:
    shared, gate = SharedWork[int]("test"), asyncio.Event()

    async def fail() -> int:
        await gate.wait()
        raise ValueError("no")

    waiters = [asyncio.create_task(shared.run("key", fail)) for _ in range(3)]
    await asyncio.sleep(0)
    gate.set()
    outcomes = await asyncio.gather(*waiters, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [ValueError] * 3
    job = Job()
    job.gate.set()
    assert await shared.run("key", job) == 1


async def test_closing_ends_what_runs_and_tells_those_who_wait() -> None:
    shared, job = SharedWork[int]("test"), Job()
    (waiter,) = await asking(shared, job, 1)
    await shared.close()
    assert job.cancelled.is_set()
    with pytest.raises(AbortedError, match="unloading"):
        await waiter
    with pytest.raises(AbortedError, match="unloading"):
        await shared.run("key", job)


async def test_closing_stops_the_calls_that_can_be_stopped() -> None:
    lane, running = Lane("test-closing", 1), threading.Event()

    def call(stop: Stop) -> None:
        running.set()
        while True:
            stop.check()

    calls = [asyncio.create_task(lane.run_stoppable(call)) for _ in range(2)]
    await asyncio.to_thread(running.wait, 10)
    await lane.close()
    for each in calls:
        with pytest.raises(AbortedError):
            await each
    with pytest.raises(AbortedError):
        await lane.run(str)
