from __future__ import annotations

from typing import Any

import pytest
from state_logs import answer, call, close_turn, open_turn, reply, say, whole_turn

from dsh.state.session.events import STEP_END, STEP_START, TURN_END, StepData, TurnEndData
from dsh.state.session.repair import (
    TOOL_NOT_STARTED,
    TOOL_OUTCOME_UNKNOWN,
    interrupted_turn_closers,
)
from dsh.state.session.session import Session


@pytest.fixture
def session() -> Session:
    return Session.create("s")


def types(events: Any) -> list[str]:
    return [event["type"] for event in events]


def test_an_empty_or_balanced_log_needs_nothing(session: Session) -> None:
    assert interrupted_turn_closers(session.events) == []
    whole_turn(session)
    assert interrupted_turn_closers(session.events) == []


def test_an_open_step_and_turn_are_closed_in_this_order(session: Session) -> None:
    open_turn(session)
    closers = interrupted_turn_closers(session.events)
    assert types(closers) == ["step/end", "turn/end"]
    assert closers[-1]["data"] == {"turn": 1, "reason": {"kind": "interrupted"}}


def test_a_turn_between_steps_is_closed_alone(session: Session) -> None:
    open_turn(session)
    session.append(STEP_END, StepData(turn=1, step=1))
    assert types(interrupted_turn_closers(session.events)) == ["turn/end"]


def test_a_started_call_has_an_unknown_outcome_and_another_did_not_run(session: Session) -> None:
    open_turn(session)
    reply(session, calls={"c1": "bash", "c2": "read"})
    started = call(session, "c1", "bash")
    unknown, unstarted, *_ = closers = interrupted_turn_closers(session.events)
    assert types(closers) == ["tool/result", "tool/result", "step/end", "turn/end"]
    assert unknown["sourceEventSeqs"] == [started["seq"]]
    assert "sourceEventSeqs" not in unstarted
    assert [event["data"]["error"] for event in (unknown, unstarted)] == [
        {"name": "ToolOutcomeUnknownError", "code": TOOL_OUTCOME_UNKNOWN},
        {"name": "ToolNotStartedError", "code": TOOL_NOT_STARTED},
    ]
    message: Any = unknown["data"]["message"]
    assert message["id"] == f"interrupted-tool-result-c1-{unknown['seq']}"
    assert message["content"][0]["isError"] is True
    assert "do not repeat it blindly" in message["content"][0]["content"][0]["text"]


def test_several_calls_are_answered_in_the_order_of_the_request(session: Session) -> None:
    open_turn(session)
    reply(session, calls={"a": "x", "b": "x", "c": "x"})
    call(session, "c")
    call(session, "a")
    answer(session, call(session, "b"))
    closers = interrupted_turn_closers(session.events)
    data: Any = [event["data"] for event in closers[:2]]
    assert [item["message"]["source"]["callId"] for item in data] == ["a", "c"]
    assert [event["seq"] for event in closers] == list(range(session.seq, session.seq + 4))
    assert {event["time"] for event in closers} == {session.events[-1]["time"]}


def test_calls_of_closed_steps_and_turns_are_left_alone(session: Session) -> None:
    open_turn(session)
    reply(session, calls={"c1": "x"})
    close_turn(session)
    open_turn(session, 2)
    assert types(interrupted_turn_closers(session.events)) == ["step/end", "turn/end"]


def test_calls_of_a_closed_step_of_the_open_turn_are_left_alone(session: Session) -> None:
    open_turn(session)
    reply(session, calls={"c1": "x"})
    call(session, "c1")
    session.append(STEP_END, StepData(turn=1, step=1))
    assert types(interrupted_turn_closers(session.events)) == ["turn/end"]
    session.append(STEP_START, StepData(turn=1, step=2))
    assert types(interrupted_turn_closers(session.events)) == ["step/end", "turn/end"]


def test_calls_of_a_turn_without_an_end_do_not_reach_the_next(session: Session) -> None:
    open_turn(session)
    reply(session, calls={"c1": "x"})
    open_turn(session, 2)
    assert types(interrupted_turn_closers(session.events)) == ["step/end", "turn/end"]


def test_a_call_that_no_message_asked_for_is_ignored(session: Session) -> None:
    open_turn(session)
    call(session, "stray")
    assert types(interrupted_turn_closers(session.events)) == ["step/end", "turn/end"]


def test_the_closed_log_is_a_valid_seed_and_closing_it_again_does_nothing(session: Session) -> None:
    open_turn(session)
    say(session, "go")
    reply(session, calls={"c1": "x", "c2": "x"})
    call(session, "c1")
    closers = interrupted_turn_closers(session.events)
    closed = [*session.events, *closers]
    assert interrupted_turn_closers(session.events) == closers
    assert interrupted_turn_closers(closed) == []
    again = Session.create("s", seed=closed)
    results: Any = [m for m in again.derive_messages() if m["source"]["kind"] == "tool"]
    assert [message["source"]["callId"] for message in results] == ["c1", "c2"]


def test_a_partly_closed_log_is_closed_the_rest_of_the_way(session: Session) -> None:
    open_turn(session)
    reply(session, calls={"c1": "x", "c2": "x"})
    closers = interrupted_turn_closers(session.events)
    part = [*session.events, closers[0]]
    assert types(interrupted_turn_closers(part)) == ["tool/result", "step/end", "turn/end"]


def test_every_reason_closes_a_turn(session: Session) -> None:
    open_turn(session)
    reason: Any = {"kind": "aborted", "reason": {"kind": "user"}}
    session.append(TURN_END, TurnEndData(turn=1, reason=reason))
    assert interrupted_turn_closers(session.events) == []
