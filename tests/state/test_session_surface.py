from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from state_logs import answer, call, open_turn, reply, say, user

from dsh.base.json import FrozenDict, thaw
from dsh.model.chunks import text_delta
from dsh.state.session.derive import derive_event_message
from dsh.state.session.errors import RefusedEvent
from dsh.state.session.events import (
    ASSISTANT_CHUNK,
    ASSISTANT_MESSAGE,
    TOOL_RESULT,
    USER_MESSAGE,
    AssistantChunkData,
)
from dsh.state.session.session import Session
from dsh.state.session.surface import (
    SurfaceManager,
    fold_surface,
    is_append_surface_event,
    is_replacement_surface_event,
)


@pytest.fixture
def session() -> Session:
    return Session.create("s")


def replace(session: Session, start: int, end: int, sources: list[int], text: str = "new") -> Any:
    op: Any = {"op": "replace", "start": start, "end": end}
    return session.append(USER_MESSAGE, user(text), surface_op=op, source_event_seqs=sources)


def texts(session: Session) -> list[str]:
    messages: Any = session.derive_messages()
    return [message["content"][0]["text"] for message in messages]


def test_nodes_follow_the_order_of_appends(session: Session) -> None:
    for text in "abc":
        say(session, text)
    assert session.surface.nodes == (0, 1, 2)
    assert texts(session) == ["a", "b", "c"]


def test_a_replacement_takes_the_place_of_its_range(session: Session) -> None:
    for text in "abcd":
        say(session, text)
    replace(session, 1, 2, [1, 2], "bc")
    assert session.surface.nodes == (0, 4, 3)
    assert session.surface.replace_generation == 1
    assert texts(session) == ["a", "bc", "d"]


def test_a_range_of_one_and_a_replaced_replacement_keep_their_place(session: Session) -> None:
    for text in "abc":
        say(session, text)
    replace(session, 1, 1, [1], "b2")
    replace(session, 3, 3, [3], "b3")
    assert texts(session) == ["a", "b3", "c"]
    # The node 4 stands before node 2 now: positions are compared, not numbers.
    replace(session, 4, 2, [4, 2], "rest")
    assert texts(session) == ["a", "rest"]


def test_a_replacement_may_cite_more_than_it_shadows(session: Session) -> None:
    say(session, "a")
    say(session, "b")
    replace(session, 1, 1, [0, 1])
    assert session.surface.nodes == (0, 2)


@pytest.mark.parametrize(
    ("start", "end", "sources", "match"),
    [
        (0, 1, [0], r"also \[1\]"),
        (0, 1, [0, 1, 1], "twice"),
        (0, 1, [0, 1, 3], "earlier events"),
        (0, 1, [0, 1, 9], "earlier events"),
        (1, 0, [0, 1], "comes after"),
        (0, 7, [0], "not on the surface"),
        (0, 0, [], "may be empty"),
        (0, 0, [-1], "event numbers"),
        (0, 0, [True], "event numbers"),
    ],
)
def test_a_bad_replacement_is_refused_and_changes_nothing(
    session: Session, start: int, end: int, sources: list[int], match: str
) -> None:
    for text in "abc":
        say(session, text)
    with pytest.raises(RefusedEvent, match=match):
        replace(session, start, end, sources)
    assert (session.seq, session.surface.nodes, session.surface.replace_generation) == (
        3,
        (0, 1, 2),
        0,
    )


@pytest.mark.parametrize(
    "op",
    [
        "prepend",
        {"op": "replace", "start": 0},
        {"op": "replace", "start": 0, "end": 0, "more": 1},
        {"op": "swap", "start": 0, "end": 0},
        {"op": "replace", "start": 0.0, "end": 0},
        {"op": "replace", "start": True, "end": 0},
        7,
    ],
)
def test_operations_of_another_shape_are_refused(session: Session, op: Any) -> None:
    say(session, "a")
    with pytest.raises(RefusedEvent, match="surfaceOp"):
        session.append(USER_MESSAGE, user("x"), surface_op=op, source_event_seqs=[0])


def test_a_replacement_without_sources_is_refused(session: Session) -> None:
    say(session, "a")
    with pytest.raises(RefusedEvent, match="must name what it replaces"):
        session.append(USER_MESSAGE, user("x"), surface_op={"op": "replace", "start": 0, "end": 0})


def test_a_known_empty_stream_has_an_empty_source_list(session: Session) -> None:
    message: Any = thaw(reply(session, "x")["data"])
    event = session.append(ASSISTANT_MESSAGE, message, surface_op="append", source_event_seqs=[])
    assert event["sourceEventSeqs"] == []


def rewrite(session: Session, target: Any, **changes: Any) -> Any:
    data = thaw(target["data"])
    data["message"]["content"][0]["content"] = [{"type": "text", "text": "pruned"}]
    data |= changes
    seq = target["seq"]
    op: Any = {"op": "replace", "start": seq, "end": seq}
    return session.append(TOOL_RESULT, data, surface_op=op, source_event_seqs=[seq])


def with_result(session: Session, **more: Any) -> Any:
    open_turn(session)
    reply(session, calls={"c1": "read"})
    return answer(session, call(session, "c1"), **more)


def test_a_result_may_be_rewritten_in_its_content(session: Session) -> None:
    result = with_result(session, meta={"lines": [1, 2], "size": 1})
    rewrite(session, result)
    messages: Any = session.derive_messages()
    assert messages[-1]["content"][0]["content"][0]["text"] == "pruned"
    assert messages[-1]["id"] == result["data"]["message"]["id"]


def test_equal_structures_count_as_unchanged(session: Session) -> None:
    result = with_result(session, meta={"a": 1, "b": 2.0})
    rewrite(session, result, meta={"b": 2, "a": 1.0})
    assert session.surface.replace_generation == 1


@pytest.mark.parametrize(
    "change",
    [{"meta": {"lines": [2, 1]}}, {"meta": {"lines": [True, 2]}}, {"step": 2}, {"error": None}],
)
def test_a_rewritten_result_that_drifts_elsewhere_is_refused(
    session: Session, change: dict[str, Any]
) -> None:
    result = with_result(session, meta={"lines": [1, 2]})
    with pytest.raises(RefusedEvent, match="only the content"):
        rewrite(session, result, **change)


def test_a_rewritten_result_replaces_exactly_one_result(session: Session) -> None:
    result = with_result(session)
    data = thaw(result["data"])
    op: Any = {"op": "replace", "start": 2, "end": result["seq"]}
    with pytest.raises(RefusedEvent, match="exactly one result"):
        session.append(TOOL_RESULT, data, surface_op=op, source_event_seqs=[2, result["seq"]])
    op = {"op": "replace", "start": 2, "end": 2}
    with pytest.raises(RefusedEvent, match="not a tool/result"):
        session.append(TOOL_RESULT, data, surface_op=op, source_event_seqs=[2])


def test_an_assistant_message_without_content_is_a_node_and_no_message(session: Session) -> None:
    event = reply(session)
    assert session.surface.nodes == (event["seq"],)
    assert session.derive_messages() == []
    assert derive_event_message(event) is None


def test_an_interrupted_prefix_is_history(session: Session) -> None:
    data: Any = {**reply(session, "half")["data"], "interrupted": True}
    session.append(ASSISTANT_MESSAGE, thaw(data), surface_op="append")
    assert len(session.derive_messages()) == 2


def test_messages_are_those_of_the_log_and_projected_once(session: Session) -> None:
    event = say(session, "a")
    assert session.derive_messages()[0] is event["data"]
    assert session.derive_messages() is not session.derive_messages()


def test_a_persons_transcript_has_the_originals(session: Session) -> None:
    say(session, "a")
    replace(session, 0, 0, [0], "summary")
    kinds = [(is_append_surface_event(e), is_replacement_surface_event(e)) for e in session.events]
    assert kinds == [(True, False), (False, True)]


def test_a_window_refuses_what_reaches_below_it(session: Session) -> None:
    for text in "abc":
        say(session, text)
    window = SurfaceManager(session.events[1:], base_seq=1)
    for event in session.events[1:]:
        window.admit(event)
    assert window.nodes == (1, 2)
    below = {"type": "user/message", "seq": 3, "data": {}, "sourceEventSeqs": [0, 1]}
    with pytest.raises(RefusedEvent, match="not here"):
        window.admit({**below, "surfaceOp": {"op": "replace", "start": 0, "end": 1}})


def test_a_fold_names_every_replacement(session: Session) -> None:
    for text in "abc":
        say(session, text)
    replace(session, 0, 1, [0, 1])
    folded = fold_surface(session.events)
    assert folded.nodes == (3, 2)
    assert [(r.seq, r.shadowed) for r in folded.replacements] == [(3, (0, 1))]


def test_a_fold_refuses_a_gap(session: Session) -> None:
    say(session, "a")
    say(session, "b")
    with pytest.raises(RefusedEvent, match="is not 0"):
        fold_surface(session.events[1:])


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.booleans()), max_size=30))
def test_incremental_surface_and_messages_equal_the_full_fold(
    steps: list[tuple[int, int, bool]],
) -> None:
    session = Session.create("s")
    for one, two, add in steps:
        nodes = session.surface.nodes
        if add or not nodes:
            say(session, f"text {one}")
        else:
            first, last = sorted((one % len(nodes), two % len(nodes)))
            shadowed = list(nodes[first : last + 1])
            replace(session, nodes[first], nodes[last], shadowed, f"for {shadowed}")
        session.append(
            ASSISTANT_CHUNK, AssistantChunkData(turn=1, step=1, chunk=text_delta(0, "x"))
        )
        session.derive_messages()
    folded = fold_surface(session.events)
    assert folded.nodes == session.surface.nodes
    assert len(folded.replacements) == session.surface.replace_generation
    full = [derive_event_message(session.events[seq]) for seq in folded.nodes]
    assert session.derive_messages() == full
    replayed = Session.create("s", seed=session.events)
    assert replayed.derive_messages() == full
    assert type(session.events[0] if session.seq else FrozenDict()) is FrozenDict
