"""What the log tells of approvals: the call behind a question, and what may not be written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from dsh.control.approval import invariants
from dsh.control.approval.events import (
    APPROVAL_ASKED,
    APPROVAL_DECIDED,
    APPROVAL_POLICY,
    call_of,
)
from dsh.kernel import Context
from dsh.model.messages import CallId
from dsh.state.session.events import (
    STEP_START,
    TOOL_CALL,
    TURN_END,
    TURN_START,
    EventType,
    StepData,
    TurnEndData,
    TurnStartData,
)
from dsh.state.session.nesting import BrokenInvariant
from dsh.state.session.session import Session
from dsh.state.session.store import LocalSessionStore

NESTED: Any = EventType("tool/code-dispatch-start")


def session_with(*calls: tuple[str, str, str]) -> Session:
    session = Session.create("s", types=[NESTED])
    session.append(TURN_START, TurnStartData(turn=1))
    session.append(STEP_START, StepData(turn=1, step=1))
    for call_id, tool, arguments in calls:
        session.append(
            TOOL_CALL,
            {"turn": 1, "step": 1, "callId": call_id, "name": tool, "arguments": arguments},
        )
    return session


def test_the_call_of_a_question_has_the_arguments_as_the_model_wrote_them() -> None:
    session = session_with(("c1", "bash", '{ "command": "rm" }'), ("c2", "read", "{}"))
    call = call_of(session, CallId("c1"))
    assert call is not None
    assert (call.name, call.arguments, call.event["seq"]) == ("bash", '{ "command": "rm" }', 2)


def test_an_id_that_was_used_again_means_the_newest_call_before_the_question() -> None:
    session = session_with(("c", "bash", "1"), ("c", "bash", "2"))
    newest, earlier = call_of(session, CallId("c")), call_of(session, CallId("c"), before=3)
    assert newest is not None
    assert earlier is not None
    assert (newest.arguments, earlier.arguments) == ("2", "1")


@pytest.mark.parametrize("call_id", [None, CallId("other")])
def test_a_question_about_no_call_of_the_log_has_none(call_id: CallId | None) -> None:
    assert call_of(session_with(("c", "bash", "{}")), call_id) is None


def test_a_call_inside_a_program_is_found_by_its_own_id() -> None:
    session = session_with(("c", "run_code", "{}"))
    data = {"subCallId": "c:code:1", "name": "bash", "arguments": {"b": 1, "a": [2]}}
    session.append(NESTED, data)
    call = call_of(session, CallId("c:code:1"))
    assert call is not None
    assert (call.name, call.arguments) == ("bash", '{"a":[2],"b":1}')


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        ('{"a": 1, "b": "x"}', '{"b":"\\u0078","a":1}', True),
        ('{"a": 1}', '{"a": 1.0}', False),
        ('{"a": 1}', '{"a": "1"}', False),
        ("not json", "not  json", False),
    ],
)
def test_arguments_compare_by_what_they_say(left: str, right: str, same: bool) -> None:
    session = session_with(("1", "t", left), ("2", "t", right))
    calls = [call_of(session, CallId(each)) for each in ("1", "2")]
    texts = [call.canonical_arguments for call in calls if call is not None]
    assert (texts[0] == texts[1]) is same


def turn_end(turn: int) -> Any:
    return (TURN_END, TurnEndData(turn=turn, reason={"kind": "completed"}))


def turn_start(turn: int) -> Any:
    return (TURN_START, TurnStartData(turn=turn))


def asked(id: str = "q", tool: str = "bash") -> Any:
    return (APPROVAL_ASKED, {"id": id, "toolName": tool})


def decided(id: str = "q", outcome: str = "rejected") -> Any:
    return (APPROVAL_DECIDED, {"id": id, "outcome": outcome})


def policy(value: str) -> Any:
    return (APPROVAL_POLICY, {"policy": value})


async def guarded(root: Context, meta: Any = None, seed: Any = None) -> Session:
    await root.plugin(LocalSessionStore)
    store = root.require(LocalSessionStore)
    for event_type in (APPROVAL_ASKED, APPROVAL_DECIDED, APPROVAL_POLICY):
        store.declare(event_type)
    await root.plugin(invariants)
    return store.create("s", seed=seed, meta=meta)


@pytest.mark.parametrize(
    ("before", "refused", "problem"),
    [
        ([], asked(), "no turn is open"),
        ([turn_start(1), turn_end(1)], asked(), "no turn is open"),
        ([turn_start(1)], asked(tool=""), "toolName is empty"),
        ([turn_start(1), asked()], asked(), "open already"),
        ([turn_start(1)], decided(), "no question 'q' is open"),
        ([turn_start(1), asked(), decided()], decided(), "no question 'q' is open"),
        ([turn_start(1), asked()], decided(outcome="sure"), "'sure' does not exist"),
        ([], policy("sometimes"), "'sometimes' does not exist"),
    ],
)
async def test_a_wrong_record_is_refused_before_it_is_logged(
    root: Context, before: Sequence[Any], refused: Any, problem: str
) -> None:
    session = await guarded(root)
    for event_type, data in before:
        session.append(event_type, data)
    length = session.seq
    with pytest.raises(BrokenInvariant, match=problem):
        session.append(*refused)
    assert session.seq == length


@pytest.mark.parametrize("between", [[], [turn_start(2)], [turn_start(2), turn_end(2)]])
async def test_a_question_whose_turn_was_cut_off_may_be_decided_at_any_time(
    root: Context, between: Sequence[Any]
) -> None:
    session = await guarded(root)
    for event_type, data in [turn_start(1), asked(), turn_end(1), *between, decided()]:
        session.append(event_type, data)
    assert session.events[-1]["type"] == "approval/decided"


async def test_a_fork_may_not_decide_what_its_parent_was_asked(root: Context) -> None:
    parent = Session.create("p", types=[APPROVAL_ASKED])
    for event_type, data in [turn_start(1), asked(), turn_end(1)]:
        parent.append(event_type, data)
    session = await guarded(root, {"parentSession": "p", "seedLength": 3}, parent.events)
    with pytest.raises(BrokenInvariant, match="is open"):
        session.append(*decided())
