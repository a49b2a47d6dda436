from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dsh.base.signal import AbortController
from dsh.control.timeouts import policy
from dsh.execution.prompt.assembly import LayeredSystemPrompt
from dsh.execution.tools.events import TOOLS_EXECUTE, ToolDispatch
from dsh.execution.tools.runtime import LayeredToolRuntime
from dsh.execution.tools.service import (
    ToolDefinition,
    ToolInput,
    ToolOutput,
    ToolResult,
    ToolRunContext,
    ToolRuntime,
)
from dsh.kernel import Context
from dsh.model.messages import CallId, create_user_message


class Started:
    """A body that says that it runs, and then waits until it is stopped."""

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
        while not self.release.is_set():
            try:
                await super().__call__(args, run)
            except asyncio.CancelledError:
                continue
        return "late"


class Bench:
    """A tool runtime with the policy mounted."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self.tools = ctx.require(ToolRuntime)
        self.controller = AbortController()

    def add(self, body: Any, timeout_s: float | None, **changes: Any) -> None:
        output = ToolOutput(schema={}, render=lambda args, value: [])
        self.tools.register(
            ToolDefinition(
                name="probe",
                description="A probe.",
                parameters={"type": "object"},
                output=output,
                execute=body,
                timeout_s=timeout_s,
                **changes,
            )
        )

    async def call(self) -> ToolResult:
        return await self.tools.execute(
            ToolInput(CallId("call-1"), "probe", {}, self.controller.signal)
        )


@pytest.fixture
async def bench(root: Context) -> Bench:
    await root.plugin(LayeredSystemPrompt)
    await root.plugin(LayeredToolRuntime, {"graceMs": 50})
    await root.plugin(policy)
    held: list[Context] = []
    await root.inject([ToolRuntime], held.append)
    return Bench(held[0])


def code(result: ToolResult) -> str | None:
    assert result.is_error
    return result.error.info.code if result.error.info else None


def text(result: ToolResult) -> str:
    return "".join(str(block.get("text")) for block in result.content)


async def test_a_timeout_stops_the_body_and_is_the_result(bench: Bench) -> None:
    body = Started()
    bench.add(body, 0.02)
    result: Any = await bench.call()
    assert text(result) == "Error: tool call timed out after 20ms"
    assert code(result) == "TOOL_TIMEOUT"
    assert result.error.info.name == "ToolTimeoutError"
    assert body.cancelled == 1
    assert not bench.controller.signal.aborted


async def test_a_timed_out_body_that_does_not_stop_is_a_stray(bench: Bench) -> None:
    body = Stubborn()
    bench.add(body, 0.02)
    assert code(await bench.call()) == "TOOL_TIMEOUT"
    assert [stray.cause for stray in bench.tools.strays()] == ["tool call timed out after 20ms"]
    body.release.set()
    for _ in range(5):
        await asyncio.sleep(0)
    assert bench.tools.strays() == ()


async def test_a_timeout_beats_what_the_body_made_of_it(bench: Bench) -> None:
    note = create_user_message("n")

    async def body(args: Any, run: ToolRunContext) -> str:
        run.defer_context(note)
        await run.signal.wait()
        return "x"

    bench.add(body, 0.02, cancel="signal")
    result = await bench.call()
    assert code(result) == "TOOL_TIMEOUT"
    assert result.additional_contexts == (note,)


async def test_what_a_wrapper_raises_in_time_is_no_timeout(bench: Bench) -> None:
    async def broken(request: ToolDispatch, next: Any) -> ToolResult:
        raise ValueError("broken")

    bench.ctx.on(TOOLS_EXECUTE, broken)
    bench.add(Started(), 30)
    assert text(await bench.call()) == "Error: broken"


async def test_a_value_that_was_there_in_time_stands(bench: Bench) -> None:
    async def linger(request: ToolDispatch, next: Any) -> ToolResult:
        result = await next()
        await request.signal.wait()
        return result

    async def body(args: Any, run: ToolRunContext) -> str:
        return "done"

    bench.ctx.on(TOOLS_EXECUTE, linger)
    bench.add(body, 0.02)
    result: Any = await bench.call()
    assert result.value == "done"


async def test_a_callers_abort_before_the_deadline_stays_an_abort(bench: Bench) -> None:
    body = Started()
    bench.add(body, 30)
    call = asyncio.create_task(bench.call())
    await body.running.wait()
    bench.controller.abort()
    assert code(await call) == "ABORTED"


async def test_an_outer_deadline_is_not_taken_for_the_tools_own(bench: Bench) -> None:
    body = Started()
    outer = AbortController()

    async def around(request: ToolDispatch, next: Any) -> Any:
        before, request.signal = request.signal, outer.signal
        try:
            return await next()
        finally:
            request.signal = before

    bench.ctx.on(TOOLS_EXECUTE, around, prepend=True)
    bench.add(body, 30)
    call = asyncio.create_task(bench.call())
    await body.running.wait()
    outer.abort()
    assert code(await call) == "ABORTED"


async def test_a_wrapper_below_that_raises_for_the_deadline_timed_out(bench: Bench) -> None:
    async def below(request: ToolDispatch, next: Any) -> Any:
        await request.signal.wait()
        request.signal.throw_if_aborted()

    bench.ctx.on(TOOLS_EXECUTE, below)
    bench.add(Started(), 0.02)
    assert code(await bench.call()) == "TOOL_TIMEOUT"


async def test_the_signal_is_put_back_after_a_deadline(bench: Bench) -> None:
    signals: list[object] = []

    async def above(request: ToolDispatch, next: Any) -> Any:
        result = await next()
        signals.append(request.signal)
        return result

    bench.ctx.on(TOOLS_EXECUTE, above, prepend=True)
    bench.add(Started(), 0.02)
    assert code(await bench.call()) == "TOOL_TIMEOUT"
    assert signals == [bench.controller.signal]


async def test_the_signal_is_kept_without_a_deadline(bench: Bench) -> None:
    signals: list[object] = []

    async def body(args: Any, run: ToolRunContext) -> None:
        signals.append(run.signal)

    async def above(request: ToolDispatch, next: Any) -> Any:
        result = await next()
        signals.append(request.signal)
        return result

    bench.ctx.on(TOOLS_EXECUTE, above, prepend=True)
    bench.add(body, None)
    await bench.call()
    assert signals == [bench.controller.signal] * 2


async def test_the_deadline_goes_with_the_plugin(root: Context, bench: Bench) -> None:
    runtime = root.registry.get(policy)
    assert runtime is not None
    (fiber,) = runtime.fibers
    await fiber.dispose()
    body = Started()
    body.release.set()
    bench.add(body, 0.000001)
    assert not (await bench.call()).is_error
