"""Timers, on a loop whose time moves only when nothing else is to do."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from kernel_support import Reports, ticks

from dsh.base.signal import AbortedError
from dsh.kernel import Context, plugin
from dsh.kernel.timer import Timer


class _Jumping(selectors.DefaultSelector):  # type: ignore[misc,valid-type]
    """Instead of waiting, moves the clock by as much as it should wait."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        if timeout:
            self.now += timeout
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop that never sleeps."""

    def __init__(self) -> None:
        self.jumping = _Jumping()
        super().__init__(self.jumping)

    def time(self) -> float:
        return self.jumping.now


def run(test: Callable[[Context, list[Any]], Awaitable[None]]) -> list[Any]:
    """Run a test on a virtual loop with a mounted timer; returns the log it wrote."""

    async def main() -> list[Any]:
        root, log = Context(), []
        reports = Reports()
        root.set_reporter(reports)
        await root.plugin(Timer)
        await test(root, log)
        await root.dispose()
        assert root.census().effects == root.census().tasks == 0
        return [*log, *reports.texts]

    loop = VirtualLoop()
    try:
        return loop.run_until_complete(asyncio.wait_for(main(), 100))
    finally:
        loop.close()


def now() -> float:
    return round(asyncio.get_running_loop().time(), 3)


def test_timeout_fires_once_at_its_time() -> None:
    async def case(root: Context, log: list[Any]) -> None:
        effect = root.timer.timeout(1.0, lambda: log.append(now()))
        assert [info.label for info in root.fiber.effects()][-1] == "ctx.timeout()"
        await asyncio.sleep(5)
        assert effect.done

    assert run(case) == [1.0]


def test_disposed_timeout_does_not_fire() -> None:
    async def case(root: Context, log: list[Any]) -> None:
        root.timer.timeout(1.0, lambda: log.append("fired")).dispose()
        await asyncio.sleep(5)

    assert run(case) == []


def test_timers_go_with_the_plugin_that_asked() -> None:
    async def case(root: Context, log: list[Any]) -> None:
        def body(ctx: Context) -> None:
            timer = ctx.require(Timer)
            timer.timeout(1.0, lambda: log.append("timeout"))
            timer.interval(1.0, lambda: log.append("interval"))

        fiber = await root.inject([Timer], body)
        await asyncio.sleep(0.5)
        await fiber.dispose()
        await asyncio.sleep(5)

    assert run(case) == []


def test_interval_keeps_its_rhythm() -> None:
    async def case(root: Context, log: list[Any]) -> None:
        effect = root.timer.interval(1.0, lambda: log.append(now()))
        await asyncio.sleep(3.5)
        effect.dispose()
        await asyncio.sleep(5)

    assert run(case) == [1.0, 2.0, 3.0]


def test_interval_skips_what_a_blocked_loop_missed() -> None:
    async def case(root: Context, log: list[Any]) -> None:
        effect = root.timer.interval(1.0, lambda: log.append(now()))
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        await asyncio.sleep(1.2)
        loop.jumping.now = 5.5
        await asyncio.sleep(0.7)
        effect.dispose()

    assert run(case) == [1.0, 5.5, 6.0]


@pytest.mark.parametrize("delay", [0, -1, float("nan")])
def test_interval_without_a_delay_is_refused(delay: float) -> None:
    async def case(root: Context, log: list[Any]) -> None:
        before = root.census().effects
        with pytest.raises(ValueError, match="needs a delay above 0"):
            root.timer.interval(delay, lambda: log.append("fired"))
        with pytest.raises(ValueError, match="needs a delay above 0"):
            await anext(root.timer.ticks(delay))
        assert root.census().effects == before

    assert run(case) == []


def test_nothing_waits_for_not_a_number() -> None:
    async def case(root: Context, log: list[Any]) -> None:
        nan = float("nan")
        timer = root.timer
        for start in (timer.timeout, timer.throttle, timer.debounce):
            with pytest.raises(ValueError, match="needs a delay"):
                start(*((nan, print) if start == timer.timeout else (print, nan)))
        with pytest.raises(ValueError, match="needs a delay"):
            await timer.sleep(nan)

    assert run(case) == []


def test_a_negative_delay_is_none() -> None:
    async def case(root: Context, log: list[Any]) -> None:
        root.timer.timeout(-1, lambda: log.append(now()))
        await root.timer.sleep(-1)

    assert run(case) == [0.0]


def test_errors_and_coroutines_of_timers_are_supervised() -> None:
    async def case(root: Context, log: list[Any]) -> None:
        def fail() -> None:
            raise ValueError("sync")

        async def fail_later() -> None:
            await ticks(2)
            raise ValueError("async")

        root.timer.timeout(1.0, fail)
        root.timer.timeout(2.0, fail_later)
        await asyncio.sleep(5)

    assert run(case) == ["sync", "async"]


def test_sleep_ends_at_its_time_and_stays_ended() -> None:
    async def case(root: Context, log: list[Any]) -> None:
        sleeps: list[asyncio.Task[None]] = []

        def body(ctx: Context) -> None:
            timer = ctx.require(Timer)
            sleeps.extend(asyncio.ensure_future(timer.sleep(delay)) for delay in (1.0, 9.0))

        fiber = await root.inject([Timer], body)
        await asyncio.sleep(2)
        await fiber.dispose()
        await asyncio.wait(sleeps)
        assert sleeps[0].exception() is None
        log.append(type(sleeps[1].exception()))
        log.append(now())

    assert run(case) == [AbortedError, 2.0]


def test_cancelled_sleep_leaves_nothing() -> None:
    async def case(root: Context, log: list[Any]) -> None:
        before = root.census().effects
        task = asyncio.ensure_future(root.timer.sleep(5))
        await ticks()
        assert root.census().effects > before
        task.cancel()
        await asyncio.wait([task])
        assert root.census().effects == before

    assert run(case) == []


@pytest.mark.parametrize("way", ["break", "aclose", "throw"])
def test_ticks_end_without_leaving_a_timer(way: str) -> None:
    async def case(root: Context, log: list[Any]) -> None:
        before = root.census().effects
        stream = root.timer.ticks(1.0)
        if way == "throw":
            await anext(stream)
            with pytest.raises(ValueError, match="thrown"):
                await stream.athrow(ValueError("thrown"))
        else:
            async for _ in stream:
                log.append(now())
                if len(log) == 2:
                    break
            await stream.aclose()
        assert root.census().effects == before

    assert run(case) == ([] if way == "throw" else [1.0, 2.0])


def test_ticks_raise_when_the_owner_unloads() -> None:
    async def case(root: Context, log: list[Any]) -> None:
        tasks: list[asyncio.Task[None]] = []

        async def consume(ctx: Context) -> None:
            async for _ in ctx.require(Timer).ticks(1.0):
                log.append(now())

        fiber = await root.inject(
            [Timer], lambda ctx: tasks.append(asyncio.ensure_future(consume(ctx)))
        )
        await asyncio.sleep(2.5)
        await fiber.dispose()
        await asyncio.wait(tasks)
        log.append(type(tasks[0].exception()))

    assert run(case) == [1.0, 2.0, AbortedError]


def test_slow_consumer_of_ticks_loses_none() -> None:
    async def case(root: Context, log: list[Any]) -> None:
        async for _ in root.timer.ticks(1.0):
            log.append(now())
            if len(log) == 1:
                await asyncio.sleep(2.5)
            if len(log) == 4:
                break

    assert run(case) == [1.0, 3.5, 3.5, 4.0]


def test_throttle_runs_at_once_then_at_the_end_of_each_window() -> None:
    async def case(root: Context, log: list[Any]) -> None:
        limited = root.timer.throttle(lambda name: log.append((name, now())), 1.0)
        for name in ("a", "b", "c"):
            limited(name)
            await asyncio.sleep(0.6)
        await asyncio.sleep(5)

    assert run(case) == [("a", 0.0), ("b", 1.0), ("c", 2.0)]


def test_throttle_trailing_call_runs_once_and_no_more() -> None:
    async def case(root: Context, log: list[Any]) -> None:
        limited = root.timer.throttle(lambda: log.append(now()), 1.0)
        limited()
        await asyncio.sleep(0.5)
        limited()
        await asyncio.sleep(5)

    assert run(case) == [0.0, 1.0]


def test_throttle_without_trailing_drops_calls_in_the_window() -> None:
    async def case(root: Context, log: list[Any]) -> None:
        limited = root.timer.throttle(lambda: log.append(now()), 1.0, trailing=False)
        for _ in range(4):
            limited()
            await asyncio.sleep(0.6)

    assert run(case) == [0.0, 1.2]


def test_throttle_disposed_before_its_first_call_runs_the_leading_call_only() -> None:
    async def case(root: Context, log: list[Any]) -> None:
        limited = root.timer.throttle(lambda: log.append(now()), 1.0)
        limited.dispose()
        limited()
        limited()
        await asyncio.sleep(5)

    assert run(case) == [0.0]


def test_debounce_runs_once_after_the_last_call() -> None:
    async def case(root: Context, log: list[Any]) -> None:
        limited = root.timer.debounce(lambda name: log.append((name, now())), 1.0)
        for name in ("a", "b", "c"):
            limited(name)
            await asyncio.sleep(0.5)
        await asyncio.sleep(5)

    assert run(case) == [("c", 2.0)]


def test_disposed_debounce_runs_nothing() -> None:
    async def case(root: Context, log: list[Any]) -> None:
        limited = root.timer.debounce(lambda: log.append("ran"), 1.0)
        limited()
        limited.dispose()
        limited()
        await asyncio.sleep(5)

    assert run(case) == []


def test_limited_functions_go_with_the_plugin_that_made_them() -> None:
    async def case(root: Context, log: list[Any]) -> None:
        made: list[Any] = []

        @plugin(inject=[Timer])
        def body(ctx: Context) -> None:
            made.append(ctx.require(Timer).debounce(lambda: log.append("ran"), 1.0))

        fiber = await root.plugin(body)
        made[0]()
        await fiber.dispose()
        await asyncio.sleep(5)

    assert run(case) == []
