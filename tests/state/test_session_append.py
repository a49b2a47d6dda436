from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, TypedDict, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from state_logs import answer, call, chunk, open_turn, reply, say, user

from dsh.base.json import FrozenDict, FrozenList
from dsh.model.chunks import text_delta
from dsh.model.messages import create_tool_result_message
from dsh.state.session.errors import RefusedEvent, UndeclaredEventType
from dsh.state.session.events import (
    ASSISTANT_CHUNK,
    REQUEST_HEADER,
    TODO_WRITE,
    TOOL_RESULT,
    TURN_START,
    USER_MESSAGE,
    EventType,
)
from dsh.state.session.session import Session


class Note(TypedDict, total=False):
    text: Any


NOTE = EventType("acme/note", Note, ignorable=True)


@pytest.fixture
def session() -> Session:
    return Session.create("s", types=[NOTE])


def refuse(session: Session, data: Any, match: str) -> None:
    before = list(session.events), session.surface.nodes
    with pytest.raises(RefusedEvent, match=match):
        session.append(NOTE, data)
    assert (list(session.events), session.surface.nodes) == before


def test_an_event_has_exactly_the_envelope_of_the_format(session: Session) -> None:
    event = session.append(TURN_START, {"turn": 1})  # type: ignore[misc]
    assert set(event) == {"type", "seq", "time", "data"}
    assert (event["type"], event["seq"], event["data"]) == ("turn/start", 0, {"turn": 1})
    assert type(event["time"]) is int


def test_seq_is_the_index_in_the_log(session: Session) -> None:
    events = [session.append(NOTE, Note(text=n)) for n in range(5)]
    assert [event["seq"] for event in events] == [0, 1, 2, 3, 4]
    assert session.seq == 5
    assert session.events[2] is events[2]


def test_declared_ignorable_is_written(session: Session) -> None:
    assert session.append(NOTE, Note(text="x"))["ignorable"] is True


def test_an_undeclared_type_is_refused() -> None:
    session = Session.create("s")
    with pytest.raises(UndeclaredEventType, match="acme/note"):
        session.append(NOTE, Note(text="x"))
    assert session.seq == 0


def test_a_reloaded_declaration_of_the_same_name_is_as_good(session: Session) -> None:
    session.append(EventType("acme/note", Note, ignorable=True), Note(text="x"))
    assert session.seq == 1


@pytest.mark.parametrize(
    ("value", "match"),
    [
        (float("nan"), "not a JSON number"),
        (float("inf"), "not a JSON number"),
        (-0.0, "-0.0"),
        (2**53, "beyond"),
        (-(2**53), "beyond"),
        ((1, 2), "tuple"),
        ({1, 2}, "set"),
        (b"x", "bytes"),
        (object(), "object"),
        ({1: "x"}, "not text"),
        (type("Sub", (dict,), {})(), "Sub"),
        (type("Sub", (list,), {})(), "Sub"),
        (type("Sub", (str,), {})("x"), "Sub"),
    ],
)
def test_what_is_not_lossless_json_is_refused_by_name(
    session: Session, value: object, match: str
) -> None:
    refuse(session, {"text": value}, match)
    refuse(session, {"text": [{"deep": value}]}, match)


def test_a_cycle_is_refused(session: Session) -> None:
    ring: list[Any] = []
    ring.append(ring)
    refuse(session, {"text": ring}, "contains itself")


def test_a_shared_child_is_fine(session: Session) -> None:
    child = {"a": 1}
    event = session.append(NOTE, Note(text=[child, child]))
    assert event["data"]["text"] == [child, child]


@pytest.mark.parametrize("data", [None, [], "x", 1])
def test_data_must_be_an_object(session: Session, data: Any) -> None:
    refuse(session, data, "not an object")


def test_null_and_odd_keys_are_ordinary_data(session: Session) -> None:
    data = {"__proto__": None, "__class__": {"constructor": 1}, "": False}
    event = session.append(NOTE, cast("Note", data))
    assert event["data"] == data


def test_depth_is_bounded_by_memory_only(session: Session) -> None:
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    value: Any = session.append(NOTE, Note(text=deep))["data"]["text"]
    levels = 0
    while isinstance(value, list):
        value, levels = value[0], levels + 1
    assert levels == 100_000


def test_later_changes_to_what_was_passed_change_nothing(session: Session) -> None:
    message: Any = copy.deepcopy(user("first"))
    first = session.append(USER_MESSAGE, message, surface_op="append")
    message["content"][0]["text"] = "changed"
    op: Any = {"op": "replace", "start": 0, "end": 0}
    sources = [0]
    second = session.append(USER_MESSAGE, user("second"), surface_op=op, source_event_seqs=sources)
    op["start"], sources[0] = 7, 7
    assert cast("Any", first["data"])["content"][0]["text"] == "first"
    assert second["surfaceOp"] == {"op": "replace", "start": 0, "end": 0}
    assert second["sourceEventSeqs"] == [0]


def test_the_returned_event_is_the_logged_one_and_frozen(session: Session) -> None:
    event: Any = session.append(NOTE, Note(text=["x"]))
    changes: list[Callable[[], object]] = [
        lambda: event.update(seq=9),
        lambda: event["data"].update(text="y"),
        lambda: event["data"]["text"].append("y"),
    ]
    for change in changes:
        with pytest.raises(TypeError, match="read-only"):
            change()
    assert session.events[0] is event


def test_a_held_view_of_the_log_never_grows(session: Session) -> None:
    session.append(NOTE, Note(text=1))
    held = session.events
    session.append(NOTE, Note(text=2))
    assert len(held) == len(list(held)) == len(held[:]) == 1
    assert held[-1]["seq"] == 0
    assert [event["seq"] for event in reversed(session.events)] == [1, 0]
    with pytest.raises(IndexError):
        held[1]


def test_the_view_of_an_unchanged_log_is_made_once(session: Session) -> None:
    session.append(NOTE, Note(text=1))
    assert session.events is session.events


def test_a_derived_list_does_not_grow_and_its_messages_cannot_change(session: Session) -> None:
    say(session, "hello")
    messages: Any = session.derive_messages()
    messages.append("mine")
    assert len(session.derive_messages()) == 1
    with pytest.raises(TypeError, match="read-only"):
        messages[0]["content"].append({})


@pytest.mark.parametrize(
    ("op", "sources"),
    [("append", None), (None, [0]), ({"op": "replace", "start": 0, "end": 0}, [0])],
)
def test_surface_fields_are_refused_on_other_types(
    session: Session, op: Any, sources: list[int] | None
) -> None:
    say(session, "x")
    with pytest.raises(RefusedEvent, match="only surface events"):
        session.append(TURN_START, {"turn": 1}, surface_op=op, source_event_seqs=sources)  # type: ignore[misc]
    assert session.seq == 1


def test_a_surface_type_needs_its_operation(session: Session) -> None:
    with pytest.raises(RefusedEvent, match="needs surfaceOp"):
        session.append(USER_MESSAGE, user("x"))
    assert session.seq == 0


def test_messages_without_identity_are_refused(session: Session) -> None:
    bare: Any = {"role": "user", "content": [], "source": {"kind": "user"}}
    with pytest.raises(RefusedEvent, match="id is not a text"):
        session.append(USER_MESSAGE, bare, surface_op="append")


def test_what_a_message_holds_are_blocks(session: Session) -> None:
    loose: Any = {"id": "m", "role": "user", "content": ["text"], "source": {"kind": "user"}}
    with pytest.raises(RefusedEvent, match="no block"):
        session.append(USER_MESSAGE, loose, surface_op="append")


def test_a_result_must_answer_the_call_it_names(session: Session) -> None:
    message: Any = dict(create_tool_result_message("a", [], False))
    message["source"] = {"kind": "tool", "callId": "b"}
    with pytest.raises(RefusedEvent, match=r"message\.source\.callId"):
        session.append(
            TOOL_RESULT,
            cast("Any", {"turn": 1, "step": 1, "message": message}),
            surface_op="append",
        )


@pytest.mark.parametrize(
    ("header", "match"),
    [
        ({"config": {"provider": "p"}}, "provider and model"),
        ({"config": {"provider": "p", "model": "m", "reasoningEffort": ""}}, "reasoningEffort"),
        ({"config": {"provider": "p", "model": "m"}, "adapterDefaults": {"x": True}}, "unknown"),
        (
            {"config": {"provider": "p", "model": "m"}, "adapterDefaults": {"maxTokens": True}},
            "marks",
        ),
    ],
)
def test_a_request_header_must_make_sense(session: Session, header: Any, match: str) -> None:
    with pytest.raises(RefusedEvent, match=match):
        session.append(REQUEST_HEADER, cast("Any", {"header": header, "reason": "initial"}))


def test_the_retired_header_reason_is_refused(session: Session) -> None:
    header = {"config": {"provider": "p", "model": "m"}}
    with pytest.raises(RefusedEvent, match="retired"):
        session.append(REQUEST_HEADER, cast("Any", {"header": header, "reason": "fallback"}))


def test_a_retired_type_is_refused() -> None:
    retired: EventType[Any] = EventType("request/header-delta", dict, ignorable=True)
    session = Session.create("s", types=[retired])
    with pytest.raises(RefusedEvent, match="retired"):
        session.append(retired, {})
    assert session.seq == 0


def test_lone_surrogates_are_data(session: Session) -> None:
    event = session.append(NOTE, Note(text="cut \ud83d here"))
    assert event["data"]["text"] == "cut \ud83d here"


def test_log_only_events_never_change_the_derivation(session: Session) -> None:
    open_turn(session)
    say(session, "do it")
    reply(session, "on it", calls={"c1": "read"})
    before = session.derive_messages()
    chunk(session, text_delta(0, "noise"))
    session.append(TODO_WRITE, {"todos": []})  # type: ignore[misc]
    session.append(NOTE, Note(text="title"))
    assert session.derive_messages() == before
    answer(session, call(session, "c1"))
    assert len(session.derive_messages()) == 3


json_scalars = st.none() | st.booleans() | st.text() | st.integers(-(2**53) + 1, 2**53 - 1)
json_values = st.recursive(
    json_scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), json_values, max_size=5))
def test_any_json_object_is_kept_as_it_is(data: dict[str, Any]) -> None:
    session = Session.create("s", types=[NOTE])
    event = session.append(NOTE, cast("Note", data))
    assert event["data"] == data
    assert type(event["data"]) is FrozenDict


BAD: dict[str, Callable[[Session], object]] = {
    "nan": lambda session: chunk(session, cast("Any", {"index": float("nan")})),
    "tuple": lambda session: session.append(ASSISTANT_CHUNK, cast("Any", ())),
    "op": lambda session: say(session, "x", op={"op": "replace", "start": 99, "end": 99}),
    "type": lambda session: session.append(NOTE, Note()),
}


@given(st.lists(st.sampled_from([*BAD, "good"]), max_size=12))
def test_refused_appends_leave_no_trace(attempts: list[str]) -> None:
    session = Session.create("s")
    good = 0
    for attempt in attempts:
        before = list(session.events), session.surface.nodes, session.derive_messages()
        if attempt == "good":
            say(session, "x")
            good += 1
            continue
        with pytest.raises((RefusedEvent, UndeclaredEventType)):
            BAD[attempt](session)
        assert (list(session.events), session.surface.nodes, session.derive_messages()) == before
    assert session.seq == good


@pytest.mark.parametrize(
    ("inside", "match"),
    [
        (float("nan"), "not a JSON number"),
        (-0.0, "-0.0"),
        (2**60, "beyond"),
        ((1,), "tuple"),
        ({1: 2}, "not text"),
    ],
)
def test_what_is_frozen_already_is_looked_at_all_the_same(
    session: Session, inside: Any, match: str
) -> None:
    refuse(session, FrozenDict({"text": FrozenList([FrozenDict({"deep": inside})])}), match)


def test_what_is_frozen_on_its_surface_only_is_copied(session: Session) -> None:
    inner = {"list": [1]}
    event: Any = session.append(NOTE, cast("Note", FrozenDict({"text": inner})))
    inner["list"].append(2)
    assert event["data"] == {"text": {"list": [1]}}
    with pytest.raises(TypeError, match="read-only"):
        event["data"]["text"]["list"].append(3)


def test_a_frozen_message_is_shared_and_not_copied(session: Session) -> None:
    message = user("x")
    assert session.append(USER_MESSAGE, message, surface_op="append")["data"] is message
