from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from dsh.base.signal import AbortController
from dsh.control.approval.events import (
    APPROVAL_POLICY,
    APPROVAL_REQUEST,
    effective_approval_policy,
    set_approval_policy,
)
from dsh.control.approval.policy import MEANING, PolicyApproval
from dsh.control.approval.service import ApprovalError, ApprovalRequest, ApprovalService
from dsh.execution.prompt.assembly import LayeredSystemPrompt
from dsh.execution.prompt.service import AssembleContext, SystemPrompt
from dsh.execution.tools.events import TOOLS_PRE_EXECUTE, Ask
from dsh.execution.tools.runtime import LayeredToolRuntime
from dsh.execution.tools.service import (
    ToolDefinition,
    ToolInput,
    ToolOutput,
    ToolResult,
    ToolRuntime,
)
from dsh.kernel import Context, Fiber, create_scope
from dsh.model.messages import CallId, UserMessage, text_of
from dsh.state.session.events import SESSION_EVENT, TURN_END, TURN_START, TurnEndData, TurnStartData
from dsh.state.session.service import SessionStore
from dsh.state.session.session import Session
from dsh.state.session.store import LocalSessionStore


class FakeAgent:
    """An agent as far as approval needs one: a session, a scope, and what it was told."""

    def __init__(self, session: Session, ctx: Context) -> None:
        self.session = session
        self.told: list[UserMessage] = []
        self.ctx = create_scope(ctx, self).ctx

    def inject(self, message: UserMessage) -> None:
        self.told.append(message)


class Bench:
    """The approval service over a real session store."""

    def __init__(self, root: Context, ctx: Context, fiber: Fiber) -> None:
        self.root, self.ctx, self.fiber = root, ctx, fiber
        self.approval = ctx.require(ApprovalService)
        self.agent: Any = self.new_agent()
        self.controller = AbortController()

    def new_agent(self, *, turn: bool = True) -> Any:
        session = self.ctx.require(SessionStore).create()
        if turn:
            session.append(TURN_START, TurnStartData(turn=1))
        return FakeAgent(session, self.ctx)

    async def ask(self, agent: Any = None, **changes: Any) -> str:
        fields = {"call_id": CallId("c"), "signal": self.controller.signal, **changes}
        return await self.approval.request(
            ApprovalRequest(agent=agent or self.agent, tool_name="bash", **fields)
        )

    def log(self, agent: Any = None) -> list[tuple[str, Any]]:
        events = (agent or self.agent).session.events
        return [
            (event["type"], event["data"])
            for event in events
            if event["type"].startswith("approval/")
        ]

    def outcomes(self) -> list[Any]:
        return [data["outcome"] for kind, data in self.log() if kind == "approval/decided"]


async def mount(root: Context, **config: Any) -> Bench:
    await root.plugin(LocalSessionStore)
    await root.plugin(LayeredSystemPrompt, {"includeHarnessIdentity": False})
    await root.plugin(LayeredToolRuntime, {"graceMs": 50})
    fiber = root.plugin(PolicyApproval, config)
    await fiber
    held: list[Context] = []
    await root.inject([SessionStore, ToolRuntime, SystemPrompt], held.append)
    held[0].get(ApprovalService)
    reader: list[Context] = []
    await root.inject([SessionStore, ApprovalService, SystemPrompt], reader.append)
    return Bench(root, reader[0], fiber)


@pytest.fixture
async def bench(root: Context) -> Bench:
    return await mount(root)


def answer(bench: Bench, outcome: Any, **options: bool) -> list[ApprovalRequest]:
    asked: list[ApprovalRequest] = []

    def listener(request: ApprovalRequest, next: Any) -> Any:
        asked.append(request)
        return outcome

    bench.root.on(APPROVAL_REQUEST, listener, **options)
    return asked


async def test_nobody_to_ask_is_unavailable_with_a_full_pair(bench: Bench) -> None:
    assert await bench.ask(reason="rm") == "unavailable"
    [(first, asked), (second, decided)] = bench.log()
    assert (first, second) == ("approval/asked", "approval/decided")
    assert asked == {"id": decided["id"], "toolName": "bash", "callId": "c", "reason": "rm"}
    assert decided["outcome"] == "unavailable"


async def test_absent_facts_are_omitted_and_ids_are_fresh(bench: Bench) -> None:
    await bench.ask(call_id=None)
    await bench.ask(call_id=None)
    asked = [data for kind, data in bench.log() if kind == "approval/asked"]
    assert [set(data) for data in asked] == [{"id", "toolName"}] * 2
    assert asked[0]["id"] != asked[1]["id"]


@pytest.mark.parametrize("outcome", ["allowed-once", "rejected", "cancelled", "unavailable"])
async def test_an_answer_is_the_decision(bench: Bench, outcome: str) -> None:
    answer(bench, outcome)
    assert await bench.ask() == outcome
    assert bench.outcomes() == [outcome]


@pytest.mark.parametrize("junk", ["yes", None, True, 1, ["allowed-once"]])
async def test_an_answer_outside_the_vocabulary_is_unavailable(bench: Bench, junk: Any) -> None:
    answer(bench, junk)
    assert await bench.ask() == "unavailable"


def _raise() -> None:
    raise RuntimeError("broken")


async def _raise_later() -> None:
    await asyncio.sleep(0)
    raise RuntimeError("broken")


async def _cancel_itself() -> None:
    raise asyncio.CancelledError


@pytest.mark.parametrize("failure", [_raise, _raise_later, _cancel_itself])
async def test_a_failing_answerer_is_unavailable(bench: Bench, failure: Callable[[], Any]) -> None:
    bench.root.on(APPROVAL_REQUEST, lambda request, go: failure())
    assert await bench.ask() == "unavailable"
    assert bench.outcomes() == ["unavailable"]


@pytest.mark.parametrize("ended", [False, True])
async def test_asking_outside_of_a_turn_raises_and_logs_nothing(bench: Bench, ended: bool) -> None:
    agent = bench.new_agent(turn=ended)
    if ended:
        agent.session.append(TURN_END, TurnEndData(turn=1, reason={"kind": "completed"}))
    with pytest.raises(ApprovalError, match="outside of a turn"):
        await bench.ask(agent)
    assert bench.log(agent) == []


async def test_an_aborted_caller_is_not_asked_for(bench: Bench) -> None:
    asked = answer(bench, "allowed-once")
    bench.controller.abort()
    assert await bench.ask() == "cancelled"
    assert (asked, bench.outcomes()) == ([], ["cancelled"])


async def test_an_abort_ends_the_wait_and_the_late_answer_is_discarded(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    asked, release = asyncio.Event(), asyncio.Event()

    async def slow(request: ApprovalRequest, next: Any) -> Any:
        asked.set()
        await release.wait()
        raise RuntimeError("late")

    bench.root.on(APPROVAL_REQUEST, slow)
    with caplog.at_level(logging.INFO):
        question = asyncio.create_task(bench.ask())
        await asked.wait()
        bench.controller.abort()
        assert await question == "cancelled"
        release.set()
        for _ in range(5):
            await asyncio.sleep(0)
    assert bench.outcomes() == ["cancelled"]
    assert caplog.records == []


async def test_an_answerer_that_goes_on_after_the_abort_is_cancelled(root: Context) -> None:
    bench = await mount(root, graceMs=1)
    asked, ended = asyncio.Event(), asyncio.Event()

    async def hang(request: ApprovalRequest, next: Any) -> Any:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    bench.root.on(APPROVAL_REQUEST, hang)
    question = asyncio.create_task(bench.ask())
    await asked.wait()
    bench.controller.abort()
    assert await question == "cancelled"
    await ended.wait()


async def test_asking_follows_the_turn_as_it_ends_and_starts(bench: Bench) -> None:
    answer(bench, "allowed-once")
    assert await bench.ask() == "allowed-once"
    bench.agent.session.append(TURN_END, TurnEndData(turn=1, reason={"kind": "completed"}))
    with pytest.raises(ApprovalError):
        await bench.ask()
    bench.agent.session.append(TURN_START, TurnStartData(turn=2))
    assert await bench.ask() == "allowed-once"


async def test_outer_cancellation_completes_the_pair(bench: Bench) -> None:
    asked = asyncio.Event()

    async def slow(request: ApprovalRequest, next: Any) -> Any:
        asked.set()
        await asyncio.Event().wait()

    bench.root.on(APPROVAL_REQUEST, slow)
    question = asyncio.create_task(bench.ask())
    await asked.wait()
    question.cancel()
    with pytest.raises(asyncio.CancelledError):
        await question
    assert bench.outcomes() == ["cancelled"]


async def test_two_questions_answered_in_reverse_keep_their_answers(bench: Bench) -> None:
    loop = asyncio.get_running_loop()
    answers = {"1": loop.create_future(), "2": loop.create_future()}

    async def each(request: ApprovalRequest, next: Any) -> Any:
        return await answers[str(request.call_id)]

    bench.root.on(APPROVAL_REQUEST, each)
    first = asyncio.create_task(bench.ask(call_id=CallId("1")))
    second = asyncio.create_task(bench.ask(call_id=CallId("2")))
    answers["2"].set_result("rejected")
    assert await second == "rejected"
    answers["1"].set_result("allowed-once")
    assert await first == "allowed-once"


@pytest.mark.parametrize("prepend", [False, True])
async def test_never_cannot_be_bypassed(root: Context, prepend: bool) -> None:
    bench = await mount(root, policy="never")
    asked = answer(bench, "allowed-once", prepend=prepend, everywhere=True)
    assert await bench.ask() == "rejected"
    assert (asked, bench.outcomes()) == ([], ["rejected"])


@pytest.mark.parametrize(("row", "session"), [("ask", "never"), ("never", "ask")])
async def test_the_sessions_policy_beats_the_rows(root: Context, row: Any, session: Any) -> None:
    bench = await mount(root, policy=row)
    answer(bench, "allowed-once")
    assert bench.approval.override_of(bench.agent.session) is None
    set_approval_policy(bench.agent.session, session)
    assert bench.approval.override_of(bench.agent.session) == session
    assert await bench.ask() == ("allowed-once" if session == "ask" else "rejected")


async def test_a_policy_set_while_a_question_is_open_counts_for_the_next(bench: Bench) -> None:
    def switch(request: ApprovalRequest, next: Any) -> Any:
        set_approval_policy(request.agent.session, "never")
        return "allowed-once"

    bench.root.on(APPROVAL_REQUEST, switch)
    assert await bench.ask() == "allowed-once"
    assert await bench.ask() == "rejected"


async def test_answerers_of_another_agent_never_see_the_question(bench: Bench) -> None:
    other = bench.new_agent()
    other.ctx.on(APPROVAL_REQUEST, lambda *_: pytest.fail("not mine"))
    bench.agent.ctx.on(APPROVAL_REQUEST, lambda *_: "rejected")
    assert await bench.ask() == "rejected"
    answer(bench, "allowed-once", prepend=True)
    assert await bench.ask() == "allowed-once"


async def test_a_decision_that_cannot_be_logged_is_not_returned(bench: Bench) -> None:
    observers: list[str] = []

    def observe(event: Any) -> None:
        observers.append(event.event["type"])
        raise RuntimeError("observer")

    bench.root.on(SESSION_EVENT, observe, everywhere=True)
    bench.root.set_reporter(lambda *_: None)
    assert await bench.ask() == "unavailable"
    assert observers == ["approval/asked", "approval/decided"]


async def test_switching_the_policy_logs_it_and_tells_the_model(bench: Bench) -> None:
    bench.approval.set_policy(bench.agent, "ask")
    assert (bench.log(), bench.agent.told) == ([], [])
    bench.approval.set_policy(bench.agent, "never")
    bench.approval.set_policy(bench.agent, "never")
    [notice] = bench.agent.told
    assert bench.log() == [("approval/policy", {"policy": "never"})]
    assert "from ask to never" in text_of(notice)
    assert notice["source"]["plugin"] == "user-approval"


async def test_an_unknown_policy_is_refused_before_it_is_logged(bench: Bench) -> None:
    unknown: Any = "sometimes"
    with pytest.raises(TypeError, match="'sometimes'"):
        bench.approval.set_policy(bench.agent, unknown)
    with pytest.raises(TypeError, match="'sometimes'"):
        set_approval_policy(bench.agent.session, unknown)
    assert bench.log() == []


def test_the_last_policy_of_a_log_counts() -> None:
    session = Session.create("s", types=[APPROVAL_POLICY])
    assert effective_approval_policy(session.events) is None
    set_approval_policy(session, "never", source="delegation")
    assert session.events[-1]["data"] == {"policy": "never", "source": "delegation"}
    set_approval_policy(session, "ask")
    assert effective_approval_policy(session.events) == "ask"


async def test_the_runtime_context_tells_the_policy_in_force(bench: Bench) -> None:
    prompt = bench.ctx.require(SystemPrompt)
    context = AssembleContext(scope=bench.agent, agent=bench.agent)
    first = await prompt.assemble(context)
    assert [part.text for part in first.contexts] == [MEANING["ask"]]
    assert await prompt.assemble(context) == first
    set_approval_policy(bench.agent.session, "never")
    assert [part.text for part in (await prompt.assemble(context)).contexts] == [MEANING["never"]]
    assert [part.text for part in (await prompt.assemble()).contexts] == [""]
    await bench.fiber.dispose()
    assert (await bench.root.require(SystemPrompt).assemble(context)).contexts == []


async def test_unloading_while_a_question_is_open_cancels_it(bench: Bench) -> None:
    asked = asyncio.Event()

    async def slow(request: ApprovalRequest, next: Any) -> Any:
        asked.set()
        await asyncio.Event().wait()

    bench.root.on(APPROVAL_REQUEST, slow)
    agent = bench.agent
    question = asyncio.create_task(bench.ask())
    await asked.wait()
    bench.fiber.dispose()
    assert await question == "cancelled"
    assert bench.log(agent)[-1][0] == "approval/decided"


async def call(bench: Bench, agent: Any, reason: str | None = None) -> ToolResult:
    tools = bench.root.require(ToolRuntime)
    if tools.get("bash") is None:

        async def body(args: Any, run: Any) -> str:
            return "ran"

        render: Any = lambda args, value: [{"type": "text", "text": value}]  # noqa: E731
        tools.register(
            ToolDefinition(
                name="bash",
                description="Run.",
                parameters={"type": "object"},
                output=ToolOutput({"type": "string"}, render),
                execute=body,
            )
        )
        bench.root.on(TOOLS_PRE_EXECUTE, lambda *_: Ask(reason))
    return await tools.execute(
        ToolInput(CallId("c"), "bash", {}, bench.controller.signal, agent=agent)
    )


def told(result: ToolResult) -> str:
    return "".join(str(block.get("text")) for block in result.content)


async def test_an_allowed_call_runs(bench: Bench) -> None:
    asked = answer(bench, "allowed-once")
    assert told(await call(bench, bench.agent, "it deletes")) == "ran"
    assert (asked[0].tool_name, asked[0].call_id, asked[0].reason) == ("bash", "c", "it deletes")


async def test_each_refusal_tells_the_model_its_own_reason(bench: Bench) -> None:
    outcomes = ["rejected", "cancelled", "unavailable"]
    bench.root.on(APPROVAL_REQUEST, lambda *_: outcomes.pop(0))
    texts = [told(await call(bench, bench.agent)) for _ in range(3)]
    assert len(set(texts)) == 3
    assert all(text.startswith("Error: tool 'bash' requires approval: ") for text in texts)


async def test_headless_tells_the_model_that_nobody_can_be_asked(bench: Bench) -> None:
    text = told(await call(bench, bench.agent, "it deletes files."))
    assert text.startswith("Error: it deletes files: nobody can be asked here")
    assert "do not retry" in text


async def test_no_agent_is_denied_without_asking(bench: Bench) -> None:
    asked = answer(bench, "allowed-once")
    assert "without an agent" in told(await call(bench, None))
    assert asked == []


async def test_a_missing_seam_denies(bench: Bench) -> None:
    agent = bench.agent
    await bench.fiber.dispose()
    assert "no approval service" in told(await call(bench, agent, "it deletes"))


async def test_a_grant_after_the_callers_abort_is_no_grant(bench: Bench) -> None:
    def grant(request: ApprovalRequest, next: Any) -> str:
        bench.controller.abort()
        return "allowed-once"

    bench.root.on(APPROVAL_REQUEST, grant)
    result: Any = await call(bench, bench.agent)
    assert result.error.info.code == "ABORTED_BEFORE_DISPATCH"


async def test_a_stand_in_outside_the_vocabulary_fails_the_call(bench: Bench) -> None:
    agent = bench.agent
    await bench.fiber.dispose()

    class StandIn:
        async def request(self, request: ApprovalRequest) -> str:
            return "sure"

    bench.root.provide(ApprovalService, StandIn())
    assert "unknown outcome 'sure'" in told(await call(bench, agent))
