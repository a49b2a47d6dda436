from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NotRequired, TypedDict

import pytest

from dsh.model.messages import create_tool_result_message, create_user_message
from dsh.state.session.declared.goals import GOAL_CHANGE
from dsh.state.session.declared.schedules import SCHEDULE_CHANGE
from dsh.state.session.declared.subagents import SUBAGENT_DESCRIPTOR
from dsh.state.session.events import (
    ASSISTANT_MESSAGE,
    REQUEST_HEADER,
    SESSION_END_SEED,
    TODO_WRITE,
    TOOL_RESULT,
    TURN_START,
    USER_MESSAGE,
    EventType,
)
from dsh.state.session.payloads import payload_problem

USAGE = {"inputTokens": 1, "outputTokens": 2}


def reply(*blocks: Any, **more: Any) -> dict[str, Any]:
    message = {
        "id": "m",
        "role": "assistant",
        "content": list(blocks),
        "source": {"kind": "model", "provider": "p", "model": "m", "replayState": [1]},
    }
    return {"turn": 1, "step": 1, "message": message, **more}


GOAL = {"id": "g", "revision": 1, "objective": "o", "phase": "active", "maxGoalRounds": 3}
GOOD: list[tuple[EventType[Any], dict[str, Any]]] = [
    (SESSION_END_SEED, {}),
    (TURN_START, {"turn": 1}),
    (USER_MESSAGE, dict(create_user_message("hi"))),
    (ASSISTANT_MESSAGE, reply({"type": "text", "text": "t"}, usage=USAGE, interrupted=True)),
    (ASSISTANT_MESSAGE, reply({"type": "block-of-tomorrow", "anything": 1})),
    (
        TOOL_RESULT,
        {
            "turn": 1,
            "step": 1,
            "message": dict(create_tool_result_message("c", [{"type": "text", "text": ""}], True)),
            "error": {"name": "E", "code": "C"},
            "meta": [None, {"deep": [1]}],
        },
    ),
    (TODO_WRITE, {"todos": [{"content": "c", "status": "pending"}]}),
    (
        REQUEST_HEADER,
        {
            "header": {
                "config": {"provider": "p", "model": "m", "temperature": 1, "stop": ["x"]},
                "adapterDefaults": {"maxTokens": True},
                "tools": [{"name": "n", "description": "d", "parameters": {"type": "object"}}],
            },
            "reason": "initial",
        },
    ),
    (
        GOAL_CHANGE,
        {
            "kind": "goal/change",
            "version": 1,
            "operation": "create",
            "goal": GOAL,
            "roundsStarted": 0,
            "createdAt": 1,
            "updatedAt": 1,
        },
    ),
    (SCHEDULE_CHANGE, {"version": 1, "operation": "dispatch", "id": "s"}),
    (SUBAGENT_DESCRIPTOR, {"version": 2, "mode": "one-shot", "provider": "p"}),
]


@pytest.mark.parametrize(("declared", "data"), GOOD, ids=lambda value: getattr(value, "name", ""))
def test_what_is_declared_is_fine(declared: EventType[Any], data: dict[str, Any]) -> None:
    assert payload_problem(declared, data) is None


BAD: list[tuple[EventType[Any], dict[str, Any], str]] = [
    (SESSION_END_SEED, {"x": 1}, "data.x is not a field of SessionEndSeedData"),
    (TURN_START, {}, "data.turn is missing"),
    (TURN_START, {"turn": "1"}, "data.turn is not an integer"),
    (TURN_START, {"turn": True}, "data.turn is not an integer"),
    (TURN_START, {"turn": 1.0}, "data.turn is not an integer"),
    (TODO_WRITE, {"todos": {}}, "data.todos is not a list"),
    (
        TODO_WRITE,
        {"todos": [{"content": "c", "status": "pending"}, {"content": "c", "status": "done"}]},
        "data.todos[1].status is 'done', not 'pending' or 'in_progress' or 'completed'",
    ),
    (ASSISTANT_MESSAGE, reply({"type": "text"}), "data.message.content[0].text is missing"),
    (ASSISTANT_MESSAGE, reply({"type": 1}), "data.message.content[0].type is not text"),
    (ASSISTANT_MESSAGE, reply("x"), "data.message.content[0] is not an object"),
    (ASSISTANT_MESSAGE, reply(interrupted=False), "data.interrupted is False, not True"),
    (
        ASSISTANT_MESSAGE,
        reply({"type": "tool-result", "toolCallId": "c", "content": [{"type": "image"}]}),
        "data.message.content[0].content[0].attachment is missing",
    ),
    (SCHEDULE_CHANGE, {"version": 1, "operation": "x"}, "data.operation is 'x', not 'create' or"),
    (
        SCHEDULE_CHANGE,
        {"version": True, "operation": "delete", "id": "s"},
        "data.version is True, not 1",
    ),
    (
        SUBAGENT_DESCRIPTOR,
        {"version": 2, "mode": "continuable", "provider": "p"},
        "data.label is missing",
    ),
]


@pytest.mark.parametrize(("declared", "data", "problem"), BAD)
def test_what_is_not_declared_is_named_with_its_place(
    declared: EventType[Any], data: dict[str, Any], problem: str
) -> None:
    assert str(payload_problem(declared, data)).startswith(problem)


class Inner(TypedDict, total=False):
    maybe: int


class Mixed(TypedDict):
    numbers: Mapping[str, float]
    either: NotRequired[int | str | None]
    words: NotRequired[Sequence[Literal["a", "b"]]]
    inner: NotRequired[Inner]


MIXED: EventType[Any] = EventType("acme/mixed", Mixed, ignorable=True)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ({"numbers": {"a": 1, "b": 1.5}, "either": None, "words": ["a"], "inner": {}}, None),
        ({"numbers": {"a": "1"}}, "data.numbers.a is not a number"),
        ({"numbers": []}, "data.numbers is not an object"),
        ({"numbers": {}, "either": 1.5}, "data.either is not an integer"),
        ({"numbers": {}, "words": ["a", "c"]}, "data.words[1] is 'c', not 'a' or 'b'"),
        ({"numbers": {}, "inner": {"maybe": None}}, "data.inner.maybe is not an integer"),
    ],
)
def test_declarations_of_plugins_are_read_too(data: dict[str, Any], problem: str | None) -> None:
    assert payload_problem(MIXED, data) == problem
