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


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not holds():  # noqa: ASYNC110  # there is nothing to wait for
            await asyncio.sleep(0)


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


async def test_an_asker_cannot_pass_for_a_question_of_an_earlier_life(bench: Bench) -> None:
    asked = answer(bench, "rejected")
    await bench.ask(id="mine", pending_since=1)
    assert not asked[0].resumed
    assert asked[0].id != "mine"


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


async def test_an_answer_after_the_switch_to_never_comes_too_late(bench: Bench) -> None:
    def switch(request: ApprovalRequest, next: Any) -> Any:
        set_approval_policy(request.agent.session, "never")
        return "allowed-once"

    bench.root.on(APPROVAL_REQUEST, switch)
    assert [await bench.ask(), await bench.ask()] == ["rejected", "rejected"]
    assert bench.outcomes() == ["rejected", "rejected"]


async def test_a_switch_to_never_rejects_what_is_open_and_withdraws_it(bench: Bench) -> None:
    asked = asyncio.Event()
    seen: list[ApprovalRequest] = []

    async def slow(request: ApprovalRequest, next: Any) -> Any:
        seen.append(request)
        asked.set()
        assert request.signal is not None
        await request.signal.wait()

    bench.root.on(APPROVAL_REQUEST, slow)
    question = asyncio.create_task(bench.ask())
    await asked.wait()
    bench.approval.set_policy(bench.new_agent(), "never")
    set_approval_policy(bench.agent.session, "ask")
    for _ in range(5):
        await asyncio.sleep(0)
    assert not question.done()
    bench.approval.set_policy(bench.agent, "never")
    assert await question == "rejected"
    assert seen[0].signal is not None
    assert seen[0].signal.aborted
    assert not bench.controller.signal.aborted
    assert bench.outcomes() == ["rejected"]


def holding(bench: Bench, seen: list[ApprovalRequest], **options: Any) -> Fiber:
    """Mount an answerer that never answers."""

    async def hold(request: ApprovalRequest, next: Any) -> Any:
        seen.append(request)
        await asyncio.Event().wait()

    def apply(ctx: Context) -> None:
        ctx.on(APPROVAL_REQUEST, hold, **options)

    return bench.root.inject([], apply)


async def test_an_answerer_that_unloads_meanwhile_leaves_nobody(root: Context) -> None:
    bench = await mount(root, graceMs=1)
    seen: list[ApprovalRequest] = []
    answerer = holding(bench, seen)
    await answerer
    question = asyncio.create_task(bench.ask())
    await until(lambda: bool(seen))
    await answerer.dispose()
    assert await question == "unavailable"
    assert bench.outcomes() == ["unavailable"]
    assert seen[0].signal is not None
    assert seen[0].signal.aborted


async def test_what_an_answerer_held_when_it_unloaded_goes_to_the_next(root: Context) -> None:
    bench = await mount(root, graceMs=1)
    seen: list[ApprovalRequest] = []
    answerer = holding(bench, seen, prepend=True)
    await answerer
    asked = answer(bench, "allowed-once")
    question = asyncio.create_task(bench.ask())
    await until(lambda: bool(seen))
    assert asked == []
    await answerer.dispose()
    assert await question == "allowed-once"
    assert (asked[0].id, seen[0].id) == (bench.log()[0][1]["id"],) * 2
    assert bench.outcomes() == ["allowed-once"]


async def test_the_next_keeps_the_question_when_the_first_has_ended_at_last(root: Context) -> None:
    bench = await mount(root, graceMs=1)
    seen: list[ApprovalRequest] = []
    ended = asyncio.Event()

    async def hold(request: ApprovalRequest, next: Any) -> Any:
        seen.append(request)
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    first = bench.root.inject([], lambda ctx: ctx.on(APPROVAL_REQUEST, hold, prepend=True))  # type: ignore[arg-type]
    await first
    await holding(bench, seen)
    question = asyncio.create_task(bench.ask())
    await until(lambda: bool(seen))
    await first.dispose()
    await until(lambda: len(seen) == 2)
    await ended.wait()
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(seen) == 2
    bench.controller.abort()
    assert await question == "cancelled"


async def test_an_answerer_may_settle_while_it_unloads(bench: Bench) -> None:
    settled = asyncio.get_running_loop().create_future()
    seen: list[ApprovalRequest] = []

    async def hold(request: ApprovalRequest, next: Any) -> Any:
        seen.append(request)
        return await settled

    def apply(ctx: Context) -> None:
        ctx.on(APPROVAL_REQUEST, hold)
        ctx.defer(lambda: settled.set_result("cancelled"))

    answerer = bench.root.inject([], apply)
    await answerer
    question = asyncio.create_task(bench.ask())
    await until(lambda: bool(seen))
    await answerer.dispose()
    assert await question == "cancelled"


async def test_a_plugin_that_answers_nothing_may_come_and_go(bench: Bench) -> None:
    seen: list[ApprovalRequest] = []
    answerer = holding(bench, seen)
    await answerer
    question = asyncio.create_task(bench.ask())
    await until(lambda: bool(seen))
    other = bench.root.inject([], lambda ctx: ctx.on(APPROVAL_REQUEST, lambda *_: "rejected"))  # type: ignore[arg-type]
    await other
    await other.dispose()
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(seen) == 1
    bench.controller.abort()
    assert await question == "cancelled"


async def test_what_settles_a_question_first_counts(bench: Bench) -> None:
    seen: list[ApprovalRequest] = []
    await holding(bench, seen)
    question = asyncio.create_task(bench.ask())
    await until(lambda: bool(seen))
    bench.controller.abort()
    set_approval_policy(bench.agent.session, "never")
    assert await question == "cancelled"


async def test_a_question_ends_with_the_turn_that_asked_it(bench: Bench) -> None:
    settled = asyncio.get_running_loop().create_future()
    seen: list[ApprovalRequest] = []

    async def hold(request: ApprovalRequest, next: Any) -> Any:
        seen.append(request)
        return await settled

    bench.root.on(APPROVAL_REQUEST, hold)
    question = asyncio.create_task(bench.ask())
    await until(lambda: bool(seen))
    settled.set_result("allowed-once")
    bench.agent.session.append(TURN_END, TurnEndData(turn=1, reason={"kind": "completed"}))
    assert await question == "cancelled"
    assert bench.outcomes() == ["cancelled"]
    assert seen[0].signal is not None


async def test_the_end_of_another_agents_turn_ends_no_question(bench: Bench) -> None:
    seen: list[ApprovalRequest] = []
    await holding(bench, seen)
    question = asyncio.create_task(bench.ask())
    await until(lambda: bool(seen))
    other = bench.new_agent()
    other.session.append(TURN_END, TurnEndData(turn=1, reason={"kind": "completed"}))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not question.done()
    bench.controller.abort()
    assert await question == "cancelled"


@pytest.mark.parametrize("how", ["asker", "service"])
async def test_answerers_are_told_when_the_asker_or_the_service_goes(
    bench: Bench, how: str
) -> None:
    seen: list[ApprovalRequest] = []
    await holding(bench, seen)
    question = asyncio.create_task(bench.ask())
    await until(lambda: bool(seen))
    if how == "asker":
        question.cancel()
    else:
        bench.fiber.dispose()
    await asyncio.wait([question])
    assert seen[0].signal is not None
    assert seen[0].signal.aborted


async def test_a_question_that_is_withdrawn_at_once_is_shown_to_nobody(bench: Bench) -> None:
    asked = answer(bench, "allowed-once")
    question = asyncio.create_task(bench.ask())
    await asyncio.sleep(0)
    bench.controller.abort()
    assert await question == "cancelled"
    for _ in range(5):
        await asyncio.sleep(0)
    assert asked == []


async def test_an_answerer_that_mounts_as_the_question_is_put_may_unload_again(
    root: Context,
) -> None:
    bench = await mount(root, graceMs=1)
    seen: list[ApprovalRequest] = []
    question = asyncio.create_task(bench.ask())
    await asyncio.sleep(0)
    ready = bench.root.inject([], lambda ctx: None)
    ready.ctx.on(APPROVAL_REQUEST, lambda request, _: _hold(seen, request))
    await until(lambda: bool(seen))
    await ready.dispose()
    assert await question == "unavailable"


async def _hold(seen: list[ApprovalRequest], request: ApprovalRequest) -> Any:
    seen.append(request)
    await asyncio.Event().wait()


async def test_nothing_is_listened_to_while_nothing_is_asked(bench: Bench) -> None:
    before = bench.root.census()
    answer(bench, "allowed-once")
    listeners = bench.root.listener_count(SESSION_EVENT.name)
    await bench.ask()
    assert bench.root.listener_count(SESSION_EVENT.name) == listeners
    assert bench.root.census().listeners == before.listeners + 1


async def test_each_of_two_crossed_decisions_is_logged_for_its_own_question(bench: Bench) -> None:
    loop = asyncio.get_running_loop()
    answers = {"1": loop.create_future(), "2": loop.create_future()}

    async def each(request: ApprovalRequest, next: Any) -> Any:
        return await answers[str(request.call_id)]

    bench.root.on(APPROVAL_REQUEST, each)
    questions = [asyncio.create_task(bench.ask(call_id=CallId(each_id))) for each_id in "12"]
    await until(lambda: len(bench.log()) == 2)
    answers["2"].set_result("rejected")
    await questions[1]
    answers["1"].set_result("allowed-once")
    await questions[0]
    calls = {data["id"]: data["callId"] for kind, data in bench.log() if kind == "approval/asked"}
    decided = [data for kind, data in bench.log() if kind == "approval/decided"]
    assert [(calls[data["id"]], data["outcome"]) for data in decided] == [
        ("2", "rejected"),
        ("1", "allowed-once"),
    ]


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


@pytest.mark.parametrize("data", [{"policy": "sometimes"}, {"policy": ["ask"]}, {}])
def test_a_policy_of_a_log_that_nobody_knows_is_never(data: Any) -> None:
    events = [{"type": "approval/policy", "data": {"policy": "ask"}}]
    assert effective_approval_policy(events) == "ask"
    assert effective_approval_policy([*events, {"type": "approval/policy", "data": data}]) == (
        "never"
    )


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
