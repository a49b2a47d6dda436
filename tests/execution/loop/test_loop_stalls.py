"""R16: a tool that blocks, burns a processor or ignores its end costs one result, not the turn."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from loop_harness import (
    Loop,
    ScriptedModel,
    add_tool,
    assert_balanced,
    calls,
    mount,
    reasons,
    results,
    user,
)

from dsh.control.timeouts import policy
from dsh.execution.agent.service import USER_CANCEL
from dsh.execution.tools.events import TOOLS_EXECUTE, TOOLS_POST_EXECUTE, TOOLS_RESULT
from dsh.execution.tools.service import ToolRuntime
from dsh.kernel import Context

TIMEOUT_S, GRACE_S, SLACK_S = 0.05, 0.05, 1.0


@dataclass
class Stalls:
    """Bodies that do not end by themselves before they are let go."""

    go: threading.Event = field(default_factory=threading.Event)
    swallowed: int = 0

    def sleeping(self) -> str:
        self.go.wait(10)
        return "late"

    def busy(self) -> str:
        while not self.go.is_set():
            sum(range(500))
        return "late"

    async def swallowing(self) -> str:
        while not self.go.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                self.swallowed += 1
        return "late"


@dataclass
class Heart:
    """Beats while the loop is free."""

    longest_s: float = 0.0

    async def beat(self) -> None:
        last = time.monotonic()
        while True:
            await asyncio.sleep(0.005)
            now = time.monotonic()
            self.longest_s, last = max(self.longest_s, now - last), now


@pytest.fixture
async def stalls() -> AsyncIterator[Stalls]:
    made = Stalls()
    yield made
    made.go.set()


@pytest.mark.parametrize("body", ["sleeping", "busy", "swallowing"])
async def test_a_tool_that_does_not_stop_times_out_and_the_turn_goes_on(
    root: Context, model: ScriptedModel, stalls: Stalls, body: str
) -> None:
    loop = await mount(root, model, tools={"graceMs": GRACE_S * 1000})
    await root.plugin(policy)
    add_tool(root, getattr(stalls, body), name="stall", timeout_s=TIMEOUT_S, parallel=True)
    add_tool(root, quick, parallel=True)
    agent = await loop.agent()
    model.will(calls(("a", "stall", "{}"), ("b", "quick", "{}")), "went on")
    heart = Heart()
    beating = asyncio.create_task(heart.beat())

    began = time.monotonic()
    agent.followup(user("go"))
    await agent.when_idle()
    took_s = time.monotonic() - began
    beating.cancel()

    assert results(agent) == [
        ("a", True, "Error: tool call timed out after 50ms", "TOOL_TIMEOUT"),
        ("b", False, "quick", None),
    ]
    assert reasons(agent) == [{"kind": "completed"}]
    assert took_s < TIMEOUT_S + GRACE_S + SLACK_S
    assert heart.longest_s < SLACK_S
    assert [stray.tool for stray in root.require(ToolRuntime).strays()] == ["stall"]
    assert_balanced(agent.session)
    await let_go(root, stalls)


async def quick() -> str:
    return "quick"


async def let_go(root: Context, stalls: Stalls) -> None:
    stalls.go.set()
    async with asyncio.timeout(5):
        while root.require(ToolRuntime).strays():  # noqa: ASYNC110  # a thread sends no event
            await asyncio.sleep(0.005)


async def test_a_deadline_cut_short_by_nobody_leaves_a_patient_tool_alone(
    root: Context, model: ScriptedModel
) -> None:
    loop = await mount(root, model)
    await root.plugin(policy)

    def patient() -> str:
        time.sleep(0.1)
        return "in time"

    add_tool(root, patient)
    agent = await loop.agent()
    model.will(calls(("a", "patient", "{}")), "end")
    agent.followup(user("go"))
    await agent.when_idle()
    assert results(agent) == [("a", False, "in time", None)]


async def test_cancelling_the_turn_returns_within_the_grace_of_a_blocking_tool(
    root: Context, model: ScriptedModel, stalls: Stalls
) -> None:
    loop: Loop = await mount(root, model, tools={"graceMs": GRACE_S * 1000})
    reached = threading.Event()

    def stall() -> str:
        reached.set()
        return stalls.sleeping()

    add_tool(root, stall)
    agent: Any = await loop.agent()
    model.will(calls(("a", "stall", "{}")))
    agent.followup(user("go"))
    await asyncio.to_thread(reached.wait, 5)

    began = time.monotonic()
    agent.cancel({"kind": "user"})
    await agent.when_idle()

    assert time.monotonic() - began < GRACE_S + SLACK_S
    assert [code for *_, code in results(agent)] == ["ABORTED"]
    await let_go(root, stalls)


async def test_a_wrapper_that_ignores_the_abort_is_cancelled_and_its_call_is_aborted(
    root: Context, model: ScriptedModel
) -> None:
    loop = await mount(root, model, graceMs=GRACE_S * 1000, tools={"graceMs": GRACE_S * 1000})
    reached = asyncio.Event()

    async def linger(request: Any, next: Any) -> Any:
        result = await next()
        reached.set()
        await asyncio.Event().wait()
        return result

    root.on(TOOLS_EXECUTE, linger)
    add_tool(root, quick)
    agent: Any = await loop.agent()
    model.will(calls(("a", "quick", "{}")))
    agent.followup(user("go"))
    await reached.wait()
    agent.cancel(USER_CANCEL)
    await agent.when_idle()
    assert [(call, code) for call, _, _, code in results(agent)] == [("a", "ABORTED")]


async def test_the_log_of_a_policy_that_ignores_the_abort_is_what_observers_heard(
    root: Context, model: ScriptedModel
) -> None:
    loop = await mount(root, model, graceMs=GRACE_S * 1000)
    reached = asyncio.Event()
    heard: list[Any] = []

    async def linger(event: Any, next: Any) -> Any:
        reached.set()
        await asyncio.Event().wait()

    root.on(TOOLS_POST_EXECUTE, linger)
    root.on(TOOLS_RESULT, heard.append)
    add_tool(root, quick)
    agent: Any = await loop.agent()
    model.will(calls(("a", "quick", "{}")))
    agent.followup(user("go"))
    await reached.wait()
    agent.cancel(USER_CANCEL)
    await agent.when_idle()
    [(call, failed, text, _)] = results(agent)
    [settled] = heard
    assert (call, failed) == ("a", True)
    assert text == settled.result.content[0]["text"]
