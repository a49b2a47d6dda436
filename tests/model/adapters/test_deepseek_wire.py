from __future__ import annotations

import json
from typing import Any

import pytest

from dsh.model.adapters.deepseek.wire import (
    WireHistory,
    encode_messages,
    encode_request,
    history_call_ids,
)
from dsh.model.failures import LlmError
from dsh.model.llm.service import GenerateOptions, ToolSchema
from dsh.model.messages import (
    ContentBlock,
    Message,
    create_assistant_message,
    create_message,
    create_tool_result_message,
    create_user_message,
)

IMAGE: Any = {"type": "image", "attachment": {"attachmentId": "sha256:" + "a" * 64}}


def text(value: str) -> ContentBlock:
    return {"type": "text", "text": value}


def assistant(*blocks: Any, provider: str = "deepseek-official") -> Message:
    return create_assistant_message(blocks, provider, "m")  # type: ignore[return-value]


def user(content: Any) -> Message:
    return create_user_message(content)  # type: ignore[return-value]


def result(call_id: str, *blocks: Any) -> Message:
    return create_tool_result_message(call_id, blocks, is_error=False)  # type: ignore[return-value]


def body(
    messages: list[Message] | None = None,
    *,
    thinking: str | None = None,
    vendor: bool = True,
    **more: Any,
) -> Any:
    options = GenerateOptions("deepseek-official", "m", messages or [user("hi")], **more)
    return json.loads(encode_request(options, thinking=thinking, vendor=vendor))


def test_a_plain_request_has_no_field_that_is_absent() -> None:
    assert body() == {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_scalars_and_tools_are_sent_as_they_are() -> None:
    tools: list[ToolSchema] = [
        {"name": "b", "description": "B", "parameters": {"type": "object", "properties": {}}},
        {"name": "a", "description": "A", "parameters": {"type": "object"}},
    ]
    got = body(tools=tools, temperature=0.0, max_tokens=7, stop=("X",))
    assert got["temperature"] == 0.0
    assert got["max_tokens"] == 7
    assert got["stop"] == ["X"]
    assert [tool["function"]["name"] for tool in got["tools"]] == ["b", "a"]
    assert got["tools"][0] == {"type": "function", "function": tools[0]}


def test_no_tools_means_no_field() -> None:
    assert "tools" not in body(tools=())


def test_the_system_prompt_comes_first() -> None:
    assert body(system="be brief")["messages"][0] == {"role": "system", "content": "be brief"}


def test_texts_of_a_user_message_are_joined() -> None:
    assert encode_messages(None, [user([text("a"), text("b")])]) == [
        {"role": "user", "content": "ab"}
    ]


def test_an_assistant_message_always_has_text_and_repeats_its_thoughts() -> None:
    call = {"type": "tool-call", "id": "c", "name": "n", "arguments": "{broken"}
    wire = encode_messages(
        None,
        [
            assistant({"type": "reasoning", "text": "hm"}),
            assistant({"type": "reasoning", "text": "a"}, {"type": "reasoning", "text": "b"}, call),
            assistant(text("x"), text("y")),
        ],
    )
    assert wire == [
        {"role": "assistant", "content": "", "reasoning_content": "hm"},
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "ab",
            "tool_calls": [
                {
                    "id": "c",
                    "type": "function",
                    "function": {"name": "n", "arguments": "{broken"},
                }
            ],
        },
        {"role": "assistant", "content": "xy"},
    ]


def test_thoughts_of_another_provider_are_repeated_as_thoughts_and_never_as_text() -> None:
    (wire,) = encode_messages(
        None, [assistant({"type": "reasoning", "text": "hm"}, text("x"), provider="other")]
    )
    assert wire == {"role": "assistant", "content": "x", "reasoning_content": "hm"}


def test_each_tool_result_is_a_message_of_its_own_after_the_text() -> None:
    blocks: Any = [
        {"type": "tool-result", "toolCallId": "1", "content": [text("one")]},
        text("note"),
        {"type": "tool-result", "toolCallId": "2", "content": []},
    ]
    assert encode_messages(None, [user(blocks)]) == [
        {"role": "user", "content": "note"},
        {"role": "tool", "tool_call_id": "1", "content": "one"},
        {"role": "tool", "tool_call_id": "2", "content": "(no output)"},
    ]


def test_unknown_blocks_are_skipped_and_an_empty_message_is_still_sent() -> None:
    blocks: Any = [{"type": "hologram", "data": 1}]
    assert encode_messages(None, [user(blocks)]) == [{"role": "user", "content": ""}]


def test_a_system_message_in_the_history_stays_one() -> None:
    message = create_message("system", [text("s")], {"kind": "plugin", "plugin": "x"})
    assert encode_messages(None, [message]) == [{"role": "system", "content": "s"}]


@pytest.mark.parametrize(
    "message", [user([IMAGE]), assistant(IMAGE), result("c", IMAGE), result("c", text("a"), IMAGE)]
)
def test_images_are_refused(message: Message) -> None:
    with pytest.raises(LlmError) as raised:
        encode_messages(None, [message])
    assert raised.value.code == "UNSUPPORTED_CONTENT"


@pytest.mark.parametrize(
    ("effort", "configured", "purpose", "vendor", "fields"),
    [
        (None, None, None, True, {}),
        (None, "enabled", None, True, {"thinking": {"type": "enabled"}}),
        (None, "disabled", None, False, {"thinking": {"type": "disabled"}}),
        ("off", None, None, True, {"thinking": {"type": "disabled"}}),
        (
            "high",
            None,
            None,
            False,
            {"thinking": {"type": "enabled"}, "reasoning_effort": "high"},
        ),
        ("off", "disabled", None, True, {"thinking": {"type": "disabled"}}),
        ("max", None, "session-title", True, {"thinking": {"type": "disabled"}}),
        (None, None, "session-title", True, {"thinking": {"type": "disabled"}}),
        (None, None, "session-title", False, {}),
        (None, "enabled", "session-title", False, {"thinking": {"type": "disabled"}}),
        (None, None, "compaction", True, {}),
    ],
)
def test_thinking_is_what_call_and_configuration_ask_for(
    effort: str | None,
    configured: str | None,
    purpose: str | None,
    vendor: bool,
    fields: dict[str, Any],
) -> None:
    got = body(thinking=configured, vendor=vendor, reasoning_effort=effort, purpose=purpose)
    assert {key: got[key] for key in ("thinking", "reasoning_effort") if key in got} == fields


@pytest.mark.parametrize(("effort", "configured"), [("huge", None), ("high", "disabled")])
def test_an_effort_that_is_not_offered_is_refused(effort: str, configured: str | None) -> None:
    with pytest.raises(LlmError, match="off") as raised:
        body(thinking=configured, reasoning_effort=effort)
    assert raised.value.code == "UNSUPPORTED_REASONING_EFFORT"


@pytest.mark.parametrize(
    ("output", "sent"),
    [
        ("a\ud800b", "a\ufffdb"),
        ("\udc00", "\ufffd"),
        ("cut \ud83d", "cut \ufffd"),
        ("NUL \x00 stays", "NUL \x00 stays"),
        ("\ufffe\uffff", "\ufffe\uffff"),
        ("a literal \\ud800 stays", "a literal \\ud800 stays"),
        ("emoji \U0001f600", "emoji \U0001f600"),
    ],
)
def test_any_tool_output_can_be_sent(output: str, sent: str) -> None:
    options = GenerateOptions("p", "m", [result("c", text(output))])
    data = encode_request(options, thinking=None, vendor=False)
    assert json.loads(data.decode("utf-8"))["messages"][0]["content"] == sent


@pytest.mark.parametrize(
    "place", ["model", "system", "stop", "tool", "thought", "call", "arguments", "result id"]
)
def test_what_cannot_be_encoded_can_stand_anywhere(place: str) -> None:
    broken = "a\ud800\x00\ufffe"

    def at(name: str) -> str:
        return broken if place == name else "x"

    tool = {"name": at("tool"), "description": at("tool"), "parameters": {at("tool"): at("tool")}}
    called = {
        "type": "tool-call",
        "id": at("call"),
        "name": at("call"),
        "arguments": at("arguments"),
    }
    thought = {"type": "reasoning", "text": at("thought")}
    options = GenerateOptions(
        "p",
        at("model"),
        [assistant(thought, called), result(at("result id"), text("x"))],
        system=at("system"),
        stop=[at("stop")],
        tools=[tool],  # type: ignore[list-item]
    )
    data = encode_request(options, thinking=None, vendor=True)
    assert json.dumps("a\ufffd\x00\ufffe")[1:-1] in json.dumps(json.loads(data.decode("utf-8")))


def test_ids_of_earlier_calls_are_collected() -> None:
    call = {"type": "tool-call", "id": "c1", "name": "n", "arguments": "{}"}
    assert history_call_ids([user("a"), assistant(call), result("c1")]) == {"c1"}


def conversation(rounds: int) -> list[Message]:
    messages = [user("begin \ud83d")]
    for number in range(rounds):
        call = {"type": "tool-call", "id": f"c{number}", "name": "read", "arguments": "{}"}
        messages += [assistant(text(f"round {number}"), call), result(f"c{number}", text("é"))]
    return messages


def sent(history: WireHistory, messages: list[Message], session: str | None, system: str) -> Any:
    options = GenerateOptions("p", "m", messages, system=system, session_id=session)
    return json.loads(history.encode(options))


def test_a_history_sends_what_encoding_everything_anew_would_send() -> None:
    history, messages = WireHistory(), conversation(6)
    for end in (1, 3, 3, 7, 13, 5):
        for session in ("one", "two", None):
            wanted = json.loads(
                json.dumps(encode_messages("be kind", messages[:end])).replace("\\ud83d", "\ufffd")
            )
            assert sent(history, messages[:end], session, "be kind") == wanted


def test_a_replaced_message_is_encoded_anew() -> None:
    history, messages = WireHistory(), conversation(1)
    sent(history, messages, "one", "s")
    messages[1] = assistant(text("another"))
    assert sent(history, messages, "one", "t")[:3] == [
        {"role": "system", "content": "t"},
        {"role": "user", "content": "begin \ufffd"},
        {"role": "assistant", "content": "another"},
    ]


def test_only_recent_sessions_are_remembered() -> None:
    history, messages = WireHistory(), conversation(1)
    for number in range(100):
        sent(history, messages, f"session {number}", "s")
    assert len(history._sessions) == 16
