"""Tasks of an agent that are cancelled from outside, and calls interrupted at each stage."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from loop_harness import (
    Held,
    Loop,
    add_tool,
    assert_paired,
    calls,
    events_of,
    reasons,
    results,
    types,
    user,
)

from dsh.control.approval.service import (
    ApprovalOutcome,
    ApprovalPolicy,
    ApprovalRequest,
    ApprovalService,
)
from dsh.execution.agent.events import AGENT_PRE_STEP, AGENT_REQUEST
from dsh.execution.agent.service import DISPOSED_CANCEL, USER_CANCEL, Agent
from dsh.execution.prompt.events import SYSTEM_PROMPT_ASSEMBLE
from dsh.execution.tools.events import TOOLS_POST_EXECUTE, TOOLS_PRE_EXECUTE, Ask
from dsh.state.session.session import Session

ABORTED_BY_USER = {"kind": "aborted", "reason": {"kind": "user"}}


SEAMS = [SYSTEM_PROMPT_ASSEMBLE, AGENT_PRE_STEP, AGENT_REQUEST, TOOLS_PRE_EXECUTE]


async def drivers() -> list[asyncio.Task[Any]]:
    return [task for task in asyncio.all_tasks() if task.get_name().startswith("agent:")]


async def test_cancelling_the_driver_task_from_outside_balances_the_log(loop: Loop) -> None:
    agent = await loop.agent()
    held = Held()
    loop.model.will(held)
    agent.followup(user("first"))
    await held.reached.wait()

    (driver,) = await drivers()
    driver.cancel()
    await agent.when_idle()

    assert driver.cancelled()
    assert reasons(agent) == [{"kind": "aborted", "reason": dict(DISPOSED_CANCEL)}]
    assert events_of(agent, "assistant/message")[0]["interrupted"] is True
    assert agent.status == "idle"


async def test_cancelling_the_driver_task_before_its_first_step_closes_the_turn(
    loop: Loop,
) -> None:
    agent = await loop.agent()
    loop.model.will("ok")
    agent.followup(user("first"))
    (driver,) = await drivers()
    driver.cancel()
    await agent.when_idle()

    assert types(agent) == ["turn/start", "turn/end"]
    assert reasons(agent) == [{"kind": "aborted", "reason": dict(DISPOSED_CANCEL)}]
    assert agent.status == "idle"
    agent.followup(user("second"))
    await agent.when_idle()
    assert reasons(agent)[1] == {"kind": "completed"}


async def test_cancelling_a_maintenance_task_before_its_first_step_frees_the_agent(
    loop: Loop,
) -> None:
    agent = await loop.agent()
    loop.model.will("ok")
    job = agent.run_maintenance(lambda signal: signal.wait())
    job.cancel()
    await agent.when_idle()
    agent.followup(user("first"))
    await agent.when_idle()
    assert reasons(agent) == [{"kind": "completed"}]


async def test_cancelling_the_driver_task_during_tools_answers_every_call(loop: Loop) -> None:
    agent = await loop.agent()
    started = asyncio.Event()

    async def wait() -> str:
        started.set()
        await asyncio.Event().wait()
        return "never"

    async def quick() -> str:
        return "done"

    add_tool(loop.root, wait, parallel=True)
    add_tool(loop.root, quick, parallel=True)
    loop.model.will(
        calls(("c1", "quick", "{}"), ("c2", "wait", "{}"), ("c3", "quick", "{}"), ("c4", "x", ""))
    )
    agent.followup(user("first"))
    await started.wait()
    await asyncio.sleep(0)

    (driver,) = await drivers()
    driver.cancel()
    await agent.when_idle()

    assert driver.cancelled()
    assert [call for call, *_ in results(agent)] == ["c1", "c2", "c3", "c4"]
    assert results(agent)[1][3] == "ABORTED"
    assert results(agent)[3][3] == "ABORTED_BEFORE_DISPATCH"


@pytest.mark.parametrize("seam", SEAMS, ids=lambda seam: seam.name)
async def test_cancelling_the_driver_task_at_any_seam_ends_it_cancelled(
    loop: Loop, seam: Any
) -> None:
    agent = await loop.agent()
    blocked = asyncio.Event()

    async def act() -> str:
        return "done"

    async def block(payload: Any, next: Any) -> Any:
        blocked.set()
        await asyncio.Event().wait()

    add_tool(loop.root, act)
    loop.model.will(calls(("c1", "act", "{}"), ("c2", "act", "{}")))
    loop.root.on(seam, block)
    agent.followup(user("first"))
    await blocked.wait()
    (driver,) = await drivers()
    driver.cancel()
    await agent.when_idle()

    assert driver.cancelled()
    assert reasons(agent)[0]["kind"] == "aborted"


async def session_after(loop: Loop, agent: Agent) -> None:
    """Prompt once more: the request must be paired and the session must go on."""
    loop.model.replies.clear()
    loop.model.will("still here")
    agent.followup(user("go on"))
    await agent.when_idle()
    assert_paired(loop.model.requests[-1].messages)
    assert reasons(agent)[-1] == {"kind": "completed"}


class SlowApprover(ApprovalService):
    """Nobody answers until the call is withdrawn."""

    async def request(self, request: ApprovalRequest) -> ApprovalOutcome:
        self.config.set()
        assert request.signal is not None
        await request.signal.wait()
        return "cancelled"

    def set_policy(self, agent: Agent, policy: ApprovalPolicy) -> None:
        raise NotImplementedError

    def override_of(self, session: Session) -> ApprovalPolicy | None:
        return None


STAGES = ["prepare", "approve", "dispatch", "finalize"]


@pytest.mark.parametrize("stage", STAGES)
async def test_an_interrupt_at_any_stage_of_a_call_leaves_a_paired_history(
    loop: Loop, stage: str
) -> None:
    agent = await loop.agent()
    reached = asyncio.Event()

    async def block(payload: Any, next: Any = None) -> Any:
        reached.set()
        await asyncio.Event().wait()

    async def cooperative(payload: Any, next: Any) -> Any:
        reached.set()
        await payload.signal.wait()
        return await next()

    async def post(payload: Any, next: Any) -> Any:
        reached.set()
        await payload.execution.signal.wait()
        return await next()

    async def act() -> str:
        if stage == "dispatch":
            await block(None)
        return "done"

    add_tool(loop.root, act, parallel=True)
    if stage == "prepare":
        stop = loop.root.on(TOOLS_PRE_EXECUTE, cooperative)
    elif stage == "approve":
        await loop.root.plugin(SlowApprover, reached)
        stop = loop.root.on(TOOLS_PRE_EXECUTE, lambda payload, _: Ask("why"))
    elif stage == "finalize":
        stop = loop.root.on(TOOLS_POST_EXECUTE, post)
    else:
        stop = None
    loop.model.will(calls(("c1", "act", "{}"), ("c2", "act", "{}")), "unreached")
    agent.followup(user("first"))
    await reached.wait()
    agent.cancel(USER_CANCEL)
    await agent.when_idle()
    if stop is not None:
        stop.dispose()

    assert [call for call, *_ in results(agent)] == ["c1", "c2"]
    codes = [code for *_, code in results(agent)]
    assert (
        codes
        == {
            "prepare": ["ABORTED_BEFORE_DISPATCH"] * 2,
            "approve": ["ABORTED_BEFORE_DISPATCH"] * 2,
            "dispatch": ["ABORTED"] * 2,
            "finalize": [None, None],
        }[stage]
    )
    assert reasons(agent) == [ABORTED_BY_USER]
    await session_after(loop, agent)
