"""Rules of the turn loop that no other module here states: orders, numbering, snapshots, cost."""

from __future__ import annotations

import asyncio
import gc
import sys
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import pytest
from loop_harness import (
    Held,
    Loop,
    ScriptedModel,
    add_tool,
    events_of,
    mount,
    reasons,
    says,
    shelve,
    types,
    until,
    user,
)

from dsh.execution.agent.events import (
    AGENT_PRE_STEP,
    AGENT_REQUEST,
    AGENT_STATUS,
    Enter,
)
from dsh.execution.agent.service import (
    USER_CANCEL,
    AgentOptions,
    AgentRegistry,
    CreateAgent,
    ResumeAgent,
)
from dsh.execution.loop.plugin import TurnLoop
from dsh.execution.loop.service import AgentLoop
from dsh.execution.prompt.events import SYSTEM_PROMPT_ASSEMBLE
from dsh.execution.prompt.service import (
    CONTEXT_CLEARED,
    RUNTIME_CONTEXT_SOURCE,
    PromptContext,
    SystemPrompt,
)
from dsh.kernel import Context
from dsh.model.chunks import StreamChunk, finish, text_delta
from dsh.model.llm.events import LLM_STREAM
from dsh.model.llm.service import GenerateOptions
from dsh.model.messages import SessionId, text_of
from dsh.state.session.events import SESSION_EVENT, USER_MESSAGE
from dsh.state.session.session import Session

ROUTE = AgentOptions(provider="scripted", model="m")


async def turn(agent: Any, text: str = "go") -> None:
    agent.followup(user(text))
    await agent.when_idle()


# orders


async def test_a_step_asks_for_its_prompt_before_its_batch_and_its_route_after_both(
    loop: Loop,
) -> None:
    order: list[str] = []

    def noting(name: str) -> Any:
        async def note(_: Any, next: Any) -> Any:
            order.append(name)
            return await next()

        return note

    for seam in (SYSTEM_PROMPT_ASSEMBLE, AGENT_PRE_STEP, AGENT_REQUEST, LLM_STREAM):
        loop.root.on(seam, noting(seam.name))  # type: ignore[arg-type]
    loop.root.on(SESSION_EVENT, lambda event: order.append(event.event["type"]))
    agent = await loop.agent()
    loop.model.will("ok")
    await turn(agent)

    seen = list(dict.fromkeys(each for each in order if each != "assistant/chunk"))
    assert seen == [
        "agent/inbox/spliced",
        "turn/start",
        "system-prompt/assemble",
        "agent/pre-step",
        "step/start",
        "user/message",
        "agent/request",
        "request/header",
        "request/context",
        "llm/stream",
        "assistant/message",
        "step/end",
        "turn/end",
    ]
    assert order[:3] == ["agent/inbox/spliced", "turn/start", "agent/inbox/spliced"]


async def test_the_provider_ends_in_the_drivers_task_before_the_turn_does(loop: Loop) -> None:
    agent = await loop.agent()
    ended: list[tuple[str, bool]] = []
    reached = asyncio.Event()

    async def reply(_: GenerateOptions) -> AsyncIterator[StreamChunk]:
        try:
            yield text_delta(0, "words")
            reached.set()
            while True:
                yield text_delta(0, " more")
                await asyncio.sleep(0)
        finally:
            task = asyncio.current_task()
            assert task is not None
            ended.append((task.get_name(), bool(reasons(agent))))

    loop.model.will(reply)
    agent.followup(user("go"))
    await reached.wait()
    agent.cancel(USER_CANCEL)
    await agent.when_idle()
    assert ended == [("agent:s1", False)]


async def test_a_reply_without_content_is_logged_and_stays_out_of_the_history(loop: Loop) -> None:
    async def nothing(_: GenerateOptions) -> AsyncIterator[StreamChunk]:
        yield finish("stop")

    agent = await loop.agent()
    loop.model.will(nothing, "ok")
    await turn(agent)
    await turn(agent)
    first = events_of(agent, "assistant/message")[0]
    assert list(first["message"]["content"]) == []
    assert [message["role"] for message in loop.model.requests[1].messages] == ["user", "user"]


async def test_the_status_is_told_only_when_it_changes(loop: Loop) -> None:
    agent = await loop.agent()
    told: list[str] = []
    loop.root.on(AGENT_STATUS, lambda event: told.append(event.status))
    await agent.run_maintenance(lambda _: asyncio.sleep(0))
    agent.cancel(USER_CANCEL)
    assert told == []
    loop.model.will("one", "two")
    agent.followup(user("first"))
    agent.followup(user("second"))
    await agent.when_idle()
    assert told == ["running", "idle"]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="there are no eager tasks yet")
async def test_a_loop_that_starts_tasks_at_once_changes_nothing_about_a_wake(loop: Loop) -> None:
    events = asyncio.get_running_loop()

    def wake(text: str) -> None:
        events.set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined]
        agent.followup(user(text))
        events.set_task_factory(None)

    agent = await loop.agent()
    loop.model.otherwise = says("ok")
    wake("first")
    assert types(agent) == ["turn/start"]
    agent.steer(user("second"))
    agent.followup(user("third"))
    await agent.when_idle()
    starts = [(data["turn"], data["step"]) for data in events_of(agent, "step/start")]
    assert starts == [(1, 1), (1, 2), (2, 1)]
    wake("fourth")
    (driver,) = [task for task in asyncio.all_tasks() if task.get_name() == f"agent:{agent.id}"]
    driver.cancel()
    await agent.when_idle()
    assert [reason["kind"] for reason in reasons(agent)] == ["completed"] * 2 + ["aborted"]


async def test_a_wake_in_the_tick_in_which_a_driver_rests_starts_the_next(loop: Loop) -> None:
    agent = await loop.agent()
    texts = ["second", "third"]

    def wake(event: Any) -> None:
        if event.status == "idle" and texts:
            event.agent.followup(user(texts.pop(0)))

    loop.root.on(AGENT_STATUS, wake)
    loop.model.otherwise = says("ok")
    agent.followup(user("first"))
    await agent.when_idle()
    assert [text_of(data) for data in events_of(agent, "user/message")] == [
        "first",
        "second",
        "third",
    ]
    assert not agent.inbox.has_pending


async def test_a_job_that_fails_tells_its_caller_and_a_wake_during_it_still_runs(
    loop: Loop,
) -> None:
    agent = await loop.agent()

    async def job(_: Any) -> None:
        agent.followup(user("first"))
        raise ValueError("no luck")

    loop.model.will("ok")
    with pytest.raises(ValueError, match="no luck"):
        await agent.run_maintenance(job)
    await agent.when_idle()
    assert reasons(agent) == [{"kind": "completed"}]


async def test_the_cause_of_a_hook_is_logged_with_its_code(loop: Loop) -> None:
    agent = await loop.agent()
    held = Held()
    loop.model.will(held)
    agent.followup(user("first"))
    await held.reached.wait()
    cause: Any = {"kind": "hook", "reason": "3 of 3 steps", "code": "BUDGET_STEPS"}
    agent.cancel(cause, keep_inbox=True)
    await agent.when_idle()
    assert reasons(agent) == [{"kind": "aborted", "reason": cause}]


# numbering, inheritance and routes of sessions with a past


async def test_a_fork_goes_on_counting_turns_and_leaves_the_parents_queue_behind(
    loop: Loop,
) -> None:
    parent = await loop.agent()
    loop.model.otherwise = says("ok")
    await turn(parent)
    await turn(parent)
    parent.inject(user("for the parent"))
    past = list(parent.session.events)
    fork = await loop.agent("fork", seed=past, meta={"seedLength": len(past)})
    assert not fork.inbox.has_pending
    await turn(fork)
    assert [data["turn"] for data in events_of(fork, "turn/start")] == [1, 2, 3]


EFFORT = {"provider": "scripted", "model": "m", "reasoningEffort": "high"}


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ({"config": EFFORT}, "high"),
        ({"config": EFFORT, "adapterDefaults": {"reasoningEffort": True}}, None),
        ({"config": {**EFFORT, "model": "other"}}, None),
        ({"config": {**EFFORT, "provider": "other"}}, None),
    ],
    ids=["its own", "a default", "another model", "another provider"],
)
async def test_a_first_request_takes_over_the_effort_that_was_chosen_for_its_route(
    loop: Loop, header: Any, expected: str | None
) -> None:
    seeds: list[Any] = []

    async def note(_: Any, next: Any) -> Any:
        seeds.append(dict(await next()))
        return {"provider": "scripted", "model": "m"}

    loop.root.on(AGENT_REQUEST, note)
    loop.model.will("ok")
    seed = [
        _event(0, "turn/start", {"turn": 1}),
        _event(1, "step/start", {"turn": 1, "step": 1}),
        _event(2, "request/header", {"header": header, "reason": "initial"}),
        _event(3, "step/end", {"turn": 1, "step": 1}),
        _event(4, "turn/end", {"turn": 1, "reason": {"kind": "completed"}}),
    ]
    await turn(await loop.agent("s2", seed=seed))
    assert seeds[0].get("reasoningEffort") == expected


def _event(seq: int, type: str, data: Any) -> dict[str, Any]:
    return {"type": type, "seq": seq, "time": 0, "data": data}


async def test_variables_of_the_agent_have_no_value_without_one(loop: Loop) -> None:
    assembly = await loop.root.require(SystemPrompt).assemble()
    assert {assembly.variables[name] for name in ("provider", "model", "cwd")} == {None}


# the runtime context


def snapshots(agent: Any) -> list[str]:
    return [
        text_of(data)
        for data in events_of(agent, "user/message")
        if data["source"].get("plugin") == RUNTIME_CONTEXT_SOURCE
    ]


def replace_with_summary(agent: Any, first: int, last: int) -> None:
    nodes = agent.session.surface.nodes
    agent.session.append(
        USER_MESSAGE,
        user("summary"),
        surface_op={"op": "replace", "start": nodes[first], "end": nodes[last]},
        source_event_seqs=list(nodes[first : last + 1]),
    )


async def test_an_agent_that_was_never_told_a_context_is_not_told_of_its_absence(
    loop: Loop,
) -> None:
    agent = await loop.agent()
    loop.model.otherwise = says("ok")
    context = loop.root.require(SystemPrompt).context(PromptContext("mode", 1, ""))
    await turn(agent)
    context.dispose()
    await turn(agent)
    assert snapshots(agent) == []


async def test_the_message_that_clears_the_context_has_no_form(loop: Loop) -> None:
    agent = await loop.agent()
    loop.model.otherwise = says("ok")
    context = loop.root.require(SystemPrompt).context(PromptContext("mode", 1, "mode: read"))
    await turn(agent)
    context.dispose()
    await turn(agent)
    cleared = events_of(agent, "user/message")[-1]
    assert text_of(cleared) == CONTEXT_CLEARED
    assert cleared["source"] == {"kind": "plugin", "plugin": RUNTIME_CONTEXT_SOURCE}


async def test_a_compaction_that_leaves_the_snapshot_does_not_repeat_it(loop: Loop) -> None:
    agent = await loop.agent()
    loop.model.otherwise = says("ok")
    await turn(agent)
    loop.root.require(SystemPrompt).context(PromptContext("mode", 1, "mode: read"))
    await turn(agent)
    replace_with_summary(agent, 0, 1)
    await turn(agent)
    assert len(snapshots(agent)) == 1


async def test_a_snapshot_that_was_rewritten_on_its_way_in_is_told_again(loop: Loop) -> None:
    """What is not one text block is a text that nobody knows."""
    agent = await loop.agent()
    loop.model.otherwise = says("ok")
    loop.root.require(SystemPrompt).context(PromptContext("mode", 1, "mode: read"))

    async def split(event: Any, next: Any) -> Any:
        decision = await next()
        *others, snapshot = decision.messages
        text = snapshot["content"][0]
        return Enter((*others, {**snapshot, "content": [text, text]}))

    splitting = loop.root.on(AGENT_PRE_STEP, split)
    await turn(agent)
    splitting.dispose()
    await turn(agent)
    await turn(agent)
    assert len(snapshots(agent)) == 2


async def test_a_resumed_agent_is_told_again_what_a_compaction_took(loop: Loop) -> None:
    agent = await loop.agent()
    loop.model.otherwise = says("ok")
    loop.root.require(SystemPrompt).context(PromptContext("mode", 1, "mode: read"))
    await turn(agent)
    replace_with_summary(agent, 0, 2)
    again = await loop.agent("s2", seed=list(agent.session.events))
    await turn(again)
    assert len(snapshots(again)) == 2


# coming and going


async def test_a_handle_joins_the_end_that_its_owners_unload_began(loop: Loop) -> None:
    made: list[Any] = []

    async def own(ctx: Context) -> None:
        agents = ctx.require(AgentRegistry)
        made.append(
            await agents.create(CreateAgent(session_id=SessionId("s1"), agent_options=ROUTE))
        )

    async def stay() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
        return "never"

    add_tool(loop.root, stay)
    owner = await loop.root.inject([AgentRegistry], own)
    (handle,) = made
    held = Held()
    loop.model.will(held)
    handle.agent.followup(user("go"))
    await held.reached.wait()
    unloading = asyncio.ensure_future(owner.dispose())
    await asyncio.sleep(0)
    await handle.dispose()
    assert types(handle.agent)[-1] == "turn/end"
    assert loop.agents.get(SessionId("s1")) is None
    await unloading


async def test_a_stored_session_that_arrives_too_late_is_let_go(loop: Loop) -> None:
    shelf = await shelve(loop, Session.create("s1"))
    begun, prepare = asyncio.Event(), shelf.prepare

    async def stubborn(id: str) -> Any:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return await prepare(id)

    shelf.prepare = stubborn
    resuming = asyncio.create_task(
        loop.agents.resume(ResumeAgent(resume_session_id=SessionId("s1")))
    )
    await begun.wait()
    resuming.cancel()
    await asyncio.wait([resuming])
    assert loop.agents.all() == []
    assert shelf.released == ["s1"]


async def test_a_folder_of_a_configured_agent_is_for_fresh_sessions_only(
    root: Context, model: ScriptedModel
) -> None:
    loop = await mount(root, model)
    await root.require(AgentLoop).ctx.fiber.dispose()
    await shelve(loop, Session.create("s1"))
    await root.plugin(TurnLoop, {"agents": [{"id": "x", "sessionId": "s1", "cwd": "/tmp"}]})
    await until(lambda: bool(loop.agents.all()))
    assert "cwd" not in loop.agents.all()[0].session.header


async def test_an_idle_agent_takes_a_fraction_of_what_it_may(loop: Loop) -> None:
    async def act(path: str) -> str:
        return path

    for number in range(20):
        add_tool(loop.root, act, name=f"tool{number}")
    for number in range(5):
        await loop.create(f"warm{number}")
    count = 50
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(count):
            await loop.create(f"agent{number}")
        gc.collect()
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert used / count < 25_000
