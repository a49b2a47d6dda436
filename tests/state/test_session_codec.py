from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from state_logs import chunk, say

from dsh.base.json import dumps, freeze, loads
from dsh.model.chunks import reasoning_delta, text_delta, tool_call_delta, usage_report
from dsh.state.session.codec import MalformedRow, decode_storage_record, pack_chunk_runs
from dsh.state.session.session import Session


def decode(rows: list[Any]) -> list[Any]:
    return [event for row in rows for event in decode_storage_record(loads(dumps(row)))]


def test_three_similar_chunks_share_a_row_and_two_do_not() -> None:
    session = Session.create("s")
    for text in ("a", "b"):
        chunk(session, text_delta(0, text))
    assert len(pack_chunk_runs(session.events)) == 2
    chunk(session, text_delta(0, "c"))
    (row,) = pack_chunk_runs(session.events)
    times = [event["time"] for event in session.events]
    assert row == {
        "type": "text-chunks",
        "seq0": 0,
        "time0": times[0],
        "data": {
            "turn": 1,
            "step": 1,
            "index": 0,
            "dt": [times[1] - times[0], times[2] - times[1]],
            "texts": ["a", "b", "c"],
        },
    }


def test_the_name_of_a_call_is_part_of_its_run() -> None:
    session = Session.create("s")
    chunk(session, tool_call_delta(0, "c1", "{", "read"))
    for text in ("a", "b", "c"):
        chunk(session, tool_call_delta(0, "c1", text))
    rows = pack_chunk_runs(session.events)
    assert [row["type"] for row in rows] == ["assistant/chunk", "tool-call-chunks"]
    assert set(rows[1]["data"]) == {"turn", "step", "index", "id", "dt", "args"}


def test_a_change_of_kind_index_step_or_time_row_ends_a_run() -> None:
    session = Session.create("s")
    for make in (text_delta, reasoning_delta):
        for index in (0, 1):
            for step in (1, 2):
                for n in range(3):
                    chunk(session, make(index, str(n)), step=step)
    rows = pack_chunk_runs(session.events)
    assert len(rows) == 8
    assert decode(list(rows)) == list(session.events)


def test_a_gap_in_the_numbers_ends_a_run() -> None:
    session = Session.create("s")
    for n in range(7):
        chunk(session, text_delta(0, str(n)))
    events = [event for event in session.events if event["seq"] != 3]
    rows = pack_chunk_runs(events)
    assert [row["seq0"] for row in rows] == [0, 4]
    assert decode(list(rows)) == events


def test_events_between_stay_in_their_place() -> None:
    session = Session.create("s")
    for n in range(3):
        chunk(session, text_delta(0, str(n)))
    say(session, "x")
    chunk(session, usage_report({"inputTokens": 1, "outputTokens": 1}))
    for n in range(3):
        chunk(session, text_delta(0, str(n)))
    rows = pack_chunk_runs(session.events)
    assert [row["type"] for row in rows] == [
        "text-chunks",
        "user/message",
        "assistant/chunk",
        "text-chunks",
    ]
    assert decode(list(rows)) == list(session.events)


@pytest.mark.parametrize(
    "odd",
    [
        {"ignorable": True},
        {"data": {"turn": 1, "step": 1, "chunk": {"type": "text-delta", "index": 0}}},
        {
            "data": {
                "turn": 1,
                "step": 1,
                "chunk": {"type": "text-delta", "index": True, "text": "x"},
            }
        },
        {"data": {"turn": 1, "step": 1, "chunk": {"type": "text-delta", "index": 0, "text": None}}},
        {"data": {"turn": -1, "step": 1, "chunk": {"type": "text-delta", "index": 0, "text": "x"}}},
        {
            "data": {
                "turn": 1,
                "step": 1,
                "more": 1,
                "chunk": {"type": "text-delta", "index": 0, "text": "x"},
            }
        },
    ],
)
def test_chunks_of_another_shape_are_stored_as_they_are(odd: dict[str, Any]) -> None:
    data = {"turn": 1, "step": 1, "chunk": {"type": "text-delta", "index": 0, "text": "x"}}
    events: Any = [
        freeze({"type": "assistant/chunk", "seq": n, "time": 1, "data": data, **odd})
        for n in range(4)
    ]
    assert pack_chunk_runs(events) == events
    assert decode(events) == events


GOOD: dict[str, Any] = {
    "type": "text-chunks",
    "seq0": 3,
    "time0": 100,
    "data": {"turn": 1, "step": 1, "index": 0, "dt": [5, -2], "texts": ["a", "b", "c"]},
}


def test_a_row_gives_its_members_with_their_own_time() -> None:
    events = decode_storage_record(loads(dumps(GOOD)))
    assert [(event["seq"], event["time"]) for event in events] == [(3, 100), (4, 105), (5, 103)]


@pytest.mark.parametrize(
    "change",
    [
        {"seq0": -1},
        {"seq0": 2**53 - 2},
        {"time0": 1.5},
        {"time0": 2**53},
        {"more": 1},
        {"data": None},
        {"data": {**GOOD["data"], "dt": [5]}},
        {"data": {**GOOD["data"], "dt": [5, None]}},
        {"data": {**GOOD["data"], "dt": [5, 2**53 - 1]}},
        {"data": {**GOOD["data"], "texts": []}},
        {"data": {**GOOD["data"], "texts": ["a", 1, "c"]}},
        {"data": {**GOOD["data"], "texts": "abc"}},
        {"data": {**GOOD["data"], "turn": True}},
        {"data": {**GOOD["data"], "id": "c1"}},
        {"type": "tool-call-chunks"},
    ],
)
def test_a_malformed_row_is_refused_whole(change: dict[str, Any]) -> None:
    with pytest.raises(MalformedRow):
        decode_storage_record(loads(dumps({**GOOD, **change})))


@pytest.mark.parametrize("value", [None, 1, "x", []])
def test_what_is_no_object_is_no_row(value: Any) -> None:
    with pytest.raises(MalformedRow):
        decode_storage_record(value)


texts = st.text(st.characters(codec=None, exclude_categories=()), max_size=6)
deltas = st.one_of(
    st.builds(text_delta, st.integers(0, 1), texts),
    st.builds(reasoning_delta, st.integers(0, 1), texts),
    st.builds(
        tool_call_delta, st.integers(0, 1), st.just("c"), texts, st.none() | st.sampled_from("ab")
    ),
    st.just(usage_report({"inputTokens": 1, "outputTokens": 2})),
)
runs = st.lists(st.tuples(deltas, st.integers(1, 5)), max_size=12)
gaps = st.integers(-(10**6), 10**6)


@given(runs, st.lists(gaps, min_size=1, max_size=8), st.integers(0, 40))
def test_any_batch_comes_back_as_it_was(
    batch: list[tuple[Any, int]], times: list[int], cut: int
) -> None:
    flat = [delta for delta, count in batch for _ in range(count)]
    now, events = 10**12, []
    for seq, delta in enumerate(flat):
        now += times[seq % len(times)]
        data = {"turn": 1, "step": 1, "chunk": delta}
        events.append(freeze({"type": "assistant/chunk", "seq": seq, "time": now, "data": data}))
    rows = [*pack_chunk_runs(events[:cut]), *pack_chunk_runs(events[cut:])]
    assert decode(rows) == events
