from __future__ import annotations

import json
from typing import Any

import pytest

from dsh.model.adapters.deepseek.stream import StreamDecoder, usage_of
from dsh.model.assembler import BlockAssembler
from dsh.model.chunks import StreamChunk
from dsh.model.failures import LlmError
from dsh.model.llm.grammar import ChunkGrammar

Delta = dict[str, Any]


def event(delta: Delta | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta or {}, "finish_reason": more.pop("finish", None)}
    return json.dumps({"choices": [choice], **more}).encode()


def call(index: int | str | None, arguments: str | None = None, **more: Any) -> Delta:
    function = {key: more.pop(key) for key in ("name",) if key in more}
    if arguments is not None:
        function["arguments"] = arguments
    entry: Delta = {"function": function, **more}
    if index is not None:
        entry["index"] = index
    return entry


def calls(*entries: Delta) -> bytes:
    return event({"tool_calls": list(entries)})


def decode(*events: bytes, taken: frozenset[str] = frozenset()) -> list[StreamChunk]:
    decoder = StreamDecoder(taken)
    chunks = [chunk for data in events for chunk in decoder.push(data)] + decoder.finish()
    grammar = ChunkGrammar()
    for chunk in chunks:
        grammar.push(chunk)
    grammar.end()
    return chunks


def fold(*events: bytes, taken: frozenset[str] = frozenset()) -> BlockAssembler:
    assembler = BlockAssembler()
    for chunk in decode(*events, taken=taken):
        assembler.push(chunk)
    return assembler


def triples(*events: bytes, taken: frozenset[str] = frozenset()) -> list[tuple[str, str, str]]:
    blocks: Any = fold(*events, taken=taken).blocks()
    return [(b["id"], b["name"], b["arguments"]) for b in blocks if b["type"] == "tool-call"]


TWO = [("a", "read", '{"p": 1}'), ("b", "bash", '{"c": 2}')]


def test_text_streams_as_one_block() -> None:
    assert decode(event({"content": "Hel"}), event({"content": "lo"}), event(finish="stop")) == [
        {"type": "block-start", "index": 0, "blockType": "text"},
        {"type": "text-delta", "index": 0, "text": "Hel"},
        {"type": "text-delta", "index": 0, "text": "lo"},
        {"type": "block-end", "index": 0, "block": {"type": "text", "text": "Hello"}},
        {"type": "finish", "reason": {"kind": "stop"}},
    ]


def test_reasoning_comes_before_text_within_a_delta_and_never_into_it() -> None:
    chunks = decode(event({"reasoning_content": "hm", "content": "ok"}))
    assert [chunk["type"] for chunk in chunks[:4]] == [
        "block-start",
        "reasoning-delta",
        "block-start",
        "text-delta",
    ]
    assert fold(event({"reasoning_content": "hm", "content": "ok"})).blocks() == [
        {"type": "reasoning", "text": "hm"},
        {"type": "text", "text": "ok"},
    ]


def test_empty_and_null_fields_open_no_block() -> None:
    blocks = fold(
        event({"role": "assistant", "content": "", "reasoning_content": "", "tool_calls": []}),
        event({"content": None, "reasoning_content": None, "tool_calls": None}),
        event({"content": "x"}),
    ).blocks()
    assert blocks == [{"type": "text", "text": "x"}]


@pytest.mark.parametrize("field", ["content", "reasoning_content"])
def test_a_character_cut_between_two_deltas_is_put_together(field: str) -> None:
    chunks = decode(
        event({field: "a\ud83d"}), event({field: "\ude00"}), event({field: "\ud83d\ude00b"})
    )
    deltas = [chunk["text"] for chunk in chunks if "text" in chunk]  # type: ignore[typeddict-item]
    assert deltas == ["a", "\U0001f600", "\U0001f600b"]
    (block,) = fold(event({field: "a\ud83d"}), event({field: "\ude00"})).blocks()
    assert block["text"] == "a\U0001f600"  # type: ignore[typeddict-item]


def test_half_a_character_that_stays_alone_is_kept() -> None:
    assert fold(event({"content": "a\ud83d"}), event({"content": "b\udc00"})).blocks() == [
        {"type": "text", "text": "a\ud83db\udc00"}
    ]
    assert fold(event({"content": "a\ud83d"})).blocks() == [{"type": "text", "text": "a\ud83d"}]


def test_interrupted_reasoning_stays_one_block() -> None:
    blocks = fold(
        event({"reasoning_content": "a"}), event({"content": "x"}), event({"reasoning": "b"})
    ).blocks()
    assert blocks == [{"type": "reasoning", "text": "ab"}, {"type": "text", "text": "x"}]


def test_id_and_name_come_with_the_first_delta_of_a_call_only() -> None:
    chunks = decode(
        calls(call(0, "", id="a", name="read")), calls(call(0, '{"p"')), calls(call(0, ": 1}"))
    )
    assert [chunk for chunk in chunks if chunk["type"] == "tool-call-delta"] == [
        {"type": "tool-call-delta", "index": 0, "id": "a", "name": "read", "argumentsDelta": ""},
        {"type": "tool-call-delta", "index": 0, "id": "a", "argumentsDelta": '{"p"'},
        {"type": "tool-call-delta", "index": 0, "id": "a", "argumentsDelta": ": 1}"},
    ]


DIALECTS = {
    "usual": [
        calls(call(0, "", id="a", name="read")),
        calls(call(0, '{"p": 1}')),
        calls(call(1, "", id="b", name="bash")),
        calls(call(1, '{"c": 2}')),
    ],
    "null id and name": [
        calls(call(0, '{"p"', id="a", name="read")),
        calls(call(0, ": 1}", id=None, name=None)),
        calls(call(1, '{"c"', id="b", name="bash")),
        calls(call(1, ": 2}", id=None, name=None)),
    ],
    "empty id and name": [
        calls(call(0, '{"p"', id="a", name="read")),
        calls(call(0, ": 1}", id="", name="")),
        calls(call(1, '{"c"', id="b", name="bash")),
        calls(call(1, ": 2}", id="", name="")),
    ],
    "repeated id and name": [
        calls(call(0, '{"p"', id="a", name="read")),
        calls(call(0, ": 1}", id="a", name="read")),
        calls(call(1, '{"c"', id="b", name="bash")),
        calls(call(1, ": 2}", id="b", name="bash")),
    ],
    "index used twice": [
        calls(call(0, '{"p"', id="a", name="read")),
        calls(call(0, ": 1}")),
        calls(call(0, '{"c"', id="b", name="bash")),
        calls(call(0, ": 2}")),
    ],
    "index used twice, interleaved by id": [
        calls(call(0, '{"p"', id="a", name="read")),
        calls(call(0, '{"c"', id="b", name="bash")),
        calls(call(0, ": 1}", id="a")),
        calls(call(0, ": 2}", id="b")),
    ],
    "no index": [
        calls(call(None, '{"p"', id="a", name="read")),
        calls(call(None, ": 1}")),
        calls(call(None, '{"c"', id="b", name="bash")),
        calls(call(None, ": 2}")),
    ],
    "no index, interleaved by id": [
        calls(call(None, '{"p"', id="a", name="read")),
        calls(call(None, '{"c"', id="b", name="bash")),
        calls(call(None, ": 1}", id="a")),
        calls(call(None, ": 2}", id="b")),
    ],
    "interleaved": [
        calls(call(0, "", id="a", name="read"), call(1, "", id="b", name="bash")),
        calls(call(1, '{"c"'), call(0, '{"p"')),
        calls(call(0, ": 1}"), call(1, ": 2}")),
    ],
    "whole calls in one delta": [
        calls(call(0, '{"p": 1}', id="a", name="read"), call(1, '{"c": 2}', id="b", name="bash")),
    ],
    "arguments before the name": [
        calls(call(0, '{"p"', id="a")),
        calls(call(0, ": 1}", name="read")),
        calls(call(1, '{"c"', id="b")),
        calls(call(1, ": 2}", name="bash")),
    ],
    "name before the id": [
        calls(call(0, None, name="read")),
        calls(call(0, '{"p": 1}', id="a")),
        calls(call(1, None, name="bash")),
        calls(call(1, '{"c": 2}', id="b")),
    ],
    "index as text": [
        calls(call("0", '{"p"', id="a", name="read")),
        calls(call(0, ": 1}")),
        calls(call("1", '{"c": 2}', id="b", name="bash")),
    ],
    "whole calls, said once more at the end": [
        calls(call(0, '{"p"', id="a", name="read"), call(1, '{"c": 2}', id="b", name="bash")),
        calls(call(0, ": 1}")),
        calls(call(0, '{"p": 1}', id="a", name="read"), call(1, '{"c": 2}', id="b", name="bash")),
    ],
    "blank name": [
        calls(call(0, "", id="a", name="read"), call(1, "", id="b", name="bash")),
        calls(call(0, '{"p": 1}', name=" "), call(1, '{"c": 2}', name=" ")),
    ],
    "name in parts": [
        calls(call(0, "", id="a", name="re")),
        calls(call(0, '{"p": 1}', name="ad")),
        calls(call(1, "", id="b", name="b")),
        calls(call(1, '{"c": 2}', name="bash")),
    ],
}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_all_dialects_of_tool_calls_give_the_same_calls(dialect: str) -> None:
    assert triples(*DIALECTS[dialect], event(finish="tool_calls")) == TWO


def test_calls_with_one_id_get_ids_of_their_own() -> None:
    got = triples(calls(call(0, "{}", id="x", name="read"), call(1, "{}", id="x", name="bash")))
    assert [name for _, name, _ in got] == ["read", "bash"]
    assert [call_id for call_id, _, _ in got] == ["x", "x-2"]


@pytest.mark.parametrize("index", [None, 0])
@pytest.mark.parametrize("names", [("read", "bash"), ("read", "read")])
def test_calls_with_one_id_and_one_place_are_not_merged(
    index: int | None, names: tuple[str, str]
) -> None:
    first, second = (
        calls(call(index, arguments, id="x", name=name))
        for name, arguments in zip(names, ('{"p": 1}', '{"c": 2}'), strict=True)
    )
    assert triples(first, second) == [
        ("x", names[0], '{"p": 1}'),
        ("x-2", names[1], '{"c": 2}'),
    ]


def test_what_may_be_one_call_or_two_is_an_error() -> None:
    with pytest.raises(LlmError, match="complete already") as raised:
        decode(
            calls(call(0, "{}", id="x", name="read")),
            calls(call(0, '{"p"', id="x", name="read")),
        )
    assert raised.value.code == "MALFORMED_RESPONSE"


@pytest.mark.parametrize("empty", [None, ""])
def test_an_empty_finish_reason_does_not_undo_the_real_one(empty: str | None) -> None:
    events = event({"content": "x"}, finish="length"), event({}, finish=empty)
    assert fold(*events).finish == {"kind": "max-tokens"}


def test_an_id_that_the_conversation_has_already_is_replaced() -> None:
    got = triples(calls(call(0, "{}", id="call_0", name="read")), taken=frozenset({"call_0"}))
    assert got == [("call_0-2", "read", "{}")]


def test_calls_without_ids_get_some_and_two_of_one_tool_stay_two() -> None:
    got = triples(calls(call(0, "{}", name="read")), calls(call(0, '{"n": 2}', name="read")))
    assert [arguments for _, _, arguments in got] == ["{}", '{"n": 2}']
    assert len({call_id for call_id, _, _ in got}) == 2


def test_a_call_without_a_name_is_an_error_and_never_a_call() -> None:
    with pytest.raises(LlmError, match="without naming it") as raised:
        decode(calls(call(0, "{}", id="a")), event(finish="tool_calls"))
    assert raised.value.code == "MALFORMED_RESPONSE"


@pytest.mark.parametrize(
    "entry",
    [
        {"index": 0, "id": 5, "function": {"name": "x"}},
        {"index": 0, "id": "a", "function": {"name": ["x"]}},
        {"index": 0, "id": "a", "function": {"name": "x", "arguments": {"a": 1}}},
        {"index": 0, "id": "a", "function": "x"},
        {"index": [0], "id": "a", "function": {"name": "x"}},
        {"index": True, "id": "a", "function": {"name": "x"}},
        {"index": "first", "id": "a", "function": {"name": "x"}},
    ],
)
def test_fields_of_the_wrong_type_are_an_error(entry: Delta) -> None:
    with pytest.raises(LlmError) as raised:
        decode(calls(entry))
    assert raised.value.code == "MALFORMED_RESPONSE"


@pytest.mark.parametrize(
    ("reason", "events", "kind"),
    [
        ("stop", [event({"content": "x"})], "stop"),
        (None, [event({"content": "x"})], "stop"),
        ("length", [event({"content": "x"})], "max-tokens"),
        ("length", [], "max-tokens"),
        ("tool_calls", [calls(call(0, "{}", id="a", name="n"))], "tool-calls"),
        ("stop", [calls(call(0, "{}", id="a", name="n"))], "tool-calls"),
        ("tool_calls", [event({"content": "x"})], "stop"),
    ],
)
def test_the_finish_says_what_the_reply_is(
    reason: str | None, events: list[bytes], kind: str
) -> None:
    assert fold(*events, event(finish=reason)).finish == {"kind": kind}


def test_a_reply_that_says_nothing_is_an_error() -> None:
    with pytest.raises(LlmError) as raised:
        decode(event({"role": "assistant", "content": ""}), event(finish="stop"))
    assert raised.value.code == "EMPTY_RESPONSE"


def test_an_unknown_reason_becomes_the_code() -> None:
    with pytest.raises(LlmError, match="content_filter") as raised:
        decode(event({"content": "x"}), event(finish="content_filter"))
    assert raised.value.code == "CONTENT_FILTER"


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b'{"choices": [{"delta": {"content": "x"', "choices"),
        (b"<html>", "<html>"),
        (b"[1]", "1"),
        (b'{"choices": {"a": 1}}', "choices"),
        (b'{"choices": [1]}', "choices"),
        (b'{"choices": [{"delta": [1]}]}', "delta"),
        (b'{"choices": [{"delta": {"content": {"a": 1}}}]}', "content"),
        (b'{"choices": [{"delta": {"tool_calls": {"a": 1}}}]}', "tool_calls"),
        (b'{"choices": [{"delta": {"tool_calls": [1]}}]}', "tool_calls"),
        (b'{"choices": [{"delta": {"content": "\xff\xfe"}}]}', "choices"),
    ],
)
def test_malformed_events_are_shown_in_short(data: bytes, shown: str) -> None:
    with pytest.raises(LlmError, match=shown) as raised:
        StreamDecoder().push(data + b" " * 1000)
    assert raised.value.code == "MALFORMED_RESPONSE"
    assert len(raised.value.message) < 300


def test_an_error_in_the_stream_is_raised_with_its_class_and_words() -> None:
    data = json.dumps({"error": {"message": "overloaded", "code": 503}}).encode()
    with pytest.raises(LlmError, match="overloaded") as raised:
        StreamDecoder().push(data)
    assert raised.value.code == "SERVER"


def test_events_without_choices_are_fine() -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 2}
    assembler = fold(
        event({"content": "x"}),
        json.dumps({"choices": [], "usage": usage}).encode(),
        json.dumps({"id": "only"}).encode(),
        event(finish="stop", usage=None),
    )
    assert assembler.usage == {"inputTokens": 10, "outputTokens": 2}


def test_the_last_usage_counts_and_is_reported_once() -> None:
    chunks = decode(
        event({"content": "x"}, usage={"prompt_tokens": 9, "completion_tokens": 1}),
        event(finish="stop", usage={"prompt_tokens": 9, "completion_tokens": 5}),
    )
    reports = [chunk for chunk in chunks if chunk["type"] == "usage"]
    assert reports == [{"type": "usage", "usage": {"inputTokens": 9, "outputTokens": 5}}]


@pytest.mark.parametrize(
    ("wire", "usage"),
    [
        (
            {
                "prompt_tokens": 100,
                "completion_tokens": 20,
                "prompt_cache_hit_tokens": 60,
                "completion_tokens_details": {"reasoning_tokens": 5},
            },
            {"inputTokens": 40, "outputTokens": 20, "cacheReadTokens": 60, "reasoningTokens": 5},
        ),
        (
            {
                "prompt_tokens": 100,
                "completion_tokens": 20,
                "prompt_tokens_details": {"cached_tokens": 70},
                "prompt_cache_hit_tokens": 60,
            },
            {"inputTokens": 30, "outputTokens": 20, "cacheReadTokens": 70},
        ),
        (
            {
                "prompt_tokens": 5,
                "completion_tokens": 1,
                "prompt_tokens_details": None,
                "prompt_cache_hit_tokens": None,
            },
            {"inputTokens": 5, "outputTokens": 1},
        ),
        ({"prompt_tokens": 5, "prompt_cache_hit_tokens": 9}, None),
        ({"total_tokens": 5}, None),
        ("many", None),
        ({"prompt_tokens": "5", "completion_tokens": -1}, None),
    ],
)
def test_usage_is_split_into_disjoint_counts(wire: Any, usage: Any) -> None:
    if isinstance(wire, dict) and wire.get("prompt_cache_hit_tokens") == 9:
        usage = {"inputTokens": 0, "outputTokens": 0, "cacheReadTokens": 9}
    assert usage_of(wire) == usage
