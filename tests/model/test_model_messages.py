from __future__ import annotations

import pytest

from dsh.base.json import NotLossless
from dsh.model.chunks import (
    block_start,
    is_first_token,
    reasoning_delta,
    text_delta,
    tool_call_delta,
)
from dsh.model.messages import (
    create_assistant_message,
    create_tool_result_message,
    create_user_message,
    text_of,
    tool_calls_of,
)


def test_a_user_message_has_a_fresh_id_and_comes_from_the_user() -> None:
    one, two = create_user_message("hi"), create_user_message("hi")
    assert one["id"] != two["id"]
    assert {**one, "id": ""} == {
        "id": "",
        "role": "user",
        "content": [{"type": "text", "text": "hi"}],
        "source": {"kind": "user"},
    }


def test_a_message_is_detached_from_what_it_was_made_of_and_frozen() -> None:
    block: dict[str, object] = {"type": "widget", "rows": [1]}
    message = create_user_message([block], {"kind": "plugin", "plugin": "x"})  # type: ignore[list-item]

    block["rows"].append(2)  # type: ignore[attr-defined]

    assert message["content"] == [{"type": "widget", "rows": [1]}]
    with pytest.raises(TypeError):
        message["source"]["kind"] = "user"  # type: ignore[index]


def test_a_block_that_is_not_json_is_refused() -> None:
    with pytest.raises(NotLossless, match=r"content\[0\]"):
        create_user_message([{"type": "text", "text": object()}])  # type: ignore[typeddict-item]


def test_a_tool_result_is_a_user_message_with_one_block_and_names_its_call_twice() -> None:
    message = create_tool_result_message("c1", [{"type": "text", "text": "out"}], is_error=False)
    assert message["role"] == "user"
    assert message["source"] == {"kind": "tool", "callId": "c1"}
    assert message["content"] == [
        {"type": "tool-result", "toolCallId": "c1", "content": [{"type": "text", "text": "out"}]}
    ]


def test_only_a_failed_tool_result_says_so() -> None:
    (block,) = create_tool_result_message("c1", [], is_error=True)["content"]
    assert block["isError"] is True  # type: ignore[typeddict-item]


def test_an_assistant_message_names_its_model_and_keeps_replay_state() -> None:
    plain = create_assistant_message([], "p", "m")
    replayable = create_assistant_message([], "p", "m", {"response": {"id": 1}})
    assert plain["source"] == {"kind": "model", "provider": "p", "model": "m"}
    assert replayable["source"]["replayState"] == {"response": {"id": 1}}


def test_text_and_calls_are_read_from_a_reply() -> None:
    message = create_assistant_message(
        [
            {"type": "reasoning", "text": "hm"},
            {"type": "text", "text": "a"},
            {"type": "tool-call", "id": "1", "name": "n", "arguments": "{}"},
            {"type": "text", "text": "b"},
        ],
        "p",
        "m",
    )
    assert text_of(message) == "ab"
    assert [call["id"] for call in tool_calls_of(message)] == ["1"]


def test_a_first_token_carries_words() -> None:
    assert is_first_token(text_delta(0, "a"))
    assert is_first_token(reasoning_delta(0, "a"))
    assert is_first_token(tool_call_delta(0, "c", "", "name"))
    assert is_first_token(tool_call_delta(0, "c", "{"))
    assert not is_first_token(text_delta(0, ""))
    assert not is_first_token(tool_call_delta(0, "c", ""))
    assert not is_first_token(block_start(0, "text"))
