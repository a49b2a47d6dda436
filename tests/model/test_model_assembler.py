from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsh.base.json import FrozenDict
from dsh.model.assembler import BlockAssembler
from dsh.model.chunks import (
    StreamChunk,
    block_end,
    block_start,
    finish,
    finish_failure,
    reasoning_delta,
    text_delta,
    tool_call_delta,
    usage_report,
)
from dsh.model.failures import LlmError, create_llm_failure

SOURCE = {"kind": "model", "provider": "p", "model": "m"}
words = st.text(max_size=12)
text_blocks = st.builds(lambda text: {"type": "text", "text": text}, words)
reasoning_blocks = st.builds(lambda text: {"type": "reasoning", "text": text}, words)
call_blocks = st.builds(
    lambda call_id, name, arguments: {
        "type": "tool-call",
        "id": call_id,
        "name": name,
        "arguments": arguments,
    },
    st.text(min_size=1, max_size=5),
    st.text(min_size=1, max_size=5),
    words,
)
any_blocks = st.lists(st.one_of(text_blocks, reasoning_blocks, call_blocks), max_size=6).filter(
    lambda blocks: len(ids_of(blocks)) == len(set(ids_of(blocks)))
)


def ids_of(blocks: Any) -> list[str]:
    return [block["id"] for block in blocks if block["type"] == "tool-call"]


def assembled(*chunks: StreamChunk) -> BlockAssembler:
    assembler = BlockAssembler()
    for chunk in chunks:
        assembler.push(chunk)
    return assembler


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[dict[str, str]], list[StreamChunk]]:
    """Blocks, and one of the many streams that carry them."""
    blocks = draw(any_blocks)
    queues: list[list[StreamChunk]] = []
    for index, block in enumerate(blocks):
        queue: list[StreamChunk] = []
        if draw(st.booleans()):
            queue.append(block_start(index, block["type"]))
        body = block.get("text", block.get("arguments", ""))
        cuts = sorted(draw(st.lists(st.integers(0, len(body)), max_size=3)))
        for start, end in zip([0, *cuts], [*cuts, len(body)], strict=True):
            part = body[start:end]
            if block["type"] == "text":
                queue.append(text_delta(index, part))
            elif block["type"] == "reasoning":
                queue.append(reasoning_delta(index, part))
            else:
                queue.append(tool_call_delta(index, block["id"], part, block["name"]))
        if draw(st.booleans()):
            queue.append(block_end(index, block))  # type: ignore[arg-type]
        queues.append(queue)
    chunks: list[StreamChunk] = [queue.pop(0) for queue in queues]
    while any(queues):
        queue = draw(st.sampled_from([queue for queue in queues if queue]))
        chunks.append(queue.pop(0))
    return blocks, chunks


@given(streams())
def test_every_way_to_stream_blocks_gives_the_same_blocks(
    stream: tuple[list[dict[str, str]], list[StreamChunk]],
) -> None:
    blocks, chunks = stream
    assert assembled(*chunks).blocks() == blocks


@given(streams())
def test_a_reply_cut_by_its_limit_has_no_tool_calls(
    stream: tuple[list[dict[str, str]], list[StreamChunk]],
) -> None:
    blocks, chunks = stream
    envelope: Any = {"response": None, "blocks": list(range(len(blocks)))}

    assembler = assembled(*chunks, finish("max-tokens", envelope))

    kept = [at for at, block in enumerate(blocks) if block["type"] != "tool-call"]
    assert assembler.blocks() == [blocks[at] for at in kept]
    assert assembler.replay_state == {"response": None, "blocks": kept}


@given(streams())
def test_an_interrupted_reply_keeps_words_that_are_not_blank_and_never_calls(
    stream: tuple[list[dict[str, str]], list[StreamChunk]],
) -> None:
    blocks, chunks = stream
    wanted = [block for block in blocks if block.get("text", "").strip()]
    assert assembled(*chunks).interrupted_blocks() == wanted


def test_blocks_keep_the_order_in_which_they_were_first_seen() -> None:
    assembler = assembled(text_delta(7, "later index"), text_delta(2, "first"), text_delta(7, "!"))
    assert [block["text"] for block in assembler.blocks()] == ["later index!", "first"]  # type: ignore[typeddict-item]


def test_the_first_end_of_a_block_wins_and_what_follows_is_ignored() -> None:
    assembler = assembled(
        text_delta(0, "draft"),
        block_end(0, {"type": "text", "text": "final"}),
        text_delta(0, "late"),
        block_end(0, {"type": "text", "text": "second"}),
        block_start(0, "text"),
    )
    assert assembler.blocks() == [{"type": "text", "text": "final"}]


def test_a_call_without_id_is_named_after_its_place_and_without_name_has_none() -> None:
    assembler = assembled(tool_call_delta(3, "", "{}"))
    assert assembler.blocks() == [
        {"type": "tool-call", "id": "call-3", "name": "", "arguments": "{}"}
    ]


@pytest.mark.parametrize(
    ("given", "own"),
    [
        (["a", "a", "a"], ["a", "a-2", "a-3"]),
        (["a", "a", "a-2"], ["a", "a-3", "a-2"]),
        (["", "", "call-1"], ["call-0", "call-1-2", "call-1"]),
        ([""], ["call-0"]),
    ],
)
def test_calls_that_share_an_id_get_ids_of_their_own(given: list[str], own: list[str]) -> None:
    whole = [{"type": "tool-call", "id": each, "name": "n", "arguments": ""} for each in given]
    ended = assembled(*(block_end(at, block) for at, block in enumerate(whole)))  # type: ignore[arg-type]
    deltas = assembled(*(tool_call_delta(at, each, "", "n") for at, each in enumerate(given)))

    assert ids_of(ended.blocks()) == own
    assert ids_of(ended.message(SOURCE)["content"]) == own
    assert len(set(ids_of(deltas.blocks()))) == len(given)


def test_an_open_block_of_an_unknown_type_is_an_error() -> None:
    assembler = assembled(block_start(0, "hologram"))
    with pytest.raises(LlmError, match="hologram") as raised:
        assembler.blocks()
    assert raised.value.code == "INVALID_RESPONSE"


def test_a_closed_block_of_an_unknown_type_survives() -> None:
    block: Any = {"type": "hologram", "data": [1, {"a": None}]}
    assert assembled(block_start(0, "hologram"), block_end(0, block)).blocks() == [block]


def test_a_delta_of_another_kind_than_its_block_is_an_error() -> None:
    with pytest.raises(LlmError, match="'reasoning' came for block 0"):
        assembled(text_delta(0, "a"), reasoning_delta(0, "b"))


def test_an_unknown_chunk_is_an_error() -> None:
    with pytest.raises(LlmError, match="sparkle"):
        assembled(FrozenDict({"type": "sparkle"}))  # type: ignore[arg-type]


def test_an_envelope_that_does_not_fit_the_blocks_is_dropped() -> None:
    envelope: Any = {"response": 1, "blocks": ["only one"]}
    assembler = assembled(text_delta(0, "a"), text_delta(1, "b"), finish("stop", envelope))
    assert assembler.replay_state is None
    assert "replayState" not in assembler.message(SOURCE)["source"]


def test_an_envelope_without_blocks_passes_unchanged() -> None:
    envelope: Any = {"response": {"id": "r"}}
    assembler = assembled(tool_call_delta(0, "c", "{"), finish("max-tokens", envelope))
    assert assembler.replay_state == envelope
    assert assembler.message(SOURCE)["source"] == {**SOURCE, "replayState": envelope}


def test_usage_and_finish_are_what_the_stream_said() -> None:
    failure = create_llm_failure("gone", "TRANSPORT")
    assembler = assembled(
        usage_report({"inputTokens": 3, "outputTokens": 1}), finish_failure(failure)
    )
    assert assembler.usage == {"inputTokens": 3, "outputTokens": 1}
    assert assembler.finish == {"kind": "error", "failure": failure}


def test_without_a_finish_the_stream_counts_as_stopped() -> None:
    assembler = BlockAssembler()
    assert assembler.finish == {"kind": "stop"}
    assert assembler.usage is None
    assert assembler.blocks() == []


def test_the_message_is_frozen_and_detached() -> None:
    message = assembled(text_delta(0, "hi")).message(SOURCE)
    assert message["role"] == "assistant"
    assert message["content"] == [{"type": "text", "text": "hi"}]
    with pytest.raises(TypeError):
        message["role"] = "user"  # type: ignore[typeddict-item]
    with pytest.raises(TypeError):
        message["content"].append({})  # type: ignore[attr-defined]
