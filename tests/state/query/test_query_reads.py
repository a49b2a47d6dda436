"""Exact reads: no index, and no persistence, is needed for them."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from query_corpus import code_of, conversation, damage, mount, store_and_leave, title, with_tool
from state_home import Home
from state_logs import close_turn, open_turn, say

from dsh.kernel import Context
from dsh.model.messages import create_user_message
from dsh.state.persistence.errors import SessionPersistenceCorruptionError
from dsh.state.persistence.jsonl import JsonlPersistence
from dsh.state.query import reader
from dsh.state.query.service import (
    AvailableAs,
    CreatedBetween,
    CwdIs,
    EventFilter,
    IdIs,
    ParentIs,
    SeqBetween,
    SessionFilter,
    SessionQuery,
    SessionQueryError,
    SessionTree,
    SurfaceIs,
    TextHas,
    TimeBetween,
    TypeIs,
)
from dsh.state.query.traces import records_of
from dsh.state.session.events import USER_MESSAGE
from dsh.state.session.store import LocalSessionStore


@pytest.fixture
async def store(root: Context) -> LocalSessionStore:
    await root.plugin(LocalSessionStore)
    return root.require(LocalSessionStore)


@pytest.fixture
async def query(root: Context, store: LocalSessionStore) -> SessionQuery:
    """The reads alone: search is switched off, and nothing stores sessions."""
    return await mount(root, openAt="never")


def compacted(store: LocalSessionStore, id: str = "s") -> Any:
    """A session whose first two messages (0 and 1) were replaced by one (3), after a third."""
    session = store.create(id)
    for text in ("first", "second", "third"):
        say(session, text)
    session.append(
        USER_MESSAGE,
        create_user_message("summary"),
        surface_op={"op": "replace", "start": 0, "end": 1},
        source_event_seqs=[0, 1],
    )
    return session


async def test_readers_work_without_persistence(
    store: LocalSessionStore, query: SessionQuery
) -> None:
    session = conversation(store, "s", ["hello"])
    assert [record.id for record in await query.list_sessions()] == ["s"]
    assert (await query.read_session("s")).events == session.events
    assert await query.read_title("s") is None


async def test_newest_sessions_come_first_and_equals_by_id(
    store: LocalSessionStore, query: SessionQuery
) -> None:
    for name, created in (("b", 1), ("c", 2), ("a", 1)):
        store.create(name, meta={"createdAt": created})
    assert [record.id for record in await query.list_sessions()] == ["c", "a", "b"]


async def test_an_unknown_session_is_not_found(query: SessionQuery) -> None:
    for read in (query.read_session, query.read_title, query.list_events, query.trace_session):
        with pytest.raises(SessionQueryError) as error:
            await read("nobody")
        assert code_of(error) == "SESSION_NOT_FOUND"


async def test_a_live_session_is_read_from_memory_alone(home: Home) -> None:
    query = await mount(home.root)
    session = conversation(home.store, "s", ["stored"])
    await home.store.flush(session)
    say(session, "not stored yet")
    assert (await query.read_session("s")).events == session.events


async def test_a_session_can_be_live_and_stored_at_once(home: Home) -> None:
    query = await mount(home.root)
    await store_and_leave(home, "cold", ["x"])
    session = conversation(home.store, "both", ["x"])
    home.store.create("fresh")
    await home.store.flush(session)
    found = {each.id: (each.live, each.persisted) for each in await query.list_sessions()}
    assert found == {"cold": (False, True), "both": (True, True), "fresh": (True, False)}


async def test_two_sessions_of_one_id_are_a_conflict(home: Home) -> None:
    query = await mount(home.root)
    await store_and_leave(home, "s", ["x"], createdAt=1, cwd="/there")
    await home.fiber.dispose()
    home.store.create("s", meta={"createdAt": 1, "cwd": "/here"})
    await home.root.plugin(JsonlPersistence, home.config)
    with pytest.raises(SessionQueryError, match="cwd") as error:
        await query.list_sessions()
    assert code_of(error) == "SOURCE_CONFLICT"


async def test_a_damaged_log_is_named_with_its_cause(home: Home) -> None:
    query = await mount(home.root)
    await store_and_leave(home, "bad", ["x"] * 3)
    damage(home.folder, "bad")
    with pytest.raises(SessionQueryError) as error:
        await query.read_session("bad")
    assert code_of(error) == "CORRUPT_SESSION"
    assert isinstance(error.value.__cause__, SessionPersistenceCorruptionError)


async def test_one_failing_title_does_not_fail_the_others(home: Home) -> None:
    query = await mount(home.root)
    await store_and_leave(home, "bad", ["x"] * 3)
    damage(home.folder, "bad")
    title(home.store.create("good"), "a title")

    found = await query.read_title_snapshots(["good", "bad", "absent", "good"])

    assert [each.session_id for each in found] == ["good", "bad", "absent"]
    assert found[0].value is not None
    assert found[0].value.title == "a title"
    codes = [each.reason.code for each in found if each.reason is not None]
    assert codes == ["SESSION_QUERY_CORRUPT_SESSION", "SESSION_QUERY_SESSION_NOT_FOUND"]


async def test_no_titles_of_no_sessions(query: SessionQuery) -> None:
    assert await query.read_title_snapshots([]) == []


async def test_events_are_current_shadowed_or_log_only(
    store: LocalSessionStore, query: SessionQuery
) -> None:
    conversation(store, "s", ["x"])
    compacted(store, "c")
    assert [each.surface for each in await query.list_events("s")] == [
        "log-only", "log-only", "current", "log-only", "log-only"
    ]  # fmt: skip
    surfaces = [each.surface for each in await query.list_events("c")]
    assert surfaces == ["shadowed", "shadowed", "current", "current"]


async def test_the_surface_is_read_in_the_order_of_the_model(
    store: LocalSessionStore, query: SessionQuery
) -> None:
    compacted(store)
    view = await query.read_surface("s")
    assert [event["seq"] for event in view.events] == [3, 2]
    assert view.captured_through_seq == 3
    store.create("empty")
    assert (await query.read_surface("empty")).captured_through_seq is None


async def test_a_trace_shows_what_replaced_an_event_and_what_came_of_it(
    store: LocalSessionStore, query: SessionQuery
) -> None:
    session = compacted(store)
    session.append(
        USER_MESSAGE,
        create_user_message("summary of all"),
        surface_op={"op": "replace", "start": 3, "end": 2},
        source_event_seqs=[3, 2],
    )
    first = await query.trace_event("s", 0)
    assert (first.replaced_by, first.replacement_chain) == (3, (3, 4))
    assert (first.source_event_seqs, first.derived_event_seqs) == ((), (3,))
    middle = await query.trace_event("s", 3)
    assert (middle.replaced_by, middle.replaced_event_seqs) == (4, (0, 1))
    assert (middle.source_event_seqs, middle.derived_event_seqs) == ((0, 1), (4,))
    assert middle.target.surface == "shadowed"
    last = await query.trace_event("s", 4)
    assert (last.replaced_by, last.replacement_chain) == (None, ())


@pytest.mark.parametrize("seq", [4, -1, 10**6, True])
async def test_a_missing_event_is_not_found(
    store: LocalSessionStore, query: SessionQuery, seq: int
) -> None:
    compacted(store)
    for read in (query.trace_event, query.read_event):
        with pytest.raises(SessionQueryError) as error:
            await read("s", seq)
        assert code_of(error) == "EVENT_NOT_FOUND"


async def test_a_window_holds_the_neighbours_that_there_are(
    store: LocalSessionStore, query: SessionQuery
) -> None:
    compacted(store)
    window = await query.read_event("s", 1, before=5, after=1)
    assert window.target["seq"] == 1
    assert [event["seq"] for event in window.before] == [0]
    assert [event["seq"] for event in window.after] == [2]


@pytest.mark.parametrize("side", [-1, 51, 1.5, True])
async def test_a_window_has_bounds(
    store: LocalSessionStore, query: SessionQuery, side: Any
) -> None:
    compacted(store)
    for sides in ({"before": side}, {"after": side}):
        with pytest.raises(SessionQueryError) as error:
            await query.read_event("s", 1, **sides)
        assert code_of(error) == "INVALID_WINDOW"


async def test_a_lineage_has_the_nearest_ancestor_first_and_the_oldest_child_first(
    store: LocalSessionStore, query: SessionQuery
) -> None:
    store.create("root", meta={"createdAt": 1})
    store.create("middle", meta={"createdAt": 2, "parentSession": "root"})
    store.create("young", meta={"createdAt": 9, "parentSession": "middle"})
    store.create("old", meta={"createdAt": 3, "parentSession": "middle"})
    store.create("below", meta={"createdAt": 4, "parentSession": "old"})

    trace = await query.trace_session("old")
    assert [each.id for each in trace.ancestors] == ["middle", "root"]
    assert trace.complete
    assert _ids(trace.descendants) == [("below", [])]
    assert _ids((await query.trace_session("root")).descendants) == [
        ("middle", [("old", [("below", [])]), ("young", [])])
    ]


async def test_a_lineage_says_which_parent_is_missing(
    store: LocalSessionStore, query: SessionQuery
) -> None:
    store.create("child", meta={"parentSession": "lost"})
    trace = await query.trace_session("child")
    assert (trace.complete, trace.unresolved_parent_id) == (False, "lost")


async def test_parents_in_a_circle_are_refused(
    store: LocalSessionStore, query: SessionQuery
) -> None:
    store.create("a", meta={"parentSession": "b"})
    store.create("b", meta={"parentSession": "a"})
    with pytest.raises(SessionQueryError) as error:
        await query.trace_session("a")
    assert code_of(error) == "INVALID_LINEAGE"


async def test_a_lineage_may_be_very_deep(store: LocalSessionStore, query: SessionQuery) -> None:
    store.create("s0")
    for number in range(1, 1500):
        store.create(f"s{number}", meta={"parentSession": f"s{number - 1}"})
    assert len((await query.trace_session("s1499")).ancestors) == 1499
    assert len((await query.trace_session("s0")).descendants) == 1


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([], {"a", "b", "c"}),
        ([IdIs(["a", "x"])], {"a"}),
        ([IdIs([])], set()),
        ([CwdIs(["/one"])], {"a"}),
        ([CwdIs([None, "/two"])], {"b", "c"}),
        ([ParentIs([None])], {"a", "b"}),
        ([ParentIs(["a"])], {"c"}),
        ([CreatedBetween(2, 3)], {"b", "c"}),
        ([CreatedBetween(end=1.5)], {"a"}),
        ([AvailableAs(["live"])], {"a", "b", "c"}),
        ([AvailableAs(["persisted"])], set()),
        ([CreatedBetween(start=2), ParentIs([None])], {"b"}),
    ],
)
async def test_filters_on_sessions_hold_together(
    store: LocalSessionStore,
    query: SessionQuery,
    filters: list[SessionFilter],
    expected: set[str],
) -> None:
    store.create("a", meta={"createdAt": 1, "cwd": "/one"})
    store.create("b", meta={"createdAt": 2, "cwd": "/two"})
    store.create("c", meta={"createdAt": 3, "parentSession": "a"})
    assert {each.id for each in await query.filter_sessions(filters)} == expected


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([SeqBetween(1, 2)], [1, 2]),
        ([SeqBetween(start=6)], [6, 7]),
        ([TypeIs(["user/message", "tool/call"])], [2, 4]),
        ([TypeIs([])], []),
        ([SurfaceIs(["current"])], [2, 3, 5]),
        ([TextHas("THE needle")], [2, 5]),
        ([TextHas("read {}")], [3, 4]),
        ([TextHas("needle"), SeqBetween(start=3)], [5]),
        ([TimeBetween(end=0)], []),
    ],
)
async def test_filters_on_events_hold_together(
    store: LocalSessionStore,
    query: SessionQuery,
    filters: list[EventFilter],
    expected: list[int],
) -> None:
    session = store.create("s")
    open_turn(session)
    say(session, "find the\n\n  Needle")
    with_tool(session, "here is THE\tNEEDLE")
    close_turn(session)
    assert [each.seq for each in await query.filter_events("s", filters)] == expected


@pytest.mark.parametrize(
    "filter",
    [
        CreatedBetween(2, 1),
        CreatedBetween(float("nan")),
        CreatedBetween(float("inf")),
        CreatedBetween(10**400),
        CreatedBetween("now"),  # type: ignore[arg-type]
        CreatedBetween(True),
        IdIs("abc"),
        IdIs([1]),  # type: ignore[list-item]
        CwdIs(None),  # type: ignore[arg-type]
        AvailableAs(["gone"]),  # type: ignore[list-item]
        SeqBetween(1, 2),
        {"kind": "id", "values": ["a"]},
    ],
)
async def test_a_wrong_filter_on_sessions_is_refused(query: SessionQuery, filter: Any) -> None:
    with pytest.raises(SessionQueryError) as error:
        await query.filter_sessions([filter])
    assert code_of(error) == "INVALID_FILTER"


@pytest.mark.parametrize(
    "filter",
    [
        SeqBetween(1.5),  # type: ignore[arg-type]
        SeqBetween(3, 2),
        SurfaceIs(["deep"]),  # type: ignore[list-item]
        TextHas(""),
        TextHas(" \n"),
        TextHas("a\0b"),
        TextHas(3),  # type: ignore[arg-type]
        IdIs(["a"]),
        None,
    ],
)
async def test_a_wrong_filter_on_events_is_refused(
    store: LocalSessionStore, query: SessionQuery, filter: Any
) -> None:
    store.create("s")
    with pytest.raises(SessionQueryError) as error:
        await query.filter_events("s", [filter])
    assert code_of(error) == "INVALID_FILTER"


async def test_filters_are_copied_when_they_are_given(home: Home) -> None:
    query = await mount(home.root)
    await store_and_leave(home, "a", ["x"])
    values = ["a"]
    asked = asyncio.ensure_future(query.filter_sessions([IdIs(values)]))
    await asyncio.sleep(0)
    values[0] = "b"
    assert [each.id for each in await asked] == ["a"]


async def test_persistence_may_come_and_go(root: Context, tmp_path: Path) -> None:
    home = await Home(root, tmp_path / "sessions").open()
    query = await mount(root)
    await store_and_leave(home, "s", ["x"])
    await home.fiber.dispose()
    assert await query.list_sessions() == []
    await root.plugin(JsonlPersistence, home.config)
    assert [each.id for each in await query.list_sessions()] == ["s"]


def _ids(trees: tuple[SessionTree, ...]) -> list[Any]:
    return [(tree.session.id, _ids(tree.children)) for tree in trees]


async def test_a_session_that_becomes_live_during_the_read_wins(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = await mount(home.root)
    await store_and_leave(home, "s", ["stored"])
    inspect = JsonlPersistence.inspect

    async def slow(self: Any, id: str) -> Any:
        found = await inspect(self, id)
        session = await home.resume(id)
        say(session, "live")
        return found

    monkeypatch.setattr(JsonlPersistence, "inspect", slow)
    read = await query.read_session("s")
    assert home.store.get("s") is not None
    assert read.events == home.store.get("s").events  # type: ignore[union-attr]


async def test_titles_are_read_a_few_at_a_time_after_one_listing(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = await mount(home.root, persistedInspectConcurrency=2)
    for number in range(6):
        await store_and_leave(home, f"s{number}", ["x"])
    inspect, listing = JsonlPersistence.inspect, JsonlPersistence.all
    running: list[str] = []
    most: list[int] = []
    listed: list[object] = []

    async def counted(self: Any, id: str) -> Any:
        running.append(id)
        most.append(len(running))
        found = await inspect(self, id)
        running.remove(id)
        return found

    async def listed_once(self: Any) -> Any:
        listed.append(self)
        return await listing(self)

    monkeypatch.setattr(JsonlPersistence, "inspect", counted)
    monkeypatch.setattr(JsonlPersistence, "all", listed_once)
    found = await query.read_title_snapshots([f"s{number}" for number in range(6)])
    assert all(each.value is not None for each in found)
    assert max(most) == 2
    assert len(listed) == 1


async def test_titles_that_are_not_wanted_any_more_are_not_read_on(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = await mount(home.root, persistedInspectConcurrency=2)
    for number in range(4):
        await store_and_leave(home, f"s{number}", ["x"])
    begun, ended = asyncio.Event(), []

    async def endless(self: Any, id: str) -> Any:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(id)

    monkeypatch.setattr(JsonlPersistence, "inspect", endless)
    asked = asyncio.ensure_future(query.read_title_snapshots([f"s{n}" for n in range(4)]))
    await begun.wait()
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert sorted(ended) == ["s0", "s1"]


async def test_a_long_log_is_looked_through_beside_the_loop(
    store: LocalSessionStore, query: SessionQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = store.create("s")
    for number in range(1200):
        say(session, f"text {number}")
    threads: list[threading.Thread] = []

    def noted(*args: Any) -> Any:
        threads.append(threading.current_thread())
        return records_of(*args)

    monkeypatch.setattr(reader, "records_of", noted)
    found = await query.filter_events("s", [TextHas("text 1199")])
    assert [each.seq for each in found] == [1199]
    assert threading.main_thread() not in threads
