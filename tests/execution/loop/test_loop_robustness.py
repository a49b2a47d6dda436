"""Whole turns: orphan calls (R03), cancellations that are swallowed or hit siblings (R17)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from loop_harness import (
    Loop,
    ScriptedModel,
    add_tool,
    assert_balanced,
    assert_paired,
    calls,
    fails,
    mount,
    reasons,
    results,
    says,
    shelve,
    ticks,
    until,
    user,
)

from dsh.control.approval.events import APPROVAL_REQUEST
from dsh.control.approval.policy import PolicyApproval
from dsh.execution.agent.events import (
    AGENT_PRE_STEP,
    AGENT_REQUEST,
    AGENT_REQUEST_ERROR,
    AGENT_TURN_STOPPING,
)
from dsh.execution.agent.service import (
    DISPOSED_CANCEL,
    USER_CANCEL,
    Agent,
    AgentHandle,
    AgentOptions,
    ResumeAgent,
)
from dsh.execution.prompt.events import SYSTEM_PROMPT_ASSEMBLE
from dsh.execution.tools.events import TOOLS_EXECUTE, TOOLS_POST_EXECUTE, TOOLS_PRE_EXECUTE, Ask
from dsh.execution.tools.service import ToolRunContext, ToolRuntime
from dsh.kernel import INTERNAL_DISPATCH, Context
from dsh.model.chunks import StreamChunk, text_delta
from dsh.model.llm.events import LLM_STREAM
from dsh.model.llm.service import GenerateOptions
from dsh.model.messages import SessionId
from dsh.state.session.repair import interrupted_turn_closers
from dsh.state.session.service import SessionStore
from dsh.state.session.session import Session

ABORTED_BY_USER = {"kind": "aborted", "reason": dict(USER_CANCEL)}
DISPOSED = {"kind": "aborted", "reason": dict(DISPOSED_CANCEL)}


@pytest.fixture
async def loop(root: Context, model: ScriptedModel) -> Loop:
    return await mount(root, model, graceMs=20, tools={"graceMs": 20})


def driver_of(agent: Agent) -> asyncio.Task[None]:
    (driver,) = [task for task in asyncio.all_tasks() if task.get_name() == f"agent:{agent.id}"]
    return driver


async def goes_on(loop: Loop, agent: Agent) -> None:
    """Prompt once more: the request must be paired and the session must go on."""
    loop.model.replies = [says("still here")]
    agent.followup(user("go on"))
    await agent.when_idle()
    assert_paired(loop.model.requests[-1].messages)
    assert reasons(agent)[-1] == {"kind": "completed"}
    assert_balanced(agent.session)


# R03: a call is never left without a result


class Stages:
    """Stops the first of three parallel calls at one stage and says when it is there."""

    def __init__(self, loop: Loop, stage: str) -> None:
        self.reached = asyncio.Event()
        self.stage = stage
        root = loop.root

        async def act(run: ToolRunContext) -> str:
            await self.stop("dispatch", run.call_id)
            return "done"

        async def prepare(execution: Any, next: Any) -> Any:
            await self.stop("prepare", execution.call_id)
            return Ask("sure?") if stage == "approve" else await next()

        async def answer(request: Any, next: Any) -> Any:
            await self.stop("approve", request.call_id)
            return "allowed-once"

        async def judge(payload: Any, next: Any) -> Any:
            await self.stop("finalize", payload.execution.call_id)
            return await next()

        add_tool(root, act, parallel=True)
        self.effects = [
            root.on(TOOLS_PRE_EXECUTE, prepare),
            root.on(APPROVAL_REQUEST, answer),
            root.on(TOOLS_POST_EXECUTE, judge),
        ]

    async def stop(self, stage: str, call: str | None) -> None:
        if stage == self.stage and call == "a":
            self.reached.set()
            await asyncio.Event().wait()

    def clear(self) -> None:
        self.stage = ""


STAGES = ["prepare", "approve", "dispatch", "finalize"]
CALLS = calls(("a", "act", "{}"), ("b", "act", "{}"), ("c", "act", "{}"))
CODES = {
    "prepare": ["ABORTED_BEFORE_DISPATCH"] * 3,
    "approve": ["ABORTED_BEFORE_DISPATCH"] * 3,
    "dispatch": ["ABORTED", None, None],
    "finalize": ["ABORTED", None, None],
}
"""What becomes of the three calls: two have finished while the first is in a later stage."""


async def stopped_at(loop: Loop, stage: str) -> tuple[AgentHandle, Stages]:
    await loop.root.plugin(PolicyApproval)
    stages = Stages(loop, stage)
    handle = await loop.create()
    loop.model.will(CALLS)
    handle.agent.followup(user("go"))
    await stages.reached.wait()
    await ticks(20)
    return handle, stages


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("how", ["cancel", "task cancel"])
async def test_a_cancel_at_any_stage_answers_each_call_and_keeps_what_is_finished(
    loop: Loop, stage: str, how: str
) -> None:
    handle, stages = await stopped_at(loop, stage)
    agent = handle.agent
    if how == "cancel":
        agent.cancel(USER_CANCEL)
    else:
        driver_of(agent).cancel()
    await agent.when_idle()
    stages.clear()

    assert [call for call, *_ in results(agent)] == ["a", "b", "c"]
    assert [code for *_, code in results(agent)] == CODES[stage]
    assert reasons(agent) == [ABORTED_BY_USER if how == "cancel" else DISPOSED]
    await goes_on(loop, agent)


@pytest.mark.parametrize("stage", STAGES)
async def test_a_crash_at_any_stage_is_told_to_the_model_and_the_session_goes_on(
    loop: Loop, stage: str
) -> None:
    handle, stages = await stopped_at(loop, stage)
    session = handle.agent.session
    logged = list(session.events)
    await handle.dispose()
    stages.clear()
    types = list(loop.root.require(SessionStore).declared().values())
    whole = [*logged, *interrupted_turn_closers(logged)]
    await shelve(loop, Session.create("s1", whole, session.header, types=types))
    options = ResumeAgent(
        resume_session_id=SessionId("s1"),
        agent_options=AgentOptions(provider="scripted", model="m"),
    )
    agent = (await loop.agents.resume(options)).agent

    started = {"prepare": 1, "approve": 1, "dispatch": 3, "finalize": 3}[stage]
    expected = ["TOOL_OUTCOME_UNKNOWN"] * started + ["TOOL_NOT_STARTED"] * (3 - started)
    assert [code for *_, code in results(agent)] == expected
    for _, _, text, code in results(agent):
        says_so = "unknown" if code == "TOOL_OUTCOME_UNKNOWN" else "did not run"
        assert says_so in text
    await goes_on(loop, agent)


@pytest.mark.parametrize("refused", ["tool/call", "tool/result"])
@pytest.mark.parametrize("call", ["a", "b", "c"])
async def test_a_log_that_refuses_an_entry_of_a_call_costs_the_turn_and_no_pairing(
    loop: Loop, refused: str, call: str
) -> None:
    once: list[int] = []

    async def act() -> str:
        return "done"

    def refuse(event: Any) -> None:
        if event.name != "session/event" or event.payload.event["type"] != refused or once:
            return
        data = event.payload.event["data"]
        if call == (data.get("callId") or data["message"]["source"]["callId"]):
            once.append(1)
            raise RuntimeError("refused")

    add_tool(loop.root, act, parallel=True)
    loop.root.on(INTERNAL_DISPATCH, refuse)
    agent = await loop.agent()
    loop.model.will(CALLS)
    agent.followup(user("go"))
    await agent.when_idle()

    assert [id for id, *_ in results(agent)] == ["a", "b", "c"]  # noqa: A001  # a call's id
    assert reasons(agent)[0]["error"]["message"] == "refused"
    await goes_on(loop, agent)


# R17: siblings are kept, and a cancel reaches the end


ENDS: dict[str, Callable[[AgentHandle], object]] = {
    "user": lambda handle: handle.agent.cancel(USER_CANCEL),
    "task": lambda handle: driver_of(handle.agent).cancel(),
    "disposal": lambda handle: handle.end(),  # type: ignore[attr-defined]
    "twice": lambda handle: (handle.agent.cancel(USER_CANCEL), driver_of(handle.agent).cancel()),
}


@pytest.mark.parametrize("how", list(ENDS))
async def test_siblings_that_finish_raise_wait_and_swallow_each_keep_their_own_result(
    loop: Loop, how: str
) -> None:
    before = asyncio.all_tasks()
    waiting, release = asyncio.Event(), asyncio.Event()

    async def finishes() -> str:
        return "done"

    async def raises() -> str:
        raise RuntimeError("broken")

    async def waits() -> str:
        await asyncio.Event().wait()
        return "never"

    async def swallows() -> str:
        waiting.set()
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        return "late"

    names = ("finishes", "raises", "waits", "swallows", "finishes")
    for body in (finishes, raises, waits, swallows):
        add_tool(loop.root, body, parallel=True)
    handle = await loop.create()
    agent = handle.agent
    loop.model.will(calls(*((str(n), name, "{}") for n, name in enumerate(names))), "unreached")
    agent.followup(user("go"))
    await waiting.wait()
    await ticks(20)
    ENDS[how](handle)
    await agent.when_idle()

    assert [code for *_, code in results(agent)] == [None, None, "ABORTED", "ABORTED", None]
    assert [text for _, _, text, _ in results(agent)][:2] == ["done", "Error: broken"]
    assert [reason["kind"] for reason in reasons(agent)] == ["aborted"]
    assert len(loop.model.requests) == 1
    assert [stray.tool for stray in loop.root.require(ToolRuntime).strays()] == ["swallows"]
    release.set()
    await handle.dispose()
    await until(lambda: {task for task in asyncio.all_tasks() if not task.done()} <= before)
    assert loop.root.require(ToolRuntime).strays() == ()


SEAMS = [
    SYSTEM_PROMPT_ASSEMBLE,
    AGENT_PRE_STEP,
    AGENT_REQUEST,
    AGENT_REQUEST_ERROR,
    AGENT_TURN_STOPPING,
    LLM_STREAM,
    TOOLS_PRE_EXECUTE,
    TOOLS_EXECUTE,
    TOOLS_POST_EXECUTE,
]


@pytest.mark.parametrize("instead", ["goes on", "raises"])
@pytest.mark.parametrize("seam", SEAMS, ids=lambda seam: seam.name)
async def test_a_listener_that_swallows_the_cancellation_of_the_driver_does_not_save_it(
    loop: Loop, seam: Any, instead: str
) -> None:
    entered = asyncio.Event()

    async def act() -> str:
        return "done"

    async def swallow(payload: Any, *rest: Any) -> Any:
        entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if instead == "raises":
                raise ValueError("cleanup failed") from None
        return await rest[-1]() if rest else None

    add_tool(loop.root, act)
    stop = loop.root.on(seam, swallow)
    agent = await loop.agent()
    failure = [fails()] if seam is AGENT_REQUEST_ERROR else []
    loop.model.will(*failure, calls(("c", "act", "{}")) if "tools" in seam.name else "words")
    agent.followup(user("go"))
    await entered.wait()
    driver = driver_of(agent)
    driver.cancel()
    await agent.when_idle()
    await stop.dispose()

    assert driver.cancelled()
    assert reasons(agent) == [DISPOSED]
    assert len(loop.model.requests) <= 1
    await goes_on(loop, agent)


async def test_a_provider_that_swallows_the_cancellation_is_not_listened_to(loop: Loop) -> None:
    entered = asyncio.Event()

    async def stubborn(_: GenerateOptions) -> AsyncIterator[StreamChunk]:
        yield text_delta(0, "before ")
        entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
        while True:
            yield text_delta(0, "after ")
            await asyncio.sleep(0)

    agent = await loop.agent()
    loop.model.will(stubborn)
    agent.followup(user("go"))
    await entered.wait()
    driver = driver_of(agent)
    driver.cancel()
    await agent.when_idle()

    assert driver.cancelled()
    assert reasons(agent) == [DISPOSED]
    (message,) = [
        event["data"] for event in agent.session.events if event["type"] == "assistant/message"
    ]
    assert message["interrupted"] is True
    assert message["message"]["content"][0]["text"] == "before "
    await goes_on(loop, agent)


async def test_a_swallower_in_maintenance_does_not_save_it(loop: Loop) -> None:
    agent = await loop.agent()
    entered = asyncio.Event()

    async def job(_: Any) -> str:
        entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
        return "done"

    held = agent.run_maintenance(job)
    await entered.wait()
    held.cancel()
    await agent.when_idle()
    assert held.cancelled()
    await goes_on(loop, agent)
