from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from state_home import Home
from state_logs import close_turn, open_turn, say, whole_turn

from dsh.base.json import FrozenDict
from dsh.kernel import Context
from dsh.state.persistence.errors import SessionConflict, SessionNotFound
from dsh.state.session.declared.agent_presets import AGENT_PRESET_SELECTED
from dsh.state.session.declared.compaction import COMPACTION_END, COMPACTION_START
from dsh.state.session.errors import SessionForkError
from dsh.state.session.events import SESSION_CREATED, TURN_END, TurnEndData
from dsh.state.session.fork import fork_stored, whole_turns_at
from dsh.state.session.session import Session
from dsh.state.session.store import LocalSessionStore


@pytest.fixture
async def store(root: Context) -> LocalSessionStore:
    await root.plugin(LocalSessionStore)
    return root.require(LocalSessionStore)


def parent_of(store: LocalSessionStore, turns: int = 2) -> Session:
    session = store.create(
        "parent",
        meta={"cwd": "/w", "origin": "subagent", "delegationDepth": 2, "agentPreset": "x"},
    )
    for turn in range(1, turns + 1):
        whole_turn(session, turn)
    return session


async def test_a_fork_has_the_history_and_the_workspace_and_nothing_else_of_its_parent(
    store: LocalSessionStore,
) -> None:
    parent = parent_of(store)
    child = store.fork(parent)
    assert list(child.events[:-1]) == list(parent.events)
    assert child.events[-1]["type"] == "session/end-seed"
    assert child.first_live_seq == parent.seq == child.header["seedLength"]
    rest = {key: value for key, value in child.header.items() if key not in ("id", "createdAt")}
    assert rest == {"version": 0, "cwd": "/w", "parentSession": "parent", "seedLength": parent.seq}
    assert child.derive_messages() == parent.derive_messages()
    assert store.get(child.id) is child


async def test_a_fork_is_heard_of_and_leaves_with_its_maker(
    root: Context, store: LocalSessionStore
) -> None:
    parent = parent_of(store)
    heard: list[str] = []
    root.on(SESSION_CREATED, lambda event: heard.append(event.session.id))
    made: list[Session] = []
    fiber = await root.inject(
        [LocalSessionStore],
        lambda ctx: made.append(ctx.require(LocalSessionStore).fork(parent, None, "child")),
    )
    assert heard == ["child"]
    await fiber.dispose()
    assert [session.id for session in store.all()] == ["parent"]


async def test_a_fork_and_its_parent_grow_apart(store: LocalSessionStore) -> None:
    parent = parent_of(store)
    child = store.fork("parent", child_session_id="child")
    before = len(parent.events)
    whole_turn(child, 3)
    assert len(parent.events) == before
    assert all(type(event) is FrozenDict for event in child.events)


async def test_an_empty_parent_has_an_empty_child(store: LocalSessionStore) -> None:
    store.create("parent")
    child = store.fork("parent")
    assert [event["type"] for event in child.events] == ["session/end-seed"]
    assert child.header["seedLength"] == 0


REASONS: list[dict[str, Any]] = [
    {"kind": "completed"},
    {"kind": "blocked"},
    {"kind": "max-tokens"},
    {"kind": "interrupted"},
    {"kind": "error", "error": {"message": "m", "code": "C"}},
    {"kind": "aborted", "reason": {"kind": "user"}},
    {"kind": "of-tomorrow"},
]


@pytest.mark.parametrize("reason", REASONS, ids=lambda reason: str(reason["kind"]))
async def test_a_turn_may_have_ended_for_any_reason(
    store: LocalSessionStore, reason: dict[str, Any]
) -> None:
    parent = store.create("parent")
    open_turn(parent)
    close_turn(parent)
    parent.append(TURN_END, TurnEndData(turn=1, reason=reason))
    assert store.fork(parent).header["seedLength"] == parent.seq


async def test_events_after_a_turn_come_along(store: LocalSessionStore) -> None:
    parent = parent_of(store, 1)
    say(parent, "between turns")
    assert store.fork(parent, parent.seq - 1).header["seedLength"] == parent.seq


async def test_no_position_inside_an_open_turn_can_be_forked(store: LocalSessionStore) -> None:
    parent = parent_of(store)
    starts = {event["seq"] for event in parent.events if event["type"] == "turn/start"}
    is_open = False
    for event in list(parent.events):
        is_open = event["seq"] in starts or (is_open and event["type"] != "turn/end")
        if is_open:
            with pytest.raises(SessionForkError, match="inside an open turn") as error:
                store.fork(parent, event["seq"])
            assert error.value.code == "OPEN_TURN"
        else:
            store.fork(parent, event["seq"])


async def test_an_earlier_boundary_works_while_a_turn_is_open(store: LocalSessionStore) -> None:
    parent = parent_of(store, 1)
    boundary = parent.seq - 1
    open_turn(parent, 2)
    child = store.fork(parent, boundary)
    assert child.header["seedLength"] == boundary + 1
    with pytest.raises(SessionForkError, match="inside an open turn"):
        store.fork(parent)


async def test_what_a_running_parent_has_open_is_dead_in_its_child(
    store: LocalSessionStore,
) -> None:
    store.declare(COMPACTION_START)
    store.declare(COMPACTION_END)
    parent = parent_of(store, 1)
    parent.append(COMPACTION_START, {"compactionId": "k", "turn": None})
    child = store.fork(parent)
    parent.append(COMPACTION_END, {"compactionId": "k", "turn": None})
    assert [event["type"] for event in child.events][-2:] == [
        "compaction/start",
        "session/end-seed",
    ]
    assert parent.events[-1]["type"] == "compaction/end"


@pytest.mark.parametrize("boundary", [-1, 1_000, 1.0, True, "1"])
async def test_a_boundary_that_is_no_event_is_refused(
    store: LocalSessionStore, boundary: Any
) -> None:
    parent = parent_of(store, 1)
    with pytest.raises(SessionForkError) as error:
        store.fork(parent, boundary)
    assert error.value.code == "INVALID_BOUNDARY"
    assert [session.id for session in store.all()] == ["parent"]


async def test_what_is_not_there_cannot_be_forked(store: LocalSessionStore) -> None:
    parent = parent_of(store)
    cases: list[tuple[str, Callable[[], object]]] = [
        ("SESSION_NOT_FOUND", lambda: store.fork("nobody")),
        ("SESSION_NOT_LIVE", lambda: store.fork(Session.create("parent"))),
        # A taken id is told first, whatever else is wrong.
        ("SESSION_ALREADY_EXISTS", lambda: store.fork("nobody", -1, "parent")),
        ("SESSION_ALREADY_EXISTS", lambda: store.fork(parent, None, "parent")),
    ]
    for code, attempt in cases:
        with pytest.raises(SessionForkError) as error:
            attempt()
        assert error.value.code == code


async def test_a_veto_leaves_no_fork(root: Context, store: LocalSessionStore) -> None:
    parent = parent_of(store)

    def veto(_: object) -> None:
        raise RuntimeError("no")

    root.on(SESSION_CREATED, veto)
    with pytest.raises(RuntimeError, match="no"):
        store.fork(parent)
    assert store.all() == [parent]


def ended_turns(count: int, trailing: int = 1) -> Session:
    session = Session.create("s")
    for turn in range(1, count + 1):
        whole_turn(session, turn, words=1)
        for _ in range(trailing):
            say(session, "after")
    return session


def test_a_position_stands_for_the_turn_that_ends_with_or_after_it() -> None:
    events = ended_turns(3).events  # 7 events a turn and one after it: 0-7, 8-15, 16-23
    assert len(whole_turns_at("s", events, 0)) == 8
    assert len(whole_turns_at("s", events, 6)) == 8
    assert len(whole_turns_at("s", events, 7)) == 16
    assert len(whole_turns_at("s", events, 14)) == 16
    assert len(whole_turns_at("s", events, None)) == 24
    assert len(whole_turns_at("s", events, 24)) == 24


def test_a_position_in_a_turn_that_has_not_ended_is_never_moved_to_an_earlier_one() -> None:
    session = ended_turns(1, trailing=0)
    open_turn(session, 2)
    with pytest.raises(SessionForkError, match="no turn has ended at event 8") as error:
        whole_turns_at("s", session.events, 8)
    assert error.value.code == "FORK_UNAVAILABLE"
    assert len(whole_turns_at("s", session.events, None)) == 7
    with pytest.raises(SessionForkError, match="no turn has ended;"):
        whole_turns_at("s", session.events[:3], None)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 3), max_size=5), st.integers(0, 60) | st.none())
def test_what_is_kept_are_whole_turns_and_the_wanted_event(
    trailing: list[int], at: int | None
) -> None:
    session = Session.create("s")
    for turn, count in enumerate(trailing, 1):
        whole_turn(session, turn, words=1)
        for _ in range(count):
            say(session, "after")
    open_turn(session, len(trailing) + 1)
    try:
        kept = whole_turns_at("s", session.events, at)
    except SessionForkError:
        last = max((e["seq"] for e in session.events if e["type"] == "turn/end"), default=-1)
        assert last < (0 if at is None or at >= session.seq else at)
        return
    brackets = [e["type"] for e in kept if e["type"] in ("turn/start", "turn/end")]
    assert brackets.count("turn/start") == brackets.count("turn/end")
    assert session.events[len(kept)]["type"] == "turn/start"
    assert (
        at is None
        or at >= session.seq
        or at < len(kept)
        or at in (event["seq"] for event in session.events[len(kept) :])
    )
    Session.create("child", kept)


async def stored(home: Home, turns: int = 2) -> Session:
    session = home.store.create("parent", meta={"cwd": "/w", "agentPreset": "first"})
    for turn in range(1, turns + 1):
        whole_turn(session, turn)
    await home.store.flush(session)
    return session


async def test_a_fork_of_a_stored_session_resumes_with_its_history(home: Home) -> None:
    parent = await stored(home)
    header = await fork_stored(home.persistence, "parent")
    child = await home.resume(header["id"])
    assert list(child.events[:-1]) == list(parent.events)
    assert child.derive_messages() == parent.derive_messages()
    assert (child.header["cwd"], child.header["parentSession"]) == ("/w", "parent")
    assert child.seq == parent.seq + 1, "the marker of the fork serves the resumption too"


async def test_a_stored_fork_has_the_preset_in_force(home: Home) -> None:
    home.store.declare(AGENT_PRESET_SELECTED)
    session = home.store.create("parent", meta={"agentPreset": "first"})
    session.append(AGENT_PRESET_SELECTED, {"agentPreset": "second"})
    whole_turn(session)
    await home.store.flush(session)
    assert (await fork_stored(home.persistence, "parent"))["agentPreset"] == "second"


async def test_a_session_that_a_crash_interrupted_is_forked_with_its_turn_closed(
    home: Home, again: Home
) -> None:
    parent = await stored(home)
    open_turn(parent, 3)
    await home.store.flush(parent)
    header = await fork_stored(again.persistence, "parent", at=parent.seq - 1)
    events = again.stored(header["id"])
    assert events is not None
    assert events[-2]["data"]["reason"] == {"kind": "interrupted"}
    assert len(home.stored("parent") or ()) == parent.seq, "the source is only read"


async def test_a_taken_id_and_an_absent_source_are_refused(home: Home) -> None:
    await stored(home)
    with pytest.raises(SessionConflict, match="is live"):
        await fork_stored(home.persistence, "parent", child_id="parent")
    with pytest.raises(SessionNotFound):
        await fork_stored(home.persistence, "nobody")
    assert home.files().count("session.jsonl.zstd") == 1
