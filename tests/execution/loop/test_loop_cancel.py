"""Cancelling an agent, and what its turn leaves."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest
from loop_harness import (
    Held,
    Loop,
    add_tool,
    calls,
    events_of,
    fails,
    reasons,
    results,
    says,
    types,
    user,
)

from dsh.execution.agent.events import (
    AGENT_ERROR,
    AGENT_PRE_STEP,
    AGENT_REQUEST,
    AGENT_REQUEST_ERROR,
    AGENT_STATUS,
    AGENT_TURN_STOPPING,
    Retry,
)
from dsh.execution.agent.service import DISPOSED_CANCEL, USER_CANCEL
from dsh.execution.prompt.events import SYSTEM_PROMPT_ASSEMBLE
from dsh.execution.tools.events import TOOLS_PRE_EXECUTE
from dsh.model.chunks import reasoning_delta, text_delta, tool_call_delta
from dsh.model.llm.events import LLM_STREAM
from dsh.model.messages import text_of
from dsh.state.session.events import SESSION_EVENT

ABORTED_BY_USER = {"kind": "aborted", "reason": {"kind": "user"}}


def when(loop: Loop, type: str, action: Any) -> None:
    """Do something at the first event of a type."""
    done: list[int] = []

    def on_event(event: Any) -> None:
        if event.event["type"] == type and not done:
            done.append(1)
            action()

    loop.root.on(SESSION_EVENT, on_event)


async def test_cancelling_an_idle_agent_arms_nothing(loop: Loop) -> None:
    agent = await loop.agent()
    loop.model.will("ok")

    agent.cancel(USER_CANCEL)
    assert len(agent.session.events) == 0
    agent.followup(user("first"))
    await agent.when_idle()

    assert reasons(agent) == [{"kind": "completed"}]


async def test_cancel_withdraws_what_waits_durably(loop: Loop) -> None:
    agent = await loop.agent()
    agent.inject(user("context"))

    agent.cancel(USER_CANCEL)

    assert not agent.inbox.has_pending
    assert events_of(agent, "agent/inbox/spliced")[-1] == {
        "target": "next-step",
        "start": 0,
        "removedCount": 1,
        "inserted": [],
        "outcome": "canceled",
    }


async def test_cancel_at_the_running_status_opens_no_turn_and_a_replacement_runs(
    loop: Loop,
) -> None:
    agent = await loop.agent()
    loop.model.will("ok")
    cancelled: list[int] = []

    def on_status(event: Any) -> None:
        if event.status == "running" and not cancelled:
            cancelled.append(1)
            agent.cancel(USER_CANCEL)
            agent.followup(user("replacement"))

    loop.root.on(AGENT_STATUS, on_status)
    agent.followup(user("first"))
    assert types(agent) == []
    await agent.when_idle()

    assert [text_of(data) for data in events_of(agent, "user/message")] == ["replacement"]
    assert events_of(agent, "turn/start") == [{"turn": 1}]


async def test_cancel_right_after_a_waking_send_gives_one_turn_without_a_step(
    loop: Loop,
) -> None:
    agent = await loop.agent()

    agent.followup(user("first"))
    agent.cancel(USER_CANCEL)
    await agent.when_idle()

    assert types(agent) == ["turn/start", "turn/end"]
    assert reasons(agent) == [ABORTED_BY_USER]


async def test_cancel_at_step_start_closes_the_step_without_a_request(loop: Loop) -> None:
    agent = await loop.agent()
    when(loop, "step/start", lambda: agent.cancel(USER_CANCEL))

    agent.followup(user("first"))
    await agent.when_idle()

    assert types(agent) == ["turn/start", "step/start", "user/message", "step/end", "turn/end"]
    assert loop.model.requests == []
    assert reasons(agent) == [ABORTED_BY_USER]


async def test_cancel_at_the_message_answers_every_call_without_running_one(loop: Loop) -> None:
    agent = await loop.agent()
    ran: list[str] = []

    async def act() -> str:
        ran.append("x")
        return "done"

    add_tool(loop.root, act, parallel=True)
    loop.model.will(calls(("c1", "act", "{}"), ("c2", "act", "{}"), ("c3", "nothing", "")))
    when(loop, "assistant/message", lambda: agent.cancel(USER_CANCEL))
    agent.followup(user("first"))
    await agent.when_idle()

    assert ran == []
    assert [(call, code) for call, _, _, code in results(agent)] == [
        ("c1", "ABORTED_BEFORE_DISPATCH"),
        ("c2", "ABORTED_BEFORE_DISPATCH"),
        ("c3", "ABORTED_BEFORE_DISPATCH"),
    ]
    assert results(agent)[0][2] == "Error: tool call aborted before dispatch"
    assert len(events_of(agent, "tool/call")) == 3
    assert reasons(agent) == [ABORTED_BY_USER]


async def test_a_cancelled_stream_keeps_its_visible_prefix(loop: Loop) -> None:
    agent = await loop.agent()
    held = Held()
    loop.model.will(held)
    agent.followup(user("first"))
    await held.reached.wait()

    agent.cancel(USER_CANCEL)
    await agent.when_idle()

    message = events_of(agent, "assistant/message")[0]
    assert message["interrupted"] is True
    assert text_of(message["message"]) == "partial "
    assert reasons(agent) == [ABORTED_BY_USER]
    assert text_of(agent.session.derive_messages()[-1]) == "partial "


@pytest.mark.parametrize(
    ("chunks", "kept"),
    [
        ([reasoning_delta(0, "thinking")], ["reasoning"]),
        ([text_delta(0, " \n ")], None),
        ([], None),
        ([tool_call_delta(0, "c1", '{"a":', "act")], None),
        ([text_delta(0, "words"), tool_call_delta(1, "c1", "{}", "act")], ["text"]),
    ],
)
async def test_only_visible_words_of_a_prefix_are_kept(
    loop: Loop, chunks: list[Any], kept: list[str] | None
) -> None:
    agent = await loop.agent()
    held = Held(chunks)
    loop.model.will(held)
    agent.followup(user("first"))
    await held.reached.wait()
    agent.cancel(USER_CANCEL)
    await agent.when_idle()

    messages = events_of(agent, "assistant/message")
    found = [[block["type"] for block in data["message"]["content"]] for data in messages]
    assert found == ([] if kept is None else [kept])


async def test_a_reply_that_is_complete_when_the_abort_comes_is_kept_whole(loop: Loop) -> None:
    agent = await loop.agent()
    loop.model.will("all of it")

    def on_event(event: Any) -> None:
        data = event.event["data"]
        if event.event["type"] == "assistant/chunk" and data["chunk"]["type"] == "finish":
            agent.cancel(USER_CANCEL)

    loop.root.on(SESSION_EVENT, on_event)
    agent.followup(user("first"))
    await agent.when_idle()

    message = events_of(agent, "assistant/message")[0]
    assert "interrupted" not in message
    assert text_of(message["message"]) == "all of it"
    assert reasons(agent) == [ABORTED_BY_USER]


async def test_a_complete_reply_survives_a_wrapper_that_heeds_the_abort_after_it(
    loop: Loop,
) -> None:
    agent = await loop.agent()
    loop.model.will("all of it")

    async def wrap(payload: Any, following: Any) -> Any:
        inner = await following()

        async def chunks() -> Any:
            async with aclosing(inner):
                async for chunk in inner:
                    yield chunk
            agent.cancel(USER_CANCEL)
            payload.options.signal.throw_if_aborted()

        return chunks()

    loop.root.on(LLM_STREAM, wrap)
    agent.followup(user("first"))
    await agent.when_idle()

    (message,) = events_of(agent, "assistant/message")
    assert "interrupted" not in message
    assert reasons(agent) == [ABORTED_BY_USER]


async def test_cancelling_a_recovery_commits_nothing_and_beats_the_retry(loop: Loop) -> None:
    agent = await loop.agent()
    loop.model.will(fails())

    async def recover(event: Any, next: Any) -> Any:
        agent.cancel(USER_CANCEL)
        return Retry()

    loop.root.on(AGENT_REQUEST_ERROR, recover)
    agent.followup(user("first"))
    await agent.when_idle()

    assert events_of(agent, "assistant/message") == []
    assert reasons(agent) == [ABORTED_BY_USER]


async def test_the_first_cause_wins(loop: Loop) -> None:
    handle = await loop.create()
    agent = handle.agent
    held = Held()
    loop.model.will(held)
    agent.followup(user("first"))
    await held.reached.wait()

    agent.cancel(USER_CANCEL)
    await handle.dispose()

    assert reasons(agent) == [ABORTED_BY_USER]


async def test_disposal_alone_is_the_cause(loop: Loop) -> None:
    handle = await loop.create()
    held = Held()
    loop.model.will(held)
    handle.agent.followup(user("first"))
    await held.reached.wait()

    await handle.dispose()

    assert reasons(handle.agent) == [{"kind": "aborted", "reason": {"kind": "disposed"}}]


async def test_kept_messages_stay_parked_until_another_wake(loop: Loop) -> None:
    agent = await loop.agent()
    held = Held()
    loop.model.will(held, "two", "three")
    agent.followup(user("first"))
    await held.reached.wait()
    agent.followup(user("parked"))

    agent.cancel(USER_CANCEL, keep_inbox=True)
    await agent.when_idle()
    assert [text_of(message) for message in agent.inbox.next_turn] == ["parked"]

    agent.followup(user("woken"))
    await agent.when_idle()
    assert [text_of(data) for data in events_of(agent, "user/message")] == [
        "first",
        "parked",
        "woken",
    ]


async def test_a_wake_after_the_abort_runs_right_after_the_turn(loop: Loop) -> None:
    agent = await loop.agent()
    held = Held()
    loop.model.will(held, "two")
    agent.followup(user("first"))
    await held.reached.wait()

    agent.cancel(USER_CANCEL)
    agent.steer(user("replacement"))
    assert [text_of(message) for message in agent.inbox.next_turn] == ["replacement"]
    await agent.when_idle()

    assert [data["turn"] for data in events_of(agent, "turn/start")] == [1, 2]
    assert [reason["kind"] for reason in reasons(agent)] == ["aborted", "completed"]


@pytest.mark.parametrize("how", ["remove", "cancel"])
async def test_a_latched_wake_that_is_withdrawn_opens_no_turn(loop: Loop, how: str) -> None:
    agent = await loop.agent()
    held = Held()
    loop.model.will(held)
    agent.followup(user("first"))
    await held.reached.wait()
    message = user("replacement")

    agent.cancel(USER_CANCEL)
    agent.followup(message)
    if how == "remove":
        agent.inbox.remove(message["id"])  # type: ignore[arg-type]
    else:
        agent.cancel(USER_CANCEL)
        agent.inject(user("wakes nobody"))
    await agent.when_idle()

    assert [data["turn"] for data in events_of(agent, "turn/start")] == [1]


async def test_a_wake_after_a_disposed_abort_stays_parked(loop: Loop) -> None:
    agent = await loop.agent()
    held = Held()
    loop.model.will(held)
    agent.followup(user("first"))
    await held.reached.wait()

    agent.cancel(DISPOSED_CANCEL)
    agent.followup(user("parked"))
    await agent.when_idle()

    assert [data["turn"] for data in events_of(agent, "turn/start")] == [1]
    assert [text_of(message) for message in agent.inbox.next_turn] == ["parked"]


async def test_a_wake_after_disposal_began_never_runs(loop: Loop) -> None:
    handle = await loop.create()
    agent = handle.agent
    held = Held()
    loop.model.will(held)
    agent.followup(user("first"))
    await held.reached.wait()
    ending = asyncio.create_task(handle.dispose())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    agent.followup(user("too late"))
    loop.root.on(AGENT_STATUS, lambda event: agent.followup(user("even later")))
    await ending

    assert [data["turn"] for data in events_of(agent, "turn/start")] == [1]
    assert agent.status == "idle"


async def test_waiting_for_a_cancelled_or_failed_run_never_raises(loop: Loop) -> None:
    agent = await loop.agent()
    loop.model.will(fails())

    agent.followup(user("first"))
    waiting = asyncio.create_task(agent.when_idle())
    agent.cancel(USER_CANCEL)
    await waiting
    agent.followup(user("second"))
    await agent.when_idle()
    assert [reason["kind"] for reason in reasons(agent)] == ["aborted", "error"]


SEAMS = {
    "assemble": SYSTEM_PROMPT_ASSEMBLE,
    "pre-step": AGENT_PRE_STEP,
    "request": AGENT_REQUEST,
    "tool": TOOLS_PRE_EXECUTE,
}


def signal_of(payload: Any) -> Any:
    return payload.context.signal if hasattr(payload, "context") else payload.signal


@pytest.mark.parametrize("seam", list(SEAMS))
async def test_a_listener_blocked_at_a_seam_is_released_by_the_turn_signal(
    loop: Loop, seam: str
) -> None:
    agent = await loop.agent()
    blocked = asyncio.Event()

    async def act() -> str:
        return "done"

    async def block(payload: Any, next: Any) -> Any:
        blocked.set()
        await signal_of(payload).wait()
        return await next()

    add_tool(loop.root, act)
    loop.model.will(calls(("c1", "act", "{}")))
    loop.root.on(SEAMS[seam], block)  # type: ignore[arg-type]
    agent.followup(user("first"))
    await blocked.wait()
    agent.cancel(USER_CANCEL)
    await agent.when_idle()

    assert reasons(agent) == [ABORTED_BY_USER]


async def test_a_listener_blocked_at_turn_stopping_is_released(loop: Loop) -> None:
    agent = await loop.agent()
    blocked = asyncio.Event()
    loop.model.will("ok")

    async def block(event: Any) -> None:
        blocked.set()
        await event.signal.wait()

    loop.root.on(AGENT_TURN_STOPPING, block)
    agent.followup(user("first"))
    await blocked.wait()
    agent.cancel(USER_CANCEL)
    await agent.when_idle()
    assert reasons(agent) == [ABORTED_BY_USER]


async def test_cancel_inside_an_append_aborts_even_though_it_cannot_clear(
    loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    agent = await loop.agent()
    when(loop, "step/start", lambda: agent.cancel(USER_CANCEL))
    agent.followup(user("first"))
    agent.followup(user("second"))
    await agent.when_idle()

    assert reasons(agent) == [ABORTED_BY_USER]
    assert [text_of(message) for message in agent.inbox.next_turn] == ["second"]


async def test_a_cancel_at_turn_end_cannot_change_the_recorded_reason(loop: Loop) -> None:
    agent = await loop.agent()
    loop.model.otherwise = says("ok")
    when(loop, "turn/end", lambda: agent.cancel(USER_CANCEL, keep_inbox=True))
    agent.followup(user("first"))
    agent.followup(user("second"))
    await agent.when_idle()

    assert reasons(agent) == [{"kind": "completed"}]
    assert [text_of(message) for message in agent.inbox.next_turn] == ["second"]


async def test_errors_of_cancellation_are_not_reported(loop: Loop) -> None:
    agent = await loop.agent()
    errors: list[Any] = []
    loop.root.on(AGENT_ERROR, errors.append)
    held = Held()
    loop.model.will(held)
    agent.followup(user("first"))
    await held.reached.wait()
    agent.cancel(USER_CANCEL)
    await agent.when_idle()
    assert errors == []
