from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from dsh.state.persistence.background import Chains, Tasks
from dsh.state.persistence.write_behind import WriteBehind


class Medium:
    """Something to write to, whose writes the test holds and fails."""

    def __init__(self) -> None:
        self.log: list[int] = []
        self.stored = 0
        self.batches: list[int] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.began = asyncio.Event()
        self.wrote = asyncio.Event()
        self.failures: list[Exception] = []
        self.reported = asyncio.Event()
        self.problem: Exception | None = None
        self.tasks = Tasks()

    def behind(self, window_s: float) -> WriteBehind:
        return WriteBehind(
            "test",
            pending=lambda: self.stored < len(self.log),
            write=self._write,
            window_s=window_s,
            tasks=self.tasks,
            failed=self._failed,
        )

    async def _write(self) -> None:
        batch = self.log[self.stored :]
        self.began.set()
        await self.gate.wait()
        if self.problem is not None:
            raise self.problem
        self.batches.append(len(batch))
        self.stored += len(batch)
        self.wrote.set()

    def _failed(self, error: Exception) -> None:
        self.failures.append(error)
        self.reported.set()

    def add(self, behind: WriteBehind, count: int = 1) -> None:
        for _ in range(count):
            self.log.append(len(self.log))
            behind.offer()


@pytest.fixture
async def medium() -> AsyncIterator[Medium]:
    medium = Medium()
    yield medium
    await medium.tasks.join()


async def test_arrivals_of_one_window_are_one_batch(medium: Medium) -> None:
    behind = medium.behind(0.05)
    loop = asyncio.get_running_loop()
    start = loop.time()
    medium.add(behind)
    for n in range(1, 5):
        loop.call_later(0.008 * n, medium.add, behind)
    await medium.wrote.wait()
    assert loop.time() - start >= 0.049
    assert medium.batches == [5]


async def test_a_flush_does_not_wait_for_the_window(medium: Medium) -> None:
    behind = medium.behind(3600)
    medium.add(behind, 3)
    await behind.flush()
    assert medium.batches == [3]
    await behind.flush()
    assert medium.batches == [3]


async def test_a_flush_takes_what_arrives_meanwhile(medium: Medium) -> None:
    behind = medium.behind(3600)
    medium.gate.clear()
    medium.add(behind, 2)
    flush = asyncio.create_task(behind.flush())
    await medium.began.wait()
    medium.add(behind, 1)
    medium.gate.set()
    await flush
    assert medium.batches == [2, 1]


async def test_flushes_at_the_same_time_share_one_barrier(medium: Medium) -> None:
    behind = medium.behind(3600)
    medium.add(behind, 2)
    await asyncio.gather(behind.flush(), behind.flush(), behind.flush())
    assert medium.batches == [2]


async def test_a_window_that_ends_during_a_write_is_written_right_after(medium: Medium) -> None:
    behind = medium.behind(0.001)
    medium.gate.clear()
    medium.add(behind)
    await medium.began.wait()
    medium.add(behind, 2)
    window_ended = asyncio.Event()
    asyncio.get_running_loop().call_later(0.001, window_ended.set)  # due after the window's timer
    await window_ended.wait()
    medium.gate.set()
    await medium.tasks.join()
    assert medium.batches == [1, 2]


async def test_an_arrival_after_a_flush_opens_a_window_of_its_own(medium: Medium) -> None:
    behind = medium.behind(0.001)
    medium.add(behind)
    await behind.flush()
    medium.wrote.clear()
    medium.add(behind)
    await medium.wrote.wait()
    assert medium.batches == [1, 1]


async def test_a_failed_write_keeps_its_batch_and_pauses(medium: Medium) -> None:
    behind = medium.behind(0.001)
    medium.problem = OSError("full")
    medium.add(behind, 2)
    await medium.reported.wait()
    await medium.tasks.join()
    assert (medium.stored, medium.batches) == (0, [])
    medium.began.clear()
    medium.add(behind)
    await medium.began.wait()
    await medium.tasks.join()
    assert len(medium.failures) == 1
    with pytest.raises(OSError, match="full"):
        await behind.flush()
    medium.problem = None
    await behind.flush()
    assert medium.batches == [3]


async def test_a_failed_barrier_reaches_all_who_joined_it(medium: Medium) -> None:
    behind = medium.behind(3600)
    medium.problem = OSError("full")
    medium.add(behind)
    results = await asyncio.gather(behind.flush(), behind.flush(), return_exceptions=True)
    assert [type(result) for result in results] == [OSError, OSError]


async def test_cancelling_a_flush_does_not_cancel_the_write(medium: Medium) -> None:
    behind = medium.behind(3600)
    medium.gate.clear()
    medium.add(behind)
    flush = asyncio.create_task(behind.flush())
    await medium.began.wait()
    flush.cancel()
    with pytest.raises(asyncio.CancelledError):
        await flush
    medium.gate.set()
    await medium.tasks.join()
    assert medium.batches == [1]


async def test_a_stopped_one_opens_no_window(medium: Medium) -> None:
    behind = medium.behind(0.0)
    medium.add(behind)
    behind.stop()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert medium.batches == []


async def test_operations_on_one_key_run_in_order_and_others_beside_them() -> None:
    tasks = Tasks()
    chains = Chains(tasks)
    order: list[str] = []
    gate = asyncio.Event()

    async def held() -> None:
        await gate.wait()
        order.append("a1")

    async def note(name: str) -> None:
        order.append(name)

    first = asyncio.create_task(chains.run("a", held))
    await asyncio.sleep(0)
    second = asyncio.create_task(chains.run("a", lambda: note("a2")))
    await chains.run("b", lambda: note("b"))
    gate.set()
    await asyncio.gather(first, second)
    assert order == ["b", "a1", "a2"]
    await tasks.join()


async def test_a_failed_operation_does_not_stop_the_next() -> None:
    tasks = Tasks()
    chains = Chains(tasks)

    async def fail() -> None:
        raise OSError("no")

    async def fine() -> str:
        return "fine"

    with pytest.raises(OSError, match="no"):
        await chains.run("a", fail)
    assert await chains.run("a", fine) == "fine"
    await tasks.join()


async def test_a_caller_cancelled_in_the_queue_is_let_go_and_its_operation_left_out() -> None:
    tasks = Tasks()
    chains = Chains(tasks)
    gate, ran = asyncio.Event(), []

    async def held() -> None:
        await gate.wait()

    async def late() -> None:
        ran.append("late")

    first = asyncio.create_task(chains.run("a", held))
    await asyncio.sleep(0)
    queued = asyncio.create_task(chains.run("a", late))
    await asyncio.sleep(0)
    queued.cancel()
    with pytest.raises(asyncio.CancelledError):
        await queued
    gate.set()
    await first
    await tasks.join()
    assert ran == []


async def test_the_result_of_a_begun_operation_is_handed_over_when_its_caller_left() -> None:
    tasks = Tasks()
    chains = Chains(tasks)
    gate, began = asyncio.Event(), asyncio.Event()
    handed: list[str] = []

    async def held() -> str:
        began.set()
        await gate.wait()
        return "result"

    caller = asyncio.create_task(chains.run("a", held, unclaimed=handed.append))
    await began.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    gate.set()
    await tasks.join()
    await asyncio.sleep(0)
    assert handed == ["result"]


@pytest.mark.parametrize("ticks", range(6))
async def test_what_nobody_took_is_handed_over_before_the_next_operation_begins(ticks: int) -> None:
    tasks = Tasks()
    chains = Chains(tasks)
    began = asyncio.Event()
    order: list[str] = []

    async def first() -> str:
        began.set()
        for _ in range(ticks):
            await asyncio.sleep(0)
        return "first"

    async def second() -> None:
        order.append("second")

    caller = asyncio.create_task(chains.run("a", first, unclaimed=order.append))
    await began.wait()
    caller.cancel()
    await asyncio.wait([caller])
    await chains.run("a", second)
    await tasks.join()

    assert order == ["first", "second"]
