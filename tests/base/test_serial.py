"""Operations in a queue: one after the other, each to its end."""

from __future__ import annotations

import asyncio
import contextvars

import pytest

from dsh.base.serial import SerialQueue


class Steps:
    """Operations that say when they begin and end, and wait to be let on."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.go = asyncio.Event()

    async def __call__(self, name: str) -> str:
        self.log.append(f"begin {name}")
        await self.go.wait()
        self.log.append(f"end {name}")
        return name


async def test_operations_run_one_after_the_other_in_the_order_asked_for() -> None:
    queue, steps = SerialQueue("q"), Steps()
    tasks = [queue.start(lambda name=name: steps(name)) for name in "abc"]  # type: ignore[misc]
    await asyncio.sleep(0)
    steps.go.set()
    assert await asyncio.gather(*tasks) == ["a", "b", "c"]
    assert steps.log == ["begin a", "end a", "begin b", "end b", "begin c", "end c"]


async def test_other_keys_do_not_wait() -> None:
    queue, steps = SerialQueue("q"), Steps()
    stuck = queue.start(lambda: steps("stuck"), key="one")

    async def free() -> str:
        return "free"

    assert await queue.run(free, key="two") == "free"
    steps.go.set()
    await stuck


async def test_a_failure_is_its_callers_and_does_not_stop_the_next() -> None:
    queue = SerialQueue("q")

    async def fail() -> None:
        raise ValueError("mine")

    async def succeed() -> int:
        return 1

    queue.start(fail)
    with pytest.raises(ValueError, match="mine"):
        await queue.run(fail)
    assert await queue.run(succeed) == 1


async def test_an_operation_is_carried_out_whoever_stops_waiting() -> None:
    queue, steps = SerialQueue("q"), Steps()
    waiter = asyncio.ensure_future(queue.run(lambda: steps("a")))
    queued = asyncio.ensure_future(queue.run(lambda: steps("b")))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiter.cancel()
    queued.cancel()
    await asyncio.gather(waiter, queued, return_exceptions=True)
    assert waiter.cancelled()
    steps.go.set()
    await queue.join()
    assert steps.log == ["begin a", "end a", "begin b", "end b"]


async def test_joining_waits_for_what_is_asked_for_meanwhile() -> None:
    queue, steps = SerialQueue("q"), Steps()
    steps.go.set()

    async def first() -> None:
        queue.start(lambda: steps("second"))
        queue.start(lambda: steps("third"), key="other")

    queue.start(first)
    await queue.join()
    assert steps.log.count("end second") == steps.log.count("end third") == 1


async def test_operations_do_not_carry_who_asked_for_them() -> None:
    who: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")
    queue = SerialQueue("q")
    who.set("an agent")

    async def ask() -> str:
        return who.get()

    assert await queue.run(ask) == "nobody"
