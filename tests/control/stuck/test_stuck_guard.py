from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from typing import Any

import pytest
from loop_harness import (
    Loop,
    Reply,
    ScriptedModel,
    add_tool,
    assert_balanced,
    calls,
    events_of,
    fails,
    mount,
    reasons,
    says,
    user,
)

from dsh.control.stuck import policy
from dsh.execution.agent.events import (
    AGENT_PRE_STEP,
    AGENT_STATUS,
    AgentPreStep,
    Enter,
    PreStepDecision,
)
from dsh.execution.agent.service import Agent, AgentOptions, CreateAgent
from dsh.execution.tools.service import ToolDefinition, ToolOutput, ToolRuntime
from dsh.kernel import Context
from dsh.kernel.errors import ValidationError
from dsh.model.messages import SessionId, create_user_message
from dsh.state.session.store import LocalSessionStore


@pytest.fixture
async def loop(root: Context) -> AsyncIterator[Loop]:
    made = await mount(root, ScriptedModel())
    await root.plugin(policy, {})
    yield made
    for agent in made.agents.all():
        await agent.when_idle()
        assert_balanced(agent.session)


def asks(*tools: str) -> Reply:
    """A model that asks for these tools in turn, for ever."""
    count = 0

    async def reply(options: Any) -> AsyncIterator[Any]:
        nonlocal count
        tool, _, arguments = tools[count % len(tools)].partition(" ")
        count += 1
        async for chunk in calls((f"c{count}", tool, arguments or "{}"))(options):
            yield chunk

    return reply


async def same() -> str:
    return "same"


async def run(agent: Agent, text: str = "go") -> None:
    agent.followup(user(text))
    async with asyncio.timeout(15):
        await agent.when_idle()


def detected(agent: Agent) -> list[tuple[str, str, int]]:
    return [(e["code"], e["action"], e["count"]) for e in events_of(agent, "stuck/detected")]


def nudges(agent: Agent) -> list[Any]:
    return [
        message
        for message in events_of(agent, "user/message")
        if message["source"].get("plugin") == "stuck-guard"
    ]


async def test_a_model_that_always_repeats_is_told_and_then_stopped(loop: Loop) -> None:
    agent = await loop.agent()
    add_tool(loop.ctx, same, name="look")
    loop.model.otherwise = asks("look")

    await run(agent)

    assert detected(agent) == [("STUCK_REPEAT", "nudge", 4), ("STUCK_REPEAT", "stop", 8)]
    assert len(loop.model.requests) == 8
    [end] = reasons(agent)
    assert end["kind"] == "aborted"
    assert end["reason"]["kind"] == "hook"
    assert end["reason"]["code"] == "STUCK_REPEAT"
    assert "8 times in a row" in end["reason"]["reason"]
    assert end["reason"]["reason"].endswith("then tell it how to go on")


async def test_the_model_sees_the_nudge_in_its_next_request(loop: Loop) -> None:
    agent = await loop.agent()
    add_tool(loop.ctx, same, name="look")
    loop.model.will(*[calls((f"c{n}", "look", "{}")) for n in range(4)], says("I see"))

    await run(agent)

    [nudge] = nudges(agent)
    assert nudge["source"] == {
        "kind": "plugin",
        "plugin": "stuck-guard",
        "form": "notice",
        "summary": "STUCK_REPEAT × 4",  # noqa: RUF001
    }
    assert "look" in nudge["content"][0]["text"]
    assert loop.model.requests[4].messages[-1]["id"] == nudge["id"]
    assert reasons(agent) == [{"kind": "completed"}]


async def test_a_nudge_that_a_cancel_kept_from_the_model_is_given_again(loop: Loop) -> None:
    agent = await loop.agent()
    add_tool(loop.ctx, same, name="look")
    loop.model.otherwise = asks("look")

    async def interrupt(event: AgentPreStep, next: Any) -> PreStepDecision:
        decision: PreStepDecision = await next()
        if event.turn == 1 and event.step == 5:
            agent.cancel({"kind": "hook", "reason": "somebody else's"}, keep_inbox=True)
        return decision

    loop.ctx.on(AGENT_PRE_STEP, interrupt, prepend=True)
    await run(agent)
    assert nudges(agent) == []

    agent.followup(create_user_message("go on", {"kind": "plugin", "plugin": "driver"}))
    await agent.when_idle()

    assert [each[1] for each in detected(agent)] == ["nudge", "nudge", "stop"]
    assert len(nudges(agent)) == 1


async def test_a_nudge_alone_makes_no_step(loop: Loop) -> None:
    agent = await loop.agent()
    loop.model.otherwise = says("I go on.")
    for _ in range(4):
        agent.followup(create_user_message("go on", {"kind": "plugin", "plugin": "driver"}))
        await agent.when_idle()

    async def drop(event: AgentPreStep, next: Any) -> PreStepDecision:
        return Enter(())

    loop.ctx.on(AGENT_PRE_STEP, drop)
    agent.followup(create_user_message("go on", {"kind": "plugin", "plugin": "driver"}))
    await agent.when_idle()

    assert len(loop.model.requests) == 4
    assert detected(agent) == []


async def test_alternation_is_stopped(loop: Loop) -> None:
    agent = await loop.agent()
    add_tool(loop.ctx, same, name="a")
    add_tool(loop.ctx, same, name="b")
    loop.model.otherwise = asks("a", "b")

    await run(agent)

    assert reasons(agent)[-1]["reason"]["code"] == "STUCK_ALTERNATION"
    assert len(loop.model.requests) == 16


async def test_the_same_unknown_tool_is_stopped(loop: Loop) -> None:
    agent = await loop.agent()
    loop.model.otherwise = asks('nope {"a":1}', 'nope {"a":2}')

    await run(agent)

    assert reasons(agent)[-1]["reason"]["code"] == "STUCK_ERROR"


def drive(loop: Loop, message: str, *, kind: str = "plugin", rounds: int = 1000) -> list[int]:
    """Wake an agent as soon as it rests, as a goal does; return how often that happened."""
    count = [0]

    def again(event: Any) -> None:
        if event.status == "idle" and count[0] < rounds:
            count[0] += 1
            event.agent.followup(create_user_message(message, {"kind": kind, "plugin": "driver"}))
            ended = [end for end in reasons(event.agent) if end["kind"] == "aborted"]
            if ended:
                count[0] = rounds

    loop.ctx.on(AGENT_STATUS, again, everywhere=True)
    return count


async def settle(agent: Agent) -> None:
    async with asyncio.timeout(15):
        while agent.status == "running" or agent.inbox.next_turn:  # noqa: ASYNC110
            await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (says("", reasoning="hm"), "STUCK_EMPTY"),
        (says("I go on."), "STUCK_MONOLOGUE"),
        (fails(), "STUCK_EMPTY"),
    ],
    ids=["empty", "monologue", "failing"],
)
@pytest.mark.parametrize("kind", ["plugin", "goal"])
async def test_turns_that_drive_themselves_and_lead_nowhere_are_stopped(
    loop: Loop, reply: Reply, code: str, kind: str
) -> None:
    agent = await loop.agent()
    loop.model.otherwise = reply
    drive(loop, "go on", kind=kind)

    await run(agent)
    await settle(agent)

    assert [e[:2] for e in detected(agent)][:2] == [(code, "nudge"), (code, "stop")]
    assert len(loop.model.requests) == 8


@pytest.mark.parametrize("kind", ["user", "coordinator", "subagent-settled"])
async def test_replies_to_news_are_no_monologue(loop: Loop, kind: str) -> None:
    agent = await loop.agent()
    loop.model.otherwise = says("Noted; I wait for the others.")
    for _ in range(20):
        agent.followup(create_user_message("one more is done", {"kind": kind}))
        await agent.when_idle()
    assert detected(agent) == []


async def test_a_stopped_agent_goes_on_when_its_user_speaks(loop: Loop) -> None:
    agent = await loop.agent()
    add_tool(loop.ctx, same, name="look")
    loop.model.otherwise = asks("look")
    await run(agent)
    loop.model.otherwise = says("done")

    await run(agent, "stop that")

    assert reasons(agent)[-1] == {"kind": "completed"}


async def test_a_user_who_waits_while_an_agent_is_stuck_gets_the_next_turn(loop: Loop) -> None:
    agent = await loop.agent()
    add_tool(loop.ctx, same, name="look")
    loop.model.will(*[calls((f"c{n}", "look", "{}")) for n in range(8)], says("sorry"), says("yes"))
    agent.followup(user("go"))
    agent.followup(user("and then this"))
    agent.followup(user("and that"))

    await agent.when_idle()

    assert [reason["kind"] for reason in reasons(agent)] == ["aborted", "completed", "completed"]
    asked = [each["content"][0]["text"] for each in events_of(agent, "user/message")]
    assert [text for text in asked if "stuck" not in text] == ["go", "and then this", "and that"]


async def test_a_stopped_agent_that_is_woken_by_a_program_asks_no_model(loop: Loop) -> None:
    agent = await loop.agent()
    add_tool(loop.ctx, same, name="look")
    loop.model.otherwise = asks("look")
    await run(agent)
    asked = len(loop.model.requests)
    wake = create_user_message("go on", {"kind": "plugin", "plugin": "driver"})

    agent.followup(wake)
    await agent.when_idle()

    assert len(loop.model.requests) == asked
    assert reasons(agent)[-1]["reason"]["code"] == "STUCK_REPEAT"
    assert [message["id"] for message in agent.inbox.next_step] == [wake["id"]]
    loop.model.otherwise = says("done")
    await run(agent, "and now")
    assert wake["id"] in [message["id"] for message in loop.model.requests[-1].messages]


async def test_an_hour_of_polling_by_one_quick_call_is_patience(loop: Loop) -> None:
    agent = await loop.agent()
    add_tool(loop.ctx, same, name="job", polls=True)
    loop.model.will(*[calls((f"c{n}", "job", "{}")) for n in range(100)], says("done"))

    await run(agent)

    assert detected(agent) == []
    assert reasons(agent) == [{"kind": "completed"}]


async def test_a_poll_that_raises_is_no_poll_and_no_failed_turn(loop: Loop) -> None:
    agent = await loop.agent()

    def broken(_: Any) -> bool:
        raise KeyError("id")

    loop.ctx.require(ToolRuntime).register(
        ToolDefinition(
            name="job",
            description="d",
            parameters={"type": "object"},
            output=ToolOutput({}, lambda args, value: [{"type": "text", "text": "same"}]),
            execute=lambda args, run: None,
            polls=broken,
        )
    )
    loop.model.otherwise = asks("job")

    await run(agent)

    assert reasons(agent)[-1]["reason"]["code"] == "STUCK_REPEAT"


async def test_calls_that_take_long_are_patience(root: Context) -> None:
    loop = await mount(root, ScriptedModel())
    await root.plugin(policy, {"patienceMs": 5})
    agent = await loop.agent()

    async def wait() -> str:
        await asyncio.sleep(0.01)
        return "still nothing"

    add_tool(root, wait)
    loop.model.will(*[calls((f"c{n}", "wait", "{}")) for n in range(20)], says("done"))
    await run(agent)
    assert detected(agent) == []


async def test_a_rest_between_turns_is_patience(root: Context) -> None:
    loop = await mount(root, ScriptedModel())
    await root.plugin(policy, {"patienceMs": 5})
    agent = await loop.agent()
    loop.model.otherwise = says("no mail")
    for _ in range(12):
        agent.followup(create_user_message("look again", {"kind": "schedule"}))
        await agent.when_idle()
        await asyncio.sleep(0.01)
    assert detected(agent) == []


async def test_each_agent_is_followed_by_itself(loop: Loop) -> None:
    one, two = await loop.agent("one"), await loop.agent("two")
    add_tool(loop.ctx, same, name="look")
    for agent in (one, two):
        loop.model.will(*[calls((f"c{n}", "look", "{}")) for n in range(3)], says("done"))
        await run(agent)
    assert detected(one) == detected(two) == []


async def test_a_resumed_agent_is_as_stuck_as_it_was(root: Context) -> None:
    loop = await mount(root, ScriptedModel())
    fiber = await root.plugin(policy, {})
    add_tool(root, same, name="look")
    handle = await loop.create("s1")
    agent = handle.agent
    loop.model.will(*[calls((f"c{n}", "look", "{}")) for n in range(6)])

    async def gone(_: Any) -> AsyncIterator[Any]:
        agent.cancel({"kind": "user"}, keep_inbox=True)
        raise RuntimeError("gone")
        yield

    loop.model.will(gone)
    await run(agent)
    assert detected(agent) == [("STUCK_REPEAT", "nudge", 4)]
    events, header = list(agent.session.events), agent.session.header
    await handle.dispose()
    await fiber.dispose()

    await root.plugin(policy, {})
    meta = {key: value for key, value in header.items() if key not in ("id", "version")}
    again = (
        await loop.agents.create(
            CreateAgent(
                session_id=SessionId("s2"),
                seed=events,
                meta=meta,
                agent_options=AgentOptions(provider="scripted", model="m"),
            )
        )
    ).agent
    loop.model.otherwise = asks("look")
    again.followup(create_user_message("go on", {"kind": "plugin", "plugin": "driver"}))
    await again.when_idle()

    assert detected(again) == [("STUCK_REPEAT", "nudge", 4), ("STUCK_REPEAT", "stop", 8)]


async def test_a_fork_does_not_inherit_that_it_is_stuck(loop: Loop) -> None:
    agent = await loop.agent()
    add_tool(loop.ctx, same, name="look")
    loop.model.otherwise = asks("look")
    await run(agent)
    events = list(agent.session.events)
    child = await loop.agent("fork", seed=events, meta={"seedLength": len(events)})
    loop.model.otherwise = says("done")

    child.followup(create_user_message("go on", {"kind": "plugin", "plugin": "driver"}))
    await child.when_idle()

    assert reasons(child)[-1] == {"kind": "completed"}


async def test_the_event_is_declared_ignorable(loop: Loop) -> None:
    declared = loop.ctx.require(LocalSessionStore).declared()["stuck/detected"]
    assert declared.ignorable


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"nudgeAt": 1}, "nudgeAt"),
        ({"nudgeAt": 8, "stopAt": 8}, "more than nudgeAt"),
        ({"patienceMs": 0}, "patienceMs"),
        ({"stopAt": 9.5}, "stopAt"),
        ({"nudge": 3}, "nudge"),
    ],
)
def test_unusable_thresholds_are_refused(config: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        policy.Config.validate(config)


async def test_an_agent_that_is_gone_is_not_held(loop: Loop) -> None:
    handle = await loop.create("gone")
    loop.model.will(calls(("c", "nope", "{}")), says("done"))
    await run(handle.agent)
    session = weakref.ref(handle.agent.session)
    await handle.dispose()
    del handle
    loop.model.requests.clear()
    await asyncio.sleep(0)
    gc.collect()
    assert session() is None
