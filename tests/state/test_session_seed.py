from __future__ import annotations

from typing import Any, cast

import pytest
from state_logs import answer, call, close_turn, open_turn, reply, say, whole_turn

from dsh.base.json import thaw
from dsh.state.session.errors import InvalidHeader, InvalidSeed
from dsh.state.session.events import REQUEST_CONTEXT, REQUEST_HEADER
from dsh.state.session.header import checked_header, new_header
from dsh.state.session.request import canonical_header, fold_request_header, header_equals
from dsh.state.session.session import Session


def seed() -> list[dict[str, Any]]:
    session = Session.create("origin")
    whole_turn(session)
    return [thaw(event) for event in session.events]


def test_a_seed_ends_with_a_marker_and_no_seed_has_none() -> None:
    events = seed()
    session = Session.create("s", seed=events)
    assert session.first_live_seq == len(events)
    assert [event["type"] for event in session.events][-1] == "session/end-seed"
    assert list(session.events[:-1]) == events
    assert Session.create("s").seq == 0


def test_an_empty_seed_gets_the_marker_at_the_beginning() -> None:
    session = Session.create("s", seed=[])
    assert (session.first_live_seq, session.seq) == (0, 1)
    assert session.events[0]["type"] == "session/end-seed"


def test_reopening_an_untouched_session_does_not_grow_it() -> None:
    once = Session.create("s", seed=seed())
    again = Session.create("s", seed=once.events)
    assert list(again.events) == list(once.events)


def test_a_seed_derives_what_its_origin_derived() -> None:
    origin = Session.create("origin")
    open_turn(origin)
    say(origin, "go")
    reply(origin, calls={"c1": "read"})
    answer(origin, call(origin, "c1"))
    close_turn(origin)
    assert Session.create("s", seed=origin.events).derive_messages() == origin.derive_messages()


def test_copies_are_detached_from_what_was_given() -> None:
    events = seed()
    session = Session.create("s", seed=events)
    events[0]["data"]["turn"] = 7
    assert session.events[0]["data"] == {"turn": 1}


def change(index: int, **fields: Any) -> list[dict[str, Any]]:
    events = seed()
    for key, value in fields.items():
        if value is ...:
            del events[index][key]
        else:
            events[index][key] = value
    return events


@pytest.mark.parametrize(
    ("index", "fields"),
    [
        (0, {"seq": 1}),
        (1, {"seq": -1}),
        (1, {"seq": 1.0}),
        (1, {"seq": True}),
        (2, {"data": ...}),
        (2, {"data": []}),
        (3, {"time": 1.5}),
        (3, {"time": ...}),
        (1, {"ignorable": False}),
        (1, {"extra": 1}),
        (1, {"type": ""}),
        (1, {"type": 7}),
        (1, {"type": "request/header-delta"}),
        (2, {"surfaceOp": ...}),
        (0, {"surfaceOp": "append"}),
        (2, {"data": {"role": "user", "content": [], "source": {"kind": "user"}}}),
        (2, {"data": {"id": "x", "role": "user", "content": [], "source": {}}}),
    ],
)
def test_what_is_no_log_is_refused_with_its_index(index: int, fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidSeed) as caught:
        Session.create("s", seed=change(index, **fields))
    assert caught.value.index == index


def test_a_seed_that_is_not_json_is_refused() -> None:
    events = change(1, data={"turn": float("nan")})
    with pytest.raises(InvalidSeed, match="seed event 1"):
        Session.create("s", seed=events)


def test_deeply_nested_seeds_are_fine() -> None:
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    events = seed()
    events[0]["data"]["deep"] = deep
    assert Session.create("s", seed=events).seq == len(events) + 1


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"cwd": "relative/path"}, "absolute"),
        ({"createdAt": -1}, "createdAt"),
        ({"createdAt": 1.5}, "createdAt"),
        ({"createdAt": True}, "createdAt"),
        ({"origin": "fork"}, "subagent"),
        ({"delegationDepth": -1}, "delegationDepth"),
        ({"seedLength": "1"}, "seedLength"),
        ({"agentPreset": 1}, "agentPreset"),
        ({"version": 1}, "version"),
        ({"version": False}, "version"),
        ({"id": "other"}, "id"),
        ({"id": ""}, "id"),
    ],
)
def test_a_wrong_header_is_refused(fields: dict[str, Any], match: str) -> None:
    good = {"version": 0, "id": "s", "createdAt": 1, "cwd": "/tmp"}
    with pytest.raises(InvalidHeader, match=match):
        checked_header({**good, **fields}, "s")
    checked_header(good, "s")


def test_fields_of_later_headers_are_kept() -> None:
    assert checked_header({"version": 0, "id": "s", "createdAt": 1, "new": [1]})["new"] == [1]  # type: ignore[typeddict-item]


def test_a_creator_cannot_set_unknown_fields() -> None:
    with pytest.raises(InvalidHeader, match="unknown"):
        new_header("s", cast("Any", {"cdw": "/tmp"}), 1)


CONFIG = {"provider": "p", "model": "m"}


def log_header(session: Session, header: dict[str, Any], reason: str = "change") -> None:
    data: Any = {"header": header, "reason": reason}
    session.append(REQUEST_HEADER, data)


def test_the_latest_header_counts_in_canonical_form() -> None:
    session = Session.create("s")
    assert session.request_header() is None
    log_header(session, {"config": CONFIG, "system": "", "tools": [], "adapterDefaults": {}})
    assert session.request_header() == {"config": CONFIG}
    log_header(session, {"config": {**CONFIG, "maxTokens": 5}, "system": "be"})
    assert session.request_header() == {"config": {**CONFIG, "maxTokens": 5}, "system": "be"}
    assert session.request_header() is session.request_header()
    assert fold_request_header(session.events) == session.request_header()


def test_a_fold_goes_on_from_the_header_before() -> None:
    before = canonical_header({"config": CONFIG})
    assert fold_request_header([], before) is before


@pytest.mark.parametrize(
    ("other", "same"),
    [
        ({"config": CONFIG, "system": ""}, True),
        ({"config": dict(reversed(CONFIG.items()))}, True),
        ({"config": {**CONFIG, "stop": []}}, False),
        ({"config": {**CONFIG, "temperature": 0}}, False),
        ({"config": CONFIG, "system": "x"}, False),
        ({"config": CONFIG, "tools": [{"name": "a"}]}, False),
    ],
)
def test_headers_are_compared_by_what_they_request(other: dict[str, Any], same: bool) -> None:
    assert header_equals({"config": CONFIG}, other) is same


def test_the_order_of_tools_counts() -> None:
    one = {"config": CONFIG, "tools": [{"name": "a"}, {"name": "b"}]}
    two = {"config": CONFIG, "tools": [{"name": "b"}, {"name": "a"}]}
    assert not header_equals(one, two)
    assert not header_equals(one, None)
    assert header_equals(None, None)


def test_the_latest_context_counts_and_may_lose_its_capacity() -> None:
    session = Session.create("s")
    assert session.request_context() is None
    session.append(REQUEST_CONTEXT, {"provider": "p", "model": "m", "contextWindow": 9})  # type: ignore[misc]
    session.append(REQUEST_CONTEXT, {"provider": "p", "model": "n"})  # type: ignore[misc]
    assert session.request_context() == {"provider": "p", "model": "n"}


def test_seeded_headers_are_folded() -> None:
    origin = Session.create("o")
    log_header(origin, {"config": CONFIG}, "initial")
    assert Session.create("s", seed=origin.events).request_header() == {"config": CONFIG}
