from __future__ import annotations

import asyncio
from typing import Any

import pytest
from loop_harness import Held, Loop, add_tool, calls, events_of, reasons, says, types, user

from dsh.base.json import FrozenDict
from dsh.execution.agent.events import (
    AGENT_INBOX_CLAIMED,
    AGENT_INBOX_DISCARDED,
    AGENT_INBOX_INSERTED,
    AGENT_PRE_STEP,
    AGENT_REQUEST,
    AGENT_STATUS,
    AGENT_TURN_STOPPING,
    Enter,
    Reject,
)
from dsh.execution.agent.service import USER_CANCEL, Agent
from dsh.execution.loop.service import NoLoop
from dsh.execution.tools.service import ToolRunContext
from dsh.model.messages import text_of
from dsh.state.session.events import SESSION_EVENT

ONE_STEP = ["turn/start", "step/start", "user/message", "assistant/message", "step/end", "turn/end"]
COMPLETED = {"kind": "completed"}


def texts(agent: Agent) -> list[str]:
    return [text_of(data) for data in events_of(agent, "user/message")]


async def test_a_followup_opens_its_turn_before_it_returns(loop: Loop) -> None:
    agent = await loop.agent()
    loop.model.will("hello")

    agent.followup(user("hi"))

    assert agent.status == "running"
    assert types(agent) == ["turn/start"]
    assert agent.inbox.next_turn == ()
    await agent.when_idle()
    assert types(agent) == ONE_STEP
    assert reasons(agent) == [COMPLETED]
    assert agent.status == "idle"


async def test_an_injected_message_waits_for_a_turn_that_somebody_wakes(loop: Loop) -> None:
    agent = await loop.agent()
    loop.model.will("hello")

    agent.inject(user("context"))
    await agent.when_idle()
    assert types(agent) == []
    assert [m["id"] for m in agent.inbox.next_step] != []

    agent.followup(user("question"))
    await agent.when_idle()
    assert texts(agent) == ["context", "question"]
    assert types(agent).count("turn/start") == 1


async def test_a_second_steer_in_the_same_tick_enters_step_two_of_the_same_turn(
    loop: Loop,
) -> None:
    agent = await loop.agent()
    loop.model.will("one", "two")

    agent.steer(user("first"))
    assert types(agent) == ["turn/start"]
    agent.steer(user("second"))
    await agent.when_idle()

    assert events_of(agent, "step/start") == [{"turn": 1, "step": 1}, {"turn": 1, "step": 2}]
    assert texts(agent) == ["first", "second"]


async def test_a_burst_of_followups_gives_one_turn_each(loop: Loop) -> None:
    agent = await loop.agent()
    loop.model.otherwise = says("ok")

    for number in range(5):
        agent.followup(user(str(number)))
    await agent.when_idle()

    assert [data["turn"] for data in events_of(agent, "turn/start")] == [1, 2, 3, 4, 5]
    assert texts(agent) == ["0", "1", "2", "3", "4"]
    assert types(agent) == ONE_STEP * 5


async def test_a_followup_from_a_chunk_lands_in_the_following_turn(loop: Loop) -> None:
    agent = await loop.agent()
    loop.model.will("one", "two")
    running = asyncio.get_running_loop()
    sent: list[Any] = []

    def on_event(event: Any) -> None:
        if event.event["type"] == "assistant/chunk" and not sent:
            sent.append(running.call_soon(agent.followup, user("next")))

    loop.root.on(SESSION_EVENT, on_event)
    agent.followup(user("first"))
    await agent.when_idle()

    assert types(agent) == ONE_STEP * 2
    assert texts(agent) == ["first", "next"]


async def test_a_send_inside_an_append_fails_and_the_outer_message_still_runs(
    loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    agent = await loop.agent()
    loop.model.will("one")

    def on_event(event: Any) -> None:
        if event.event["type"] == "turn/start":
            agent.followup(user("from inside"))

    loop.root.on(SESSION_EVENT, on_event)
    agent.followup(user("outer"))
    await agent.when_idle()

    assert texts(agent) == ["outer"]
    assert not agent.inbox.has_pending
    assert "session/event" in caplog.text


async def test_messages_that_come_during_pre_step_wait_for_the_next_boundary(loop: Loop) -> None:
    agent = await loop.agent()
    loop.model.will("one", "two")
    sent: list[str] = []

    async def on_pre_step(event: Any, next: Any) -> Any:
        if not sent:
            sent.append("x")
            agent.steer(user("steered"))
        return await next()

    loop.root.on(AGENT_PRE_STEP, on_pre_step)
    agent.followup(user("first"))
    await agent.when_idle()

    assert types(agent) == [
        "turn/start",
        *ONE_STEP[1:-1],
        *ONE_STEP[1:-1],
        "turn/end",
    ]
    assert texts(agent) == ["first", "steered"]


async def test_an_inject_during_the_request_joins_the_next_one(loop: Loop) -> None:
    agent = await loop.agent()
    loop.model.will("one", "two")
    sent: list[str] = []

    async def on_request(event: Any, next: Any) -> Any:
        if not sent:
            sent.append("x")
            agent.inject(user("late"))
        return await next()

    loop.root.on(AGENT_REQUEST, on_request)
    agent.followup(user("first"))
    await agent.when_idle()

    assert [len(request.messages) for request in loop.model.requests] == [1, 3]
    assert text_of(loop.model.requests[1].messages[-1]) == "late"


async def test_rejecting_one_prompt_leaves_the_others_parked(loop: Loop) -> None:
    agent = await loop.agent()
    loop.model.otherwise = says("ok")
    rejecting = loop.root.on(AGENT_PRE_STEP, lambda event, _: Reject())

    agent.followup(user("refused"))
    agent.followup(user("parked"))
    agent.inject(user("context"))
    await agent.when_idle()

    assert types(agent) == ["turn/start", "turn/end"]
    assert reasons(agent) == [{"kind": "blocked"}]
    assert [text_of(m) for m in agent.inbox.next_turn] == ["parked"]
    assert [text_of(m) for m in agent.inbox.next_step] == ["context"]

    rejecting.dispose()
    agent.followup(user("third"))
    await agent.when_idle()
    assert texts(agent) == ["context", "parked", "third"]


async def test_rejecting_a_later_step_ends_the_turn_as_blocked(loop: Loop) -> None:
    agent = await loop.agent()
    loop.model.will("one")
    loop.root.on(
        AGENT_PRE_STEP, lambda event, following: Reject() if event.step == 2 else following()
    )

    agent.steer(user("first"))
    agent.steer(user("second"))
    await agent.when_idle()

    assert types(agent) == ONE_STEP
    assert reasons(agent) == [{"kind": "blocked"}]


async def test_entering_nothing_first_completes_without_a_step(loop: Loop) -> None:
    agent = await loop.agent()
    loop.root.on(AGENT_PRE_STEP, lambda event, _: Enter(()))

    agent.followup(user("first"))
    await agent.when_idle()

    assert types(agent) == ["turn/start", "turn/end"]
    assert reasons(agent) == [COMPLETED]
    assert loop.model.requests == []


async def test_rewriting_later_input_to_nothing_opens_no_further_step(loop: Loop) -> None:
    agent = await loop.agent()
    loop.model.will("one")
    loop.root.on(
        AGENT_PRE_STEP, lambda event, following: Enter(()) if event.step == 2 else following()
    )

    agent.steer(user("first"))
    agent.steer(user("second"))
    await agent.when_idle()

    assert types(agent) == ONE_STEP
    assert reasons(agent) == [COMPLETED]


async def test_pre_step_messages_arrive_frozen_and_extra_ones_keep_their_source(
    loop: Loop,
) -> None:
    agent = await loop.agent()
    loop.model.will("one")
    message = user("first")
    seen: list[Any] = []
    extra = {**user("extra"), "source": {"kind": "plugin", "plugin": "x"}}

    async def on_pre_step(event: Any, next: Any) -> Any:
        seen.extend(event.messages)
        decision = await next()
        return Enter((*decision.messages, extra))  # type: ignore[arg-type]

    loop.root.on(AGENT_PRE_STEP, on_pre_step)
    agent.followup(message)
    await agent.when_idle()

    assert seen[0] is message
    assert type(seen[0]) is FrozenDict
    assert events_of(agent, "user/message")[1]["source"] == {"kind": "plugin", "plugin": "x"}


@pytest.mark.parametrize("way", ["steer", "inject"])
async def test_a_message_at_turn_stopping_continues_the_same_turn(loop: Loop, way: str) -> None:
    agent = await loop.agent()
    loop.model.will("one", "two")
    asked: list[int] = []

    async def on_stopping(event: Any) -> None:
        asked.append(event.turn)
        if len(asked) == 1:
            getattr(agent, way)(user("go on"))

    loop.root.on(AGENT_TURN_STOPPING, on_stopping)
    agent.followup(user("first"))
    await agent.when_idle()

    assert asked == [1, 1]
    assert [data["step"] for data in events_of(agent, "step/start")] == [1, 2]
    assert types(agent).count("turn/start") == 1


async def test_a_failing_turn_stopping_listener_ends_the_turn_and_the_loop_survives(
    loop: Loop,
) -> None:
    agent = await loop.agent()
    loop.model.otherwise = says("ok")

    async def on_stopping(event: Any) -> None:
        if event.turn == 1:
            raise RuntimeError("no stopping")

    loop.root.on(AGENT_TURN_STOPPING, on_stopping)
    agent.followup(user("first"))
    await agent.when_idle()
    agent.followup(user("second"))
    await agent.when_idle()

    assert [reason["kind"] for reason in reasons(agent)] == ["error", "completed"]
    assert reasons(agent)[0]["error"] == {"message": "no stopping", "code": "UNKNOWN"}


async def test_a_wake_whose_message_was_removed_still_closes_its_turn_boundary(
    loop: Loop,
) -> None:
    agent = await loop.agent()
    message = user("gone")
    statuses: list[str] = []

    def on_status(event: Any) -> None:
        statuses.append(event.status)
        if event.status == "running":
            agent.inbox.remove(message["id"])  # type: ignore[arg-type]

    loop.root.on(AGENT_STATUS, on_status)
    agent.followup(message)
    await agent.when_idle()

    assert types(agent) == ["turn/start", "turn/end"]
    assert reasons(agent) == [COMPLETED]
    assert statuses == ["running", "idle"]


async def test_a_concluding_result_lets_queued_input_run_first(loop: Loop) -> None:
    agent = await loop.agent()

    async def finish(run: ToolRunContext) -> str:
        run.conclude_turn()
        agent.inject(user("queued"))
        return "done"

    add_tool(loop.root, finish)
    loop.model.will(calls(("c1", "finish", "{}")), "answer")
    agent.followup(user("first"))
    await agent.when_idle()

    assert len(loop.model.requests) == 2
    assert reasons(agent) == [COMPLETED]


async def test_a_concluding_result_ends_the_turn_without_another_request(loop: Loop) -> None:
    agent = await loop.agent()

    async def finish(run: ToolRunContext) -> str:
        run.conclude_turn()
        return "done"

    add_tool(loop.root, finish)
    loop.model.will(calls(("c1", "finish", "{}")))
    agent.followup(user("first"))
    await agent.when_idle()

    assert len(loop.model.requests) == 1
    assert reasons(agent) == [COMPLETED]


async def test_max_tokens_stays_the_reason_of_its_turn_only(loop: Loop) -> None:
    agent = await loop.agent()
    loop.model.will(says("cut", kind="max-tokens"), "rest", "other")

    agent.steer(user("first"))
    agent.steer(user("go on"))
    await agent.when_idle()
    agent.followup(user("second"))
    await agent.when_idle()

    assert reasons(agent) == [{"kind": "max-tokens"}, COMPLETED]


async def test_tools_of_a_cut_reply_never_run(loop: Loop) -> None:
    agent = await loop.agent()
    ran: list[str] = []

    async def act() -> str:
        ran.append("x")
        return "done"

    add_tool(loop.root, act)
    loop.model.will(calls(("c1", "act", "{"), text="cut", kind="max-tokens"))
    agent.followup(user("first"))
    await agent.when_idle()

    assert ran == []
    assert reasons(agent) == [{"kind": "max-tokens"}]


async def test_results_reach_the_model_although_an_earlier_reply_was_cut(loop: Loop) -> None:
    agent = await loop.agent()

    async def act() -> str:
        return "done"

    add_tool(loop.root, act)
    loop.model.will(says("cut", kind="max-tokens"), calls(("c1", "act", "{}")), "seen")
    agent.steer(user("first"))
    agent.steer(user("go on"))
    await agent.when_idle()

    assert len(loop.model.requests) == 3
    assert reasons(agent) == [{"kind": "max-tokens"}]


async def test_inbox_events_follow_their_messages(loop: Loop) -> None:
    agent = await loop.agent()
    loop.model.will("ok")
    told: list[tuple[str, str]] = []
    for event, word in (
        (AGENT_INBOX_INSERTED, "inserted"),
        (AGENT_INBOX_CLAIMED, "claimed"),
        (AGENT_INBOX_DISCARDED, "discarded"),
    ):
        agent.ctx.on(event, lambda it, word=word: told.append((word, text_of(it.message))))

    agent.inject(user("gone"))
    agent.inbox.clear()
    agent.inject(user("context"))
    agent.followup(user("first"))
    await agent.when_idle()

    assert told == [
        ("inserted", "gone"),
        ("discarded", "gone"),
        ("inserted", "context"),
        ("inserted", "first"),
        ("claimed", "context"),
        ("claimed", "first"),
    ]


async def test_agents_hear_only_their_own_events(loop: Loop) -> None:
    one, two = await loop.agent("one"), await loop.agent("two")
    loop.model.otherwise = says("ok")
    heard: list[str] = []
    one.ctx.on(AGENT_STATUS, lambda event: heard.append(event.agent.id))

    two.followup(user("x"))
    one.followup(user("y"))
    await asyncio.gather(one.when_idle(), two.when_idle())

    assert heard == ["one", "one"]


async def test_waking_without_an_event_loop_is_refused_before_anything_changes(
    loop: Loop,
) -> None:
    agent = await loop.agent()

    with pytest.raises(NoLoop, match="call_soon_threadsafe"):
        await asyncio.to_thread(agent.followup, user("x"))

    assert not agent.inbox.has_pending
    assert types(agent) == []


async def test_maintenance_holds_turns_back_and_wakes_run_at_its_end(loop: Loop) -> None:
    agent = await loop.agent()
    loop.model.will("ok")
    go = asyncio.Event()

    async def job(signal: Any) -> str:
        await go.wait()
        return "cleaned"

    done = agent.run_maintenance(job)
    assert agent.status == "idle"
    agent.followup(user("first"))
    await asyncio.sleep(0)
    assert types(agent) == []
    go.set()
    assert await done == "cleaned"
    await agent.when_idle()
    assert types(agent) == ONE_STEP


async def test_maintenance_refuses_a_busy_agent_and_can_be_cancelled(loop: Loop) -> None:
    from dsh.execution.agent.service import AgentBusy

    agent = await loop.agent()
    held = Held()
    loop.model.will(held)
    agent.followup(user("first"))
    with pytest.raises(AgentBusy):
        agent.run_maintenance(lambda signal: signal.wait())
    held.go.set()
    await agent.when_idle()

    done = agent.run_maintenance(lambda signal: signal.wait())
    agent.cancel(USER_CANCEL)
    await done
    await agent.when_idle()
