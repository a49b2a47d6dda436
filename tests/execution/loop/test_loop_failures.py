from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from loop_harness import Loop, calls, events_of, fails, reasons, says, types, user

from dsh.base.errors import DshError, error_chain
from dsh.execution.agent.events import (
    AGENT_ERROR,
    AGENT_PRE_STEP,
    AGENT_REQUEST,
    AGENT_REQUEST_ERROR,
    AGENT_STATUS,
    Retry,
)
from dsh.execution.prompt.service import PromptSection, SystemPrompt
from dsh.kernel import INTERNAL_DISPATCH
from dsh.model.chunks import StreamChunk, finish_failure, text_delta
from dsh.model.failures import LlmError
from dsh.model.llm.events import LLM_STREAM
from dsh.model.messages import text_of
from dsh.state.session.events import SESSION_EVENT

COMPLETED = {"kind": "completed"}


class Named(DshError):
    code = "NAMED"


async def test_a_provider_failure_ends_the_turn_with_its_facts(loop: Loop) -> None:
    agent = await loop.agent()
    errors: list[Any] = []
    loop.root.on(AGENT_ERROR, errors.append)
    loop.model.will(fails("busy", "RATE_LIMIT"))

    agent.followup(user("first"))
    await agent.when_idle()

    assert reasons(agent) == [{"kind": "error", "error": {"message": "busy", "code": "RATE_LIMIT"}}]
    assert isinstance(errors[0].error, LlmError)
    assert (errors[0].turn, errors[0].step) == (1, 1)
    assert events_of(agent, "assistant/message") == []


async def test_an_aborted_finish_is_a_failure_when_nobody_aborted(loop: Loop) -> None:
    agent = await loop.agent()

    async def reply(_: Any) -> AsyncIterator[StreamChunk]:
        yield finish_failure({"message": "gone", "code": "ABORTED"}, aborted=True)

    loop.model.will(reply)
    agent.followup(user("first"))
    await agent.when_idle()
    assert reasons(agent)[0]["error"]["code"] == "ABORTED"


@pytest.mark.parametrize(
    ("kind", "failure", "facts"),
    [
        ("error", {"message": "gone"}, {"message": "gone", "code": "UNKNOWN"}),
        ("aborted", {"message": "gone"}, {"message": "gone", "code": "ABORTED"}),
        ("error", None, {"message": "the model call failed", "code": "UNKNOWN"}),
        ("error", {"message": "x", "status": 7}, {"message": "x", "code": "UNKNOWN"}),
    ],
)
async def test_a_failure_that_lacks_facts_ends_the_turn_with_those_it_has(
    loop: Loop, kind: str, failure: Any, facts: Any
) -> None:
    agent = await loop.agent()

    async def stream(_: Any, next: Any) -> Any:
        async def chunks() -> AsyncIterator[Any]:
            yield {"type": "finish", "reason": {"kind": kind, "failure": failure or {}}}

        return chunks()

    loop.root.on(LLM_STREAM, stream)
    agent.followup(user("first"))
    await agent.when_idle()
    assert reasons(agent) == [{"kind": "error", "error": facts}]


async def test_an_exception_of_the_adapter_is_a_provider_failure(loop: Loop) -> None:
    agent = await loop.agent()

    async def reply(_: Any) -> AsyncIterator[StreamChunk]:
        yield text_delta(0, "half")
        raise ValueError("broken adapter")

    loop.model.will(reply)
    agent.followup(user("first"))
    await agent.when_idle()
    assert reasons(agent)[0]["error"]["message"] == "broken adapter"


async def test_a_retry_asks_again_in_the_same_step_and_cites_its_own_chunks(loop: Loop) -> None:
    agent = await loop.agent()
    loop.model.will(fails("busy", "SERVER"), "fine")
    asked: list[Any] = []

    async def recover(event: Any, next: Any) -> Any:
        asked.append(event)
        return Retry()

    loop.root.on(AGENT_REQUEST_ERROR, recover)
    agent.followup(user("first"))
    await agent.when_idle()

    assert types(agent).count("step/start") == 1
    assert asked[0].provider == "scripted"
    assert asked[0].failure == {"message": "busy", "code": "SERVER"}
    message = next(e for e in agent.session.events if e["type"] == "assistant/message")
    chunks = [e["seq"] for e in agent.session.events if e["type"] == "assistant/chunk"]
    assert message["sourceEventSeqs"] == chunks[2:]
    assert text_of(message["data"]["message"]) == "fine"  # type: ignore[arg-type]
    assert reasons(agent) == [COMPLETED]


async def test_errors_of_stream_wrappers_are_raised_and_not_offered_to_recovery(
    loop: Loop,
) -> None:
    agent = await loop.agent()
    offered: list[Any] = []
    loop.root.on(AGENT_REQUEST_ERROR, lambda event, _: offered.append(event))
    loop.model.will("ok")

    async def wrap(payload: Any, next: Any) -> Any:
        raise KeyError("wrapper")

    stop = loop.root.on(LLM_STREAM, wrap)
    agent.followup(user("first"))
    await agent.when_idle()
    stop.dispose()

    assert offered == []
    assert reasons(agent)[0]["kind"] == "error"


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


async def test_an_unprintable_error_still_closes_the_turn_with_a_safe_message(loop: Loop) -> None:
    agent = await loop.agent()
    loop.model.otherwise = says("ok")

    async def fail(payload: Any, next: Any) -> Any:
        raise Unprintable

    failing = loop.root.on(AGENT_PRE_STEP, fail)
    agent.followup(user("first"))
    await agent.when_idle()
    failing.dispose()
    agent.followup(user("second"))
    await agent.when_idle()

    assert reasons(agent) == [
        {"kind": "error", "error": {"message": "unprintable Unprintable", "code": "UNKNOWN"}},
        COMPLETED,
    ]


async def test_a_cancelled_error_raised_by_a_listener_is_its_failure(loop: Loop) -> None:
    agent = await loop.agent()
    loop.model.otherwise = says("ok")
    errors: list[Any] = []
    loop.root.on(AGENT_ERROR, errors.append)

    async def fail(payload: Any, next: Any) -> Any:
        raise asyncio.CancelledError

    failing = loop.root.on(AGENT_PRE_STEP, fail)
    agent.followup(user("first"))
    await agent.when_idle()
    failing.dispose()
    agent.followup(user("second"))
    await agent.when_idle()

    assert [reason["kind"] for reason in reasons(agent)] == ["error", "completed"]
    assert "CancelledError" in repr(errors[0].error)


async def test_a_cancelled_error_raised_by_the_provider_is_its_failure(loop: Loop) -> None:
    agent = await loop.agent()

    async def reply(_: Any) -> AsyncIterator[StreamChunk]:
        yield text_delta(0, "half")
        raise asyncio.CancelledError

    loop.model.will(reply)
    agent.followup(user("first"))
    await agent.when_idle()
    assert [reason["kind"] for reason in reasons(agent)] == ["error"]


async def test_throwing_observers_change_nothing(
    loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    agent = await loop.agent()
    loop.model.will("one", "two", fails())

    def fail(event: Any) -> None:
        raise RuntimeError("observer")

    for event in (AGENT_STATUS, AGENT_ERROR, SESSION_EVENT):
        loop.root.on(event, fail)  # type: ignore[arg-type]
    agent.followup(user("first"))
    agent.followup(user("second"))
    agent.followup(user("third"))
    await agent.when_idle()

    assert [reason["kind"] for reason in reasons(agent)] == ["completed", "completed", "error"]
    assert agent.status == "idle"


def veto(loop: Loop, type: str) -> Any:
    def check(event: Any) -> None:
        if event.name == "session/event" and event.payload.event["type"] == type:
            raise RuntimeError(f"{type} is vetoed")

    return loop.root.on(INTERNAL_DISPATCH, check)


async def test_a_rejected_turn_start_leaves_no_turn(loop: Loop) -> None:
    agent = await loop.agent()
    loop.model.otherwise = says("ok")
    errors: list[Any] = []
    loop.root.on(AGENT_ERROR, errors.append)

    vetoing = veto(loop, "turn/start")
    agent.followup(user("first"))
    await agent.when_idle()
    assert types(agent) == []
    assert len(errors) == 1
    assert agent.status == "idle"

    vetoing.dispose()
    agent.followup(user("second"))
    await agent.when_idle()
    assert [data["turn"] for data in events_of(agent, "turn/start")] == [1, 2]


async def test_a_rejected_step_start_invents_no_step(loop: Loop) -> None:
    agent = await loop.agent()
    vetoing = veto(loop, "step/start")
    agent.followup(user("first"))
    await agent.when_idle()
    vetoing.dispose()

    assert types(agent) == ["turn/start", "turn/end"]
    assert reasons(agent)[0]["kind"] == "error"


async def test_a_rejected_turn_end_is_reported_and_not_retried(root: Any, model: Any) -> None:
    from loop_harness import mount

    loop = await mount(root, model)
    agent = await loop.agent()
    loop.model.will("ok")
    errors: list[Any] = []
    loop.root.on(AGENT_ERROR, errors.append)
    vetoing = veto(loop, "turn/end")
    agent.followup(user("first"))
    await agent.when_idle()
    vetoing.dispose()

    assert events_of(agent, "turn/end") == []
    assert str(errors[0].error) == "turn/end is vetoed"
    assert agent.status == "idle"


async def test_an_unknown_variable_fails_the_turn_and_later_turns_run(loop: Loop) -> None:
    agent = await loop.agent()
    loop.model.otherwise = says("ok")
    section = agent.ctx.require(SystemPrompt).section(PromptSection("bad", 1, "{{nothing}}"))
    agent.followup(user("first"))
    await agent.when_idle()
    section.dispose()
    agent.followup(user("second"))
    await agent.when_idle()

    assert [reason["kind"] for reason in reasons(agent)] == ["error", "completed"]


async def test_changing_the_frozen_config_raises_into_the_step(loop: Loop) -> None:
    agent = await loop.agent()

    async def edit(payload: Any, next: Any) -> Any:
        config = await next()
        config["model"] = "other"
        return config

    loop.root.on(AGENT_REQUEST, edit)
    agent.followup(user("first"))
    await agent.when_idle()
    assert "read-only" in reasons(agent)[0]["error"]["message"]


async def test_a_failed_turn_leaves_queued_prompts_parked(loop: Loop) -> None:
    agent = await loop.agent()
    loop.model.will(fails(), "two", "three")
    agent.followup(user("first"))
    agent.followup(user("second"))
    await agent.when_idle()
    assert [text_of(message) for message in agent.inbox.next_turn] == ["second"]

    agent.followup(user("third"))
    await agent.when_idle()
    assert [reason["kind"] for reason in reasons(agent)] == ["error", "completed", "completed"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Named("mine"), "NAMED"),
        (DshError("plain"), "UNKNOWN"),
        (DshError("given", code="GIVEN"), "GIVEN"),
        (DshError("empty", code=""), "UNKNOWN"),
        (ValueError("foreign"), "UNKNOWN"),
        (ExceptionGroup("several", [Named("inner")]), "UNKNOWN"),
    ],
    ids=lambda each: each if isinstance(each, str) else type(each).__name__,
)
async def test_a_failure_that_has_a_code_keeps_it_in_the_turns_end(
    loop: Loop, error: Exception, code: str
) -> None:
    def refuse(*_: Any) -> Any:
        raise error

    agent = await loop.agent()
    loop.root.on(AGENT_PRE_STEP, refuse)
    agent.followup(user("first"))
    await agent.when_idle()
    assert reasons(agent) == [
        {"kind": "error", "error": {"message": error_chain(error), "code": code}}
    ]


@pytest.mark.parametrize("way", ["followup", "steer"])
async def test_a_wake_from_an_error_listener_is_heard_when_the_driver_has_come_to_rest(
    loop: Loop, way: str
) -> None:
    agent = await loop.agent()
    statuses: list[str] = []
    loop.root.on(AGENT_ERROR, lambda _: getattr(agent, way)(user("once more")))
    loop.root.on(AGENT_STATUS, lambda event: statuses.append(event.status))
    loop.model.will(fails(), "ok")
    agent.followup(user("first"))
    await agent.when_idle()
    assert [reason["kind"] for reason in reasons(agent)] == ["error", "completed"]
    assert statuses == ["running", "idle"] * 2


async def test_a_wake_from_an_error_listener_of_a_refused_turn_start_is_heard(
    loop: Loop,
) -> None:
    agent = await loop.agent()
    refused: list[int] = []

    def check(event: Any) -> None:
        if event.name != "session/event" or refused:
            return
        if event.payload.event["type"] == "turn/start":
            refused.append(1)
            raise RuntimeError("no turn")

    loop.root.on(INTERNAL_DISPATCH, check)
    loop.root.on(AGENT_ERROR, lambda _: agent.followup(user("once more")))
    loop.model.will("ok", "ok")
    agent.followup(user("first"))
    await agent.when_idle()
    assert [reason["kind"] for reason in reasons(agent)] == ["completed", "completed"]


async def test_an_append_that_is_refused_during_tools_leaves_a_paired_history(loop: Loop) -> None:
    from loop_harness import add_tool, results

    agent = await loop.agent()

    async def act() -> str:
        return "done"

    add_tool(loop.root, act)
    loop.model.will(calls(("c1", "act", "{}"), ("c2", "act", "{}"), ("c3", "act", "{}")))
    refused: list[int] = []

    def check(event: Any) -> None:
        if event.name != "session/event" or event.payload.event["type"] != "tool/call":
            return
        if event.payload.event["data"]["callId"] == "c2" and not refused:
            refused.append(1)
            raise RuntimeError("c2 is vetoed")

    loop.root.on(INTERNAL_DISPATCH, check)
    agent.followup(user("first"))
    await agent.when_idle()

    assert [(call, code) for call, _, _, code in results(agent)] == [
        ("c1", None),
        ("c2", "TOOL_NOT_STARTED"),
        ("c3", "TOOL_NOT_STARTED"),
    ]
    assert reasons(agent)[0]["error"]["message"] == "c2 is vetoed"


async def test_a_keyboard_interrupt_in_a_step_balances_the_log(loop: Loop) -> None:
    from dsh.execution.loop.driver import Driver
    from dsh.execution.loop.phase import Running

    agent: Any = await loop.agent()
    phase = Running(0)
    driver = Driver(agent, phase)
    agent.inbox.append("next-turn", user("first"))
    opening = driver.open_turn()

    async def interrupt(_: Any) -> AsyncIterator[StreamChunk]:
        raise KeyboardInterrupt
        yield

    loop.model.will(interrupt)
    with pytest.raises(KeyboardInterrupt):
        await driver.run(opening)
    assert reasons(agent) == [{"kind": "aborted", "reason": {"kind": "disposed"}}]
    assert types(agent)[-2:] == ["step/end", "turn/end"]
