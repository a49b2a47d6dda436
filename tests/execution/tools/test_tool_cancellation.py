"""Stopping calls: abort, outer cancellation, bodies that do not stop."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from typing import Any

import pytest
from tool_harness import Harness, code, mount, text

from dsh.base.signal import AbortController
from dsh.execution.tools.author import tool
from dsh.execution.tools.events import (
    TOOLS_EXECUTE,
    TOOLS_POST_EXECUTE,
    TOOLS_PRE_EXECUTE,
    TOOLS_RESULT,
    Accept,
    Allow,
    Deny,
    ToolDispatch,
    ToolPostExecute,
)
from dsh.execution.tools.service import ToolExecution, ToolResult, ToolRunContext, ToolSuccess
from dsh.kernel import Context
from dsh.model.messages import create_user_message

ABORTED = "Error: tool call aborted"
BEFORE = "Error: tool call aborted before dispatch"


class Started:
    """A body that says that it runs, and then waits until it is stopped or let go."""

    def __init__(self) -> None:
        self.running = asyncio.Event()
        self.release = asyncio.Event()
        self.cancelled = 0

    async def __call__(self, args: Any, run: ToolRunContext) -> str:
        self.running.set()
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return "finished"


class Stubborn(Started):
    """A body that swallows every cancellation until it is let go."""

    async def __call__(self, args: Any, run: ToolRunContext) -> str:
        self.running.set()
        while not self.release.is_set():
            try:
                await self.release.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
        return "late"


async def settled(body: Started) -> None:
    """Let a stubborn body end, and everything that follows from it."""
    body.release.set()
    for _ in range(5):
        await asyncio.sleep(0)


async def test_an_aborted_caller_never_reaches_the_policies(harness: Harness) -> None:
    harness.add()
    observed: list[object] = []
    harness.ctx.on(TOOLS_RESULT, observed.append)
    harness.ctx.on(TOOLS_PRE_EXECUTE, lambda *_: pytest.fail("no policy"))
    harness.ctx.on(TOOLS_POST_EXECUTE, lambda *_: pytest.fail("no policy"))
    harness.controller.abort()
    result = await harness.call()
    assert (text(result), code(result)) == (BEFORE, "ABORTED_BEFORE_DISPATCH")
    assert len(observed) == 1


async def test_an_abort_cancels_the_body_and_awaits_it(harness: Harness) -> None:
    body = Started()
    harness.add(body=body)
    call = asyncio.create_task(harness.call())
    await body.running.wait()
    harness.controller.abort()
    result = await call
    assert (text(result), code(result), body.cancelled) == (ABORTED, "ABORTED", 1)
    assert result.error.info is not None  # type: ignore[union-attr]
    assert result.error.info.name == "AbortError"  # type: ignore[union-attr]
    assert harness.tools.strays() == ()


async def test_a_body_may_opt_for_the_signal_alone(harness: Harness) -> None:
    async def body(args: Any, run: ToolRunContext) -> str:
        running.set()
        await run.signal.wait()
        cleaned.append("yes")
        return "too late"

    running, cleaned = asyncio.Event(), list[str]()
    harness.add(body=body, cancel="signal")
    call = asyncio.create_task(harness.call())
    await running.wait()
    harness.controller.abort()
    assert text(await call) == ABORTED
    assert cleaned == ["yes"]


async def test_an_own_error_of_a_stopped_body_is_more_specific(harness: Harness) -> None:
    async def body(args: Any, run: ToolRunContext) -> str:
        running.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ValueError("half written") from None
        return ""

    running = asyncio.Event()
    harness.add(body=body)
    call = asyncio.create_task(harness.call())
    await running.wait()
    harness.controller.abort()
    assert text(await call) == "Error: half written"


@pytest.mark.parametrize("reason", [None, {"kind": "user"}, RuntimeError("why")])
async def test_raising_the_abort_itself_is_an_abort(harness: Harness, reason: object) -> None:
    async def body(args: Any, run: ToolRunContext) -> str:
        harness.controller.abort(reason)
        run.signal.throw_if_aborted()
        return ""

    harness.add(body=body, cancel="signal")
    assert text(await harness.call()) == ABORTED


async def test_a_success_under_an_aborted_signal_is_aborted_and_keeps_contexts(
    harness: Harness,
) -> None:
    note = create_user_message("n")

    async def body(args: Any, run: ToolRunContext) -> str:
        run.defer_context(note)
        harness.controller.abort()
        return "x"

    harness.add(body=body, cancel="signal")
    result = await harness.call()
    assert text(result) == ABORTED
    assert result.additional_contexts == (note,)


async def test_cancelling_itself_is_an_ordinary_failure(harness: Harness) -> None:
    async def body(args: Any, run: ToolRunContext) -> str:
        raise asyncio.CancelledError

    harness.add(body=body)
    result = await harness.call()
    assert "cancelled its own work" in text(result)
    assert not asyncio.current_task().cancelling()  # type: ignore[union-attr]


@pytest.mark.parametrize("event", [TOOLS_PRE_EXECUTE, TOOLS_EXECUTE, TOOLS_POST_EXECUTE])
async def test_a_listener_that_cancels_itself_fails_the_call(harness: Harness, event: Any) -> None:
    async def listener(payload: Any, next: Any) -> Any:
        raise asyncio.CancelledError

    harness.add()
    harness.ctx.on(event, listener)
    assert (await harness.call()).is_error


async def test_a_body_that_swallows_cancellation_becomes_a_stray(harness: Harness) -> None:
    body = Stubborn()
    harness.add(body=body)
    call = asyncio.create_task(harness.call())
    await body.running.wait()
    harness.controller.abort()
    result = await call
    assert (text(result), body.cancelled) == (ABORTED, 1)
    [stray] = harness.tools.strays()
    assert (stray.tool, stray.call_id, stray.cause) == ("probe", "call-1", "aborted")
    await settled(body)
    assert harness.tools.strays() == ()


async def test_a_strays_late_failure_is_discarded(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(Stubborn):
        async def __call__(self, args: Any, run: ToolRunContext) -> str:
            await super().__call__(args, run)
            raise ValueError("late")

    body = Failing()
    harness.add(body=body)
    call = asyncio.create_task(harness.call())
    await body.running.wait()
    harness.controller.abort()
    await call
    await settled(body)
    assert harness.tools.strays() == ()
    assert "still runs" in caplog.text


async def test_unloading_joins_strays_with_a_bound(root: Context) -> None:
    harness = await mount(root, graceMs=1, strayJoinMs=20)
    body = Stubborn()
    harness.add(body=body)
    call = asyncio.create_task(harness.call())
    await body.running.wait()
    harness.controller.abort()
    await call
    before = body.cancelled
    await root.dispose()
    after = body.cancelled
    await settled(body)
    assert after == before + 1


async def test_outer_cancellation_reaches_the_body_and_the_observers(harness: Harness) -> None:
    body = Started()
    observed: list[ToolResult] = []
    harness.ctx.on(TOOLS_RESULT, lambda event: observed.append(event.result))
    harness.add(body=body)
    call = asyncio.create_task(harness.call())
    await body.running.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert body.cancelled == 1
    assert [text(result) for result in observed] == [ABORTED]


async def test_outer_cancellation_of_a_stubborn_body_has_a_bound(harness: Harness) -> None:
    body = Stubborn()
    harness.add(body=body)
    call = asyncio.create_task(harness.call())
    await body.running.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert len(harness.tools.strays()) == 1
    await settled(body)


async def test_a_staged_call_cancelled_from_outside_has_its_result(harness: Harness) -> None:
    body = Started()
    harness.add(body=body)
    staged = await harness.tools.prepare(harness.input())
    task = asyncio.create_task(harness.tools.dispatch(staged))
    await body.running.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert staged.result is not None
    assert text(harness.tools.finish(staged, staged.result)) == ABORTED


@pytest.mark.parametrize("event", [TOOLS_PRE_EXECUTE, TOOLS_POST_EXECUTE])
async def test_outer_cancellation_in_a_policy_still_publishes_one_result(
    harness: Harness, event: Any
) -> None:
    waiting = asyncio.Event()

    async def wait(payload: Any, next: Any) -> Any:
        waiting.set()
        await asyncio.Event().wait()

    observed: list[ToolResult] = []
    harness.ctx.on(TOOLS_RESULT, lambda settled: observed.append(settled.result))
    harness.ctx.on(event, wait)
    harness.add()
    call = asyncio.create_task(harness.call())
    await waiting.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert len(observed) == 1


async def test_a_denial_that_settles_after_the_abort_stands(harness: Harness) -> None:
    def deny(execution: ToolExecution, next: Any) -> Deny:
        harness.controller.abort()
        return Deny("no")

    harness.add()
    harness.ctx.on(TOOLS_PRE_EXECUTE, deny)
    assert text(await harness.call()) == "Error: no"


async def test_a_permission_that_settles_after_the_abort_does_not(harness: Harness) -> None:
    def allow(execution: ToolExecution, next: Any) -> Allow:
        harness.controller.abort()
        return Allow()

    posts: list[object] = []
    harness.add()
    harness.ctx.on(TOOLS_PRE_EXECUTE, allow)
    harness.ctx.on(TOOLS_EXECUTE, lambda *_: pytest.fail("dispatched"))
    harness.ctx.on(TOOLS_POST_EXECUTE, lambda event, go: (posts.append(event), go())[1])
    assert text(await harness.call()) == BEFORE
    assert len(posts) == 1


async def test_an_abort_in_a_wrapper_comes_before_the_body(harness: Harness) -> None:
    async def abort(request: ToolDispatch, next: Any) -> Any:
        harness.controller.abort()
        return await next()

    harness.add()
    harness.ctx.on(TOOLS_EXECUTE, abort)
    assert text(await harness.call()) == BEFORE


@pytest.mark.parametrize("event", [TOOLS_EXECUTE, TOOLS_POST_EXECUTE])
async def test_a_success_that_settled_before_the_abort_stands(harness: Harness, event: Any) -> None:
    async def abort(payload: Any, next: Any) -> Any:
        result = await next()
        harness.controller.abort()
        await asyncio.sleep(0)
        return result

    harness.add()
    harness.ctx.on(event, abort)
    assert text(await harness.call()) == "done"


async def test_a_success_that_settled_before_the_abort_stands_when_the_commit_comes_later(
    harness: Harness,
) -> None:
    harness.add()
    staged = await harness.tools.prepare(harness.input())
    result = await harness.tools.dispatch(staged)
    harness.controller.abort()
    assert text(await harness.tools.finalize(staged, result)) == "done"


async def test_a_value_put_in_place_of_a_settled_one_stands_too(harness: Harness) -> None:
    def replace(event: ToolPostExecute, next: Any) -> Accept:
        harness.controller.abort()
        return Accept(value="other")

    harness.add()
    harness.ctx.on(TOOLS_POST_EXECUTE, replace)
    assert text(await harness.call()) == "other"


async def test_a_body_that_returned_in_the_tick_of_the_abort_has_settled(harness: Harness) -> None:
    async def body(args: Any, run: ToolRunContext) -> str:
        asyncio.get_running_loop().call_soon(harness.controller.abort)
        return "just in time"

    harness.add(body=body)
    assert text(await harness.call()) == "just in time"


async def test_a_thread_that_returned_before_the_abort_has_settled(harness: Harness) -> None:
    loop = asyncio.get_running_loop()

    def body(args: Any, run: ToolRunContext) -> str:
        loop.call_soon_threadsafe(ending.set)
        return "just in time"

    ending = asyncio.Event()
    harness.add(body=body)  # type: ignore[arg-type]
    call = asyncio.create_task(harness.call())
    await ending.wait()
    [*threads] = [item for item in threading.enumerate() if item.name == "dsh-tool-probe"]
    for thread in threads:
        thread.join()  # on the loop's own thread: nothing else runs before the abort
    harness.controller.abort()
    assert text(await call) == "just in time"


async def test_a_wrappers_own_success_after_the_abort_is_aborted(harness: Harness) -> None:
    async def answer(request: ToolDispatch, next: Any) -> ToolSuccess:
        await next()
        harness.controller.abort()
        return ToolSuccess(value="mine", content=[])

    seen: list[str] = []
    harness.add()
    harness.ctx.on(TOOLS_EXECUTE, answer)
    harness.ctx.on(TOOLS_POST_EXECUTE, lambda event, go: (seen.append(text(event.result)), go())[1])
    assert text(await harness.call()) == ABORTED
    assert seen == [ABORTED]


async def test_a_failure_that_settles_before_the_abort_stands(harness: Harness) -> None:
    async def failing(args: Any, run: ToolRunContext) -> str:
        raise ValueError("mine")

    async def post(event: ToolPostExecute, next: Any) -> Any:
        harness.controller.abort()
        return Accept()

    harness.add(body=failing)
    harness.ctx.on(TOOLS_POST_EXECUTE, post)
    assert text(await harness.call()) == "Error: mine"


async def test_a_coroutine_from_a_blocking_function_that_never_ran_is_closed(
    harness: Harness,
) -> None:
    async def later() -> str:
        raise AssertionError("it must not run")

    def body(args: Any, run: ToolRunContext) -> Any:
        asyncio.run_coroutine_threadsafe(_abort(harness), loop).result(10)
        return later()

    loop = asyncio.get_running_loop()
    harness.add(body=body)
    assert text(await harness.call()) == ABORTED


async def _abort(harness: Harness) -> None:
    harness.controller.abort()


async def test_the_body_stops_for_a_wrappers_signal_and_post_sees_the_callers(
    harness: Harness,
) -> None:
    body = Started()
    own = AbortController()
    seen: list[object] = []

    async def around(request: ToolDispatch, next: Any) -> Any:
        before, request.signal = request.signal, own.signal
        try:
            return await next()
        finally:
            request.signal = before

    async def post(event: ToolPostExecute, next: Any) -> Any:
        seen.append(event.execution.signal)
        return await next()

    harness.add(body=body)
    harness.ctx.on(TOOLS_EXECUTE, around)
    harness.ctx.on(TOOLS_POST_EXECUTE, post)
    call = asyncio.create_task(harness.call())
    await body.running.wait()
    own.abort()
    assert text(await call) == ABORTED
    assert seen == [harness.controller.signal]


async def test_a_blocking_tool_does_not_block_the_loop(harness: Harness) -> None:
    release = threading.Event()

    def body(args: Any, run: ToolRunContext) -> str:
        assert release.wait(10)
        return threading.current_thread().name

    harness.add(body=body)  # type: ignore[arg-type]
    call = asyncio.create_task(harness.call())
    beats = 0
    for _ in range(20):
        await asyncio.sleep(0.001)
        beats += 1
    release.set()
    assert text(await call) == "dsh-tool-probe"
    assert beats == 20


async def test_a_busy_tool_does_not_block_the_loop(harness: Harness) -> None:
    def body(args: Any, run: ToolRunContext) -> str:
        end = time.monotonic() + 0.15
        while time.monotonic() < end:
            sum(range(1000))
        return "busy"

    harness.add(body=body)  # type: ignore[arg-type]
    call = asyncio.create_task(harness.call())
    beats = 0
    while not call.done():
        await asyncio.sleep(0.005)
        beats += 1
    assert text(await call) == "busy"
    assert beats > 2


async def test_a_blocking_tool_that_ignores_the_abort_is_a_stray_thread(harness: Harness) -> None:
    release, running = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def body(args: Any, run: ToolRunContext) -> str:
        loop.call_soon_threadsafe(running.set)
        release.wait(10)
        return "late"

    harness.add(body=body)  # type: ignore[arg-type]
    call = asyncio.create_task(harness.call())
    await running.wait()
    harness.controller.abort()
    assert text(await call) == ABORTED
    assert len(harness.tools.strays()) == 1
    [thread] = [item for item in threading.enumerate() if item.name == "dsh-tool-probe"]
    release.set()
    await asyncio.to_thread(thread.join)
    for _ in range(3):
        await asyncio.sleep(0)
    assert harness.tools.strays() == ()


async def test_a_blocking_tool_sees_the_signal_and_the_callers_context(harness: Harness) -> None:
    variable = contextvars.ContextVar("probe", default="unset")
    variable.set("set")
    running = asyncio.Event()
    loop = asyncio.get_running_loop()

    def body(args: Any, run: ToolRunContext) -> str:
        loop.call_soon_threadsafe(running.set)
        end = time.monotonic() + 10
        while not run.signal.aborted and time.monotonic() < end:
            time.sleep(0.001)
        raise ValueError(f"stopped with {variable.get()}")

    harness.add(body=body)  # type: ignore[arg-type]
    call = asyncio.create_task(harness.call())
    await running.wait()
    harness.controller.abort()
    assert text(await call) == "Error: stopped with set"
    assert harness.tools.strays() == ()


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyError("k"), StopIteration(1), asyncio.CancelledError()]
)
async def test_what_a_blocking_tool_raises_is_a_failure(
    harness: Harness, error: BaseException
) -> None:
    def body(args: Any, run: ToolRunContext) -> str:
        raise error

    harness.add(body=body)  # type: ignore[arg-type]
    assert (await harness.call()).is_error


async def test_an_awaitable_from_a_blocking_function_is_awaited(harness: Harness) -> None:
    async def inner() -> str:
        return "inner"

    harness.add(body=lambda args, run: inner())
    assert text(await harness.call()) == "inner"


async def test_a_defined_function_without_async_runs_in_a_thread(harness: Harness) -> None:
    @tool
    def where() -> str:
        """Say where."""
        return threading.current_thread().name

    harness.tools.register(where)
    assert text(await harness.call("where")) == "dsh-tool-where"


async def test_siblings_are_independent(harness: Harness) -> None:
    async def raising(args: Any, run: ToolRunContext) -> str:
        raise ValueError("raised")

    async def cancelling(args: Any, run: ToolRunContext) -> str:
        raise asyncio.CancelledError

    harness.add("raising", body=raising)
    harness.add("cancelling", body=cancelling)
    harness.add("fine")
    results = await asyncio.gather(*map(harness.call, ("raising", "cancelling", "fine")))
    assert [result.is_error for result in results] == [True, True, False]


async def test_a_body_that_is_being_cancelled_cleans_up_in_peace(harness: Harness) -> None:
    cleaning, finish = asyncio.Event(), asyncio.Event()
    cleaned: list[str] = []

    class Careful(Started):
        async def __call__(self, args: Any, run: ToolRunContext) -> str:
            try:
                return await super().__call__(args, run)
            finally:
                cleaning.set()
                await finish.wait()
                cleaned.append("yes")

    body = Careful()
    harness.add(body=body)
    call = asyncio.create_task(harness.call())
    await body.running.wait()
    [task] = [task for task in asyncio.all_tasks() if task.get_name() == "tool probe call-1"]
    task.cancel()
    await cleaning.wait()
    call.cancel()
    await asyncio.sleep(0)
    finish.set()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert cleaned == ["yes"]


async def test_a_success_under_a_wrappers_aborted_signal_is_aborted(harness: Harness) -> None:
    own = AbortController()

    async def body(args: Any, run: ToolRunContext) -> str:
        own.abort()
        return "x"

    async def around(request: ToolDispatch, next: Any) -> Any:
        before, request.signal = request.signal, own.signal
        try:
            return await next()
        finally:
            request.signal = before

    harness.add(body=body, cancel="signal")
    harness.ctx.on(TOOLS_EXECUTE, around)
    assert text(await harness.call()) == ABORTED


def test_a_thread_that_never_ends_hangs_neither_the_loop_nor_the_exit() -> None:
    release = threading.Event()

    async def main() -> str:
        root = Context()
        harness = await mount(root, graceMs=1, strayJoinMs=1)
        running = asyncio.Event()
        loop = asyncio.get_running_loop()

        def body(args: Any, run: ToolRunContext) -> None:
            loop.call_soon_threadsafe(running.set)
            release.wait(20)

        harness.add(body=body)  # type: ignore[arg-type]
        call = asyncio.create_task(harness.call())
        await running.wait()
        harness.controller.abort()
        result = await call
        await root.dispose()
        return text(result)

    before = time.monotonic()
    assert asyncio.run(main()) == ABORTED
    assert time.monotonic() - before < 10
    release.set()
