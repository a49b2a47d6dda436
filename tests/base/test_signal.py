from __future__ import annotations

import asyncio
import logging

import pytest

from dsh.base.signal import AbortController, AbortedError, AbortSignal, deadline


def test_the_first_reason_wins_and_is_set_before_listeners_run() -> None:
    controller, seen = AbortController(), []
    controller.signal.add_listener(lambda: seen.append(controller.signal.reason))

    controller.abort("first")
    controller.abort("second")

    assert seen == ["first"]
    assert controller.signal.aborted
    assert controller.signal.reason == "first"


def test_a_failing_listener_does_not_starve_the_next(caplog: pytest.LogCaptureFixture) -> None:
    controller, seen = AbortController(), []
    controller.signal.add_listener(lambda: 1 / 0)
    controller.signal.add_listener(lambda: seen.append("ran"))

    with caplog.at_level(logging.ERROR):
        controller.abort()

    assert seen == ["ran"]
    assert "listener of an abort signal failed" in caplog.text


def test_a_removed_listener_is_not_called_and_equal_ones_are_separate() -> None:
    controller, seen = AbortController(), []

    def listener() -> None:
        seen.append("called")

    remove = controller.signal.add_listener(listener)
    controller.signal.add_listener(listener)
    remove()
    remove()

    controller.abort()
    assert seen == ["called"]


@pytest.mark.parametrize(("now", "calls"), [(True, ["called"]), (False, [])])
def test_a_late_listener_runs_only_when_asked(now: bool, calls: list[str]) -> None:
    controller, seen = AbortController(), []
    controller.abort()
    controller.signal.add_listener(lambda: seen.append("called"), now=now)
    assert seen == calls


def test_the_raised_error_is_the_reason_when_that_is_an_exception() -> None:
    plain, special = AbortController(), AbortController()
    plain.abort("because")
    special.abort(KeyError("mine"))

    with pytest.raises(AbortedError, match="because"):
        plain.signal.throw_if_aborted()
    with pytest.raises(KeyError, match="mine"):
        special.signal.throw_if_aborted()
    AbortSignal().throw_if_aborted()


async def test_wait_returns_at_the_abort() -> None:
    controller = AbortController()
    waiting = asyncio.create_task(controller.signal.wait())
    await asyncio.sleep(0)
    controller.abort()
    await waiting
    await controller.signal.wait()


async def test_run_cancels_the_work_and_awaits_its_end() -> None:
    controller, ended = AbortController(), []

    async def work() -> None:
        asyncio.get_running_loop().call_soon(controller.abort, "stop")
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append("cleaned up")

    with pytest.raises(AbortedError, match="stop"):
        await controller.signal.run(work())
    assert ended == ["cleaned up"]


async def test_run_passes_an_outer_cancellation_through() -> None:
    controller = AbortController()
    outer = asyncio.create_task(controller.signal.run(asyncio.Event().wait()))
    await asyncio.sleep(0)
    outer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await outer


async def test_run_returns_the_result_of_work_that_finishes() -> None:
    async def work() -> str:
        return "done"

    assert await AbortSignal().run(work()) == "done"


def test_any_of_aborts_with_the_first_and_can_be_unlinked() -> None:
    one, two = AbortController(), AbortController()
    fused, unlink = AbortSignal.any_of(one.signal, two.signal)
    two.abort("two")
    assert fused.reason == "two"
    unlink()

    three = AbortController()
    loose, unlink = AbortSignal.any_of(three.signal)
    unlink()
    three.abort()
    assert not loose.aborted


async def test_a_deadline_tells_its_own_expiry_from_the_parents_abort() -> None:
    parent = AbortController()
    with deadline(parent.signal, 60) as fused:
        parent.abort("parent")
        assert (fused.expired, fused.signal.reason) == (False, "parent")
    with deadline(None, 0, "too late") as fused:
        await fused.signal.wait()
        assert (fused.expired, fused.signal.reason) == (True, "too late")


async def test_an_abort_from_another_thread_runs_listeners_on_the_loop() -> None:
    controller = AbortController()
    loop = asyncio.get_running_loop()
    on_loop: asyncio.Future[bool] = loop.create_future()
    controller.signal.add_listener(lambda: on_loop.set_result(asyncio.get_running_loop() is loop))
    await asyncio.to_thread(controller.abort)
    assert await on_loop


async def test_until_waits_for_the_task_or_the_abort_and_leaves_the_task_alone() -> None:
    controller, go = AbortController(), asyncio.Event()
    task = asyncio.create_task(go.wait())
    waiting = asyncio.create_task(controller.signal.until(task))
    await asyncio.sleep(0)
    controller.abort()
    assert await waiting is False
    assert await controller.signal.until(task) is False
    assert not task.done()
    assert not task._callbacks
    go.set()
    await task
    assert await AbortController().signal.until(task) is True


async def test_until_tells_of_a_failed_task_and_raises_nothing() -> None:
    signal = AbortController().signal
    task: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(signal.until(task))
    await asyncio.sleep(0)
    task.set_exception(ValueError("x"))
    assert await waiting is True
    assert not signal._listeners
    assert isinstance(task.exception(), ValueError)
