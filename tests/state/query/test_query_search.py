"""Searches: what is found, in which order, page by page."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import sys
import threading
from typing import Any

import pytest
from query_corpus import code_of, conversation, damage, mount, store_and_leave, with_tool
from state_home import Home
from state_logs import answer, call, close_turn, open_turn, reply, say

from dsh.kernel import Context
from dsh.model.messages import create_assistant_message, create_user_message
from dsh.state.persistence.errors import PersistenceError
from dsh.state.persistence.jsonl import JsonlPersistence
from dsh.state.query.service import (
    AvailableAs,
    CwdIs,
    EventSearch,
    IdIs,
    ParentIs,
    SeqBetween,
    SessionQuery,
    SessionQueryError,
    SessionSearch,
    SurfaceIs,
    TextHas,
    TimeBetween,
    TypeIs,
)
from dsh.state.query.sqlite import SqliteSessionQuery, index
from dsh.state.session.events import (
    ASSISTANT_MESSAGE,
    TODO_WRITE,
    TURN_END,
    USER_MESSAGE,
    AssistantMessageData,
    TodoWriteData,
    TurnEndData,
)
from dsh.state.session.service import SessionStore
from dsh.state.session.store import LocalSessionStore


@pytest.fixture
async def store(root: Context) -> LocalSessionStore:
    await root.plugin(LocalSessionStore)
    return root.require(LocalSessionStore)


@pytest.fixture
async def query(root: Context, store: LocalSessionStore) -> SessionQuery:
    return await mount(root)


async def found_in(query: SessionQuery, text: str, **more: Any) -> list[str]:
    page = await query.search_sessions(SessionSearch(query=text, **more))
    return [hit.session.id for hit in page.hits]


async def seqs_in(query: SessionQuery, id: str, text: str, **more: Any) -> list[int]:
    page = await query.search_events(EventSearch(session_id=id, query=text, **more))
    return [hit.event.seq for hit in page.hits]


async def test_live_and_stored_sessions_are_found_by_their_best_event(home: Home) -> None:
    query = await mount(home.root)
    await store_and_leave(home, "cold", ["other", "the needle is here"])
    conversation(home.store, "warm", ["needle and needle"])

    page = await query.search_sessions(SessionSearch(query="needle"))

    assert [(hit.session.id, hit.best.event.seq) for hit in page.hits] == [("warm", 2), ("cold", 7)]
    assert [(hit.session.live, hit.session.persisted) for hit in page.hits] == [
        (True, False),
        (False, True),
    ]
    assert page.hits[1].best.snippet == "the needle is here"
    assert page.next_cursor is None


async def test_more_matches_come_first_then_shorter_then_later_texts(
    store: LocalSessionStore, query: SessionQuery
) -> None:
    session = store.create("s")
    for text in ("word", "word and more", "a word", "word word and much more", "word"):
        say(session, text)
    assert await seqs_in(query, "s", "word") == [3, 4, 0, 2, 1]


@pytest.mark.parametrize(
    "text",
    [
        '"',
        "a OR b",
        "NEAR(a b)",
        "col:a",
        "a*",
        "(a",
        "^a",
        "a AND",
        "-a",
        "%",
        "_",
        "?1",
        "''",
        "*",
    ],
)
async def test_no_character_of_a_query_is_syntax(
    store: LocalSessionStore, query: SessionQuery, text: str
) -> None:
    conversation(store, "has", [f"x {text} y"])
    conversation(store, "has not", ["b and a, with other words near by"])
    assert await found_in(query, text) == ["has"]


@pytest.mark.parametrize(
    ("text", "query_text"),
    [
        ("搜索引擎的索引", "索引"),
        ("搜索引擎的索引", "擎的索"),
        ("unforgettable", "forget"),
        ("ΟΔΟΣ ΣΟΦΟΣ", "οδος σοφος"),
        ("STRASSE Ünïcode", "ÜNÏ"),
        ("spread\n over \t lines", "spread over lines"),
        ("one", "O"),
        ("emoji 🦊🦊 fox", "🦊"),
    ],
)
async def test_parts_of_words_are_found_in_any_script(
    store: LocalSessionStore, query: SessionQuery, text: str, query_text: str
) -> None:
    conversation(store, "s", [text])
    assert await found_in(query, query_text) == ["s"]


async def test_a_query_may_be_long(store: LocalSessionStore, query: SessionQuery) -> None:
    text = " ".join(f"word{number}搜" for number in range(2000))
    conversation(store, "whole", [text])
    conversation(store, "cut", [text[:-1]])
    assert await found_in(query, text) == ["whole"]


async def test_short_queries_of_a_large_alphabet_are_found_at_every_place(
    store: LocalSessionStore, query: SessionQuery
) -> None:
    letters = [chr(0x4E00 + number) for number in range(400)]
    conversation(store, "all", ["的".join(letters), "x" + letters[0], letters[1] + "y"])
    for text in (
        "的",
        letters[0],
        letters[399],
        "x" + letters[0],
        letters[1] + "y",
        "的" + letters[7],
    ):
        assert await found_in(query, text) == ["all"]
    assert await found_in(query, letters[1] + letters[0]) == []
    assert await found_in(query, "龠") == []


@pytest.mark.parametrize("text", ["", "  \n", "a\0b", None, 7])
async def test_an_unusable_query_is_refused(query: SessionQuery, text: Any) -> None:
    for asked in (
        query.search_sessions(SessionSearch(query=text)),
        query.search_events(EventSearch(session_id="s", query=text)),
    ):
        with pytest.raises(SessionQueryError) as error:
            await asked
        assert code_of(error) == "INVALID_QUERY"


@pytest.mark.parametrize("odd", ["\0", "\ud800", "\ufffe", "\ue000", "\x01", "<b>", "\x1b[1m"])
async def test_odd_characters_in_documents_forge_nothing(
    store: LocalSessionStore, query: SessionQuery, odd: str
) -> None:
    conversation(store, "odd", [f"{odd}needle{odd} tail{odd}"])
    conversation(store, "plain", ["needle needle"])
    assert await found_in(query, "needle") == ["plain", "odd"]
    assert await found_in(query, "tail") == ["odd"]


async def test_what_can_be_searched(store: LocalSessionStore, query: SessionQuery) -> None:
    session = store.create("s")
    open_turn(session)
    say(session, "seen: prompt")
    blocks: Any = [{"type": "reasoning", "text": "unseen"}, {"type": "text", "text": "seen: reply"}]
    message = create_assistant_message(blocks, "rehearsal", "m1")
    data = AssistantMessageData(turn=1, step=1, message=message)
    session.append(ASSISTANT_MESSAGE, data, surface_op="append")
    with_tool(session, "seen: result")
    todos = TodoWriteData(todos=[{"content": "seen: todo", "status": "in_progress"}])
    session.append(TODO_WRITE, todos)
    failure: Any = {"kind": "error", "error": {"message": "seen: failure", "code": "X"}}
    session.append(TURN_END, TurnEndData(turn=1, reason=failure))

    assert sorted(await seqs_in(query, "s", "seen:")) == [2, 3, 6, 7, 8]
    assert await seqs_in(query, "s", "unseen") == []
    assert sorted(await seqs_in(query, "s", "read {}")) == [4, 5]
    assert await seqs_in(query, "s", "in_progress") == [7]
    assert await seqs_in(query, "s", "error seen") == [8]


@pytest.mark.parametrize("kind", ["aborted", "max-tokens", "interrupted", "completed"])
async def test_ends_of_turns_are_found_when_they_say_something(
    store: LocalSessionStore, query: SessionQuery, kind: str
) -> None:
    session = store.create("s")
    open_turn(session)
    session.append(TURN_END, TurnEndData(turn=1, reason={"kind": kind}))
    assert await seqs_in(query, "s", kind) == ([] if kind == "completed" else [2])


async def test_the_error_of_a_tool_is_found(store: LocalSessionStore, query: SessionQuery) -> None:
    session = store.create("s")
    reply(session, calls={"c1": "bash"})
    answer(session, call(session, "c1"), "no", error={"name": "AbortError", "code": "ABORTED_X"})
    assert await seqs_in(query, "s", "aborterror aborted_x") == [2]


async def test_filters_narrow_a_search_over_sessions(
    store: LocalSessionStore, query: SessionQuery
) -> None:
    conversation(store, "a", ["word", "word"], cwd="/one", createdAt=1)
    conversation(store, "b", ["word"], cwd="/two", createdAt=2, parentSession="a")
    conversation(store, "c", ["word"], createdAt=3)

    async def among(*filters: Any) -> set[str]:
        return set(await found_in(query, "word", session_filters=filters))

    assert await among(CwdIs(["/one", None])) == {"a", "c"}
    assert await among(ParentIs([None])) == {"a", "c"}
    assert await among(IdIs(["b"]), CwdIs(["/one"])) == set()
    assert await among(IdIs([])) == set()
    assert await among(AvailableAs(["persisted"])) == set()
    assert await found_in(query, "word", event_filters=[SeqBetween(start=5)]) == ["a"]


async def test_filters_narrow_a_search_in_a_session(
    store: LocalSessionStore, query: SessionQuery
) -> None:
    session = store.create("s")
    say(session, "word one")
    reply(session, "word two")
    session.append(
        USER_MESSAGE,
        create_user_message("word sum"),
        surface_op={"op": "replace", "start": 0, "end": 0},
        source_event_seqs=[0],
    )

    async def among(*filters: Any) -> list[int]:
        return sorted(await seqs_in(query, "s", "word", filters=filters))

    assert await among() == [0, 1, 2]
    assert await among(TypeIs(["user/message"])) == [0, 2]
    assert await among(SurfaceIs(["shadowed"])) == [0]
    assert await among(SurfaceIs(["current"]), TypeIs(["user/message"])) == [2]
    assert await among(TextHas("TWO")) == [1]
    assert await among(SeqBetween(end=1), TimeBetween(start=0)) == [0, 1]
    assert await among(TypeIs([])) == []


async def test_an_event_that_is_replaced_later_becomes_shadowed(
    store: LocalSessionStore, query: SessionQuery
) -> None:
    session = store.create("s")
    say(session, "word")
    assert await seqs_in(query, "s", "word", filters=[SurfaceIs(["current"])]) == [0]
    session.append(
        USER_MESSAGE,
        create_user_message("sum"),
        surface_op={"op": "replace", "start": 0, "end": 0},
        source_event_seqs=[0],
    )
    assert await seqs_in(query, "s", "word", filters=[SurfaceIs(["current"])]) == []
    assert await seqs_in(query, "s", "word", filters=[SurfaceIs(["shadowed"])]) == [0]


@pytest.mark.parametrize(("count", "fits"), [(14, True), (15, False)])
async def test_a_search_over_sessions_has_so_many_filters(
    query: SessionQuery, count: int, fits: bool
) -> None:
    filters = [IdIs(["a"])] * 7, [SeqBetween(0, 1)] * (count - 7)
    request = SessionSearch(query="x", session_filters=filters[0], event_filters=filters[1])
    await _fits(query.search_sessions(request), fits)


@pytest.mark.parametrize(("count", "fits"), [(13, True), (14, False)])
async def test_a_search_in_a_session_has_one_filter_less(
    store: LocalSessionStore, query: SessionQuery, count: int, fits: bool
) -> None:
    store.create("s")
    request = EventSearch(session_id="s", query="x", filters=[SeqBetween(0, 1)] * count)
    await _fits(query.search_events(request), fits)


@pytest.mark.parametrize(("count", "fits"), [(32_766, True), (32_767, False)])
async def test_the_values_of_all_filters_are_bounded(
    query: SessionQuery, count: int, fits: bool
) -> None:
    request = SessionSearch(query="x", session_filters=[IdIs(["a"] * count)])
    await _fits(query.search_sessions(request), fits)


async def _fits(asked: Any, fits: bool) -> None:
    if fits:
        await asked
        return
    with pytest.raises(SessionQueryError) as error:
        await asked
    assert code_of(error) == "INVALID_FILTER"


@pytest.mark.parametrize("limit", [0, 101, -1, 1.0, True, "5"])
async def test_a_page_has_bounds(query: SessionQuery, limit: Any) -> None:
    with pytest.raises(SessionQueryError) as error:
        await query.search_sessions(SessionSearch(query="x", limit=limit))
    assert code_of(error) == "INVALID_LIMIT"


async def test_pages_follow_each_other_without_gap_or_repetition(
    store: LocalSessionStore, query: SessionQuery
) -> None:
    for number in range(7):
        conversation(store, f"s{number}", ["word " * (number + 1)])
    request = SessionSearch(query="word", limit=3)
    pages, cursor = [], None
    while True:
        page = await query.search_sessions(
            SessionSearch(query=request.query, limit=3, cursor=cursor)
        )
        pages.append([hit.session.id for hit in page.hits])
        cursor = page.next_cursor
        if cursor is None:
            break
    assert pages == [["s6", "s5", "s4"], ["s3", "s2", "s1"], ["s0"]]


async def test_a_cursor_belongs_to_its_request_and_its_service(
    store: LocalSessionStore, query: SessionQuery, root: Context
) -> None:
    for number in range(3):
        conversation(store, f"s{number}", ["word"])
    cursor = (await query.search_sessions(SessionSearch(query="word", limit=1))).next_cursor
    assert cursor is not None
    raw = json.loads(base64.urlsafe_b64decode(cursor + "=="))
    other_instance = base64.urlsafe_b64encode(json.dumps(["x", *raw[1:]]).encode()).decode()
    for request in (
        SessionSearch(query="wor", limit=1, cursor=cursor),
        SessionSearch(query="word", limit=2, cursor=cursor),
        SessionSearch(query="word", limit=1, cursor=cursor, session_filters=[IdIs(["s1"])]),
        SessionSearch(query="word", limit=1, cursor=other_instance.rstrip("=")),
        SessionSearch(query="word", limit=1, cursor="???"),
        SessionSearch(query="word", limit=1, cursor=""),
    ):
        with pytest.raises(SessionQueryError) as error:
            await query.search_sessions(request)
        assert code_of(error) == "INVALID_CURSOR"
    with pytest.raises(SessionQueryError) as error:
        await query.search_events(
            EventSearch(session_id="s1", query="word", limit=1, cursor=cursor)
        )
    assert code_of(error) == "INVALID_CURSOR"


async def test_a_cursor_is_stale_when_what_it_goes_through_has_changed(
    store: LocalSessionStore, query: SessionQuery
) -> None:
    first = conversation(store, "a", ["word", "word"])
    second = conversation(store, "b", ["word", "word"])
    over = SessionSearch(query="word", limit=1)
    within = EventSearch(session_id="a", query="word", limit=1)
    over_cursor = (await query.search_sessions(over)).next_cursor
    within_cursor = (await query.search_events(within)).next_cursor

    say(second, "another")
    await query.search_events(
        EventSearch(session_id="a", query="word", limit=1, cursor=within_cursor)
    )
    with pytest.raises(SessionQueryError) as error:
        await query.search_sessions(SessionSearch(query="word", limit=1, cursor=over_cursor))
    assert code_of(error) == "STALE_CURSOR"

    say(first, "another")
    with pytest.raises(SessionQueryError) as error:
        await query.search_events(
            EventSearch(session_id="a", query="word", limit=1, cursor=within_cursor)
        )
    assert code_of(error) == "STALE_CURSOR"


async def test_a_snippet_shows_the_match_and_keeps_its_bound(
    root: Context, store: LocalSessionStore
) -> None:
    query = await mount(root, snippetChars=40)
    conversation(store, "s", ["left " * 100 + "NEEDLE" + " right" * 100])
    page = await query.search_sessions(SessionSearch(query="needle"))
    snippet = page.hits[0].best.snippet
    assert "NEEDLE" in snippet
    assert snippet.startswith("...")
    assert snippet.endswith("...")
    assert len(snippet) == 40


async def test_never_means_that_nothing_of_the_search_is_even_looked_at(
    root: Context, store: LocalSessionStore
) -> None:
    query = await mount(root, openAt="never")
    for asked in (
        query.search_sessions(SessionSearch(query="", limit=-1, cursor="?")),
        query.search_events(EventSearch(session_id="nobody", query="")),
    ):
        with pytest.raises(SessionQueryError) as error:
            await asked
        assert code_of(error) == "SEARCH_DISABLED"


def test_never_does_not_import_sqlite() -> None:
    code = """
import asyncio, sys
from dsh.kernel import Context
from dsh.state.session.store import LocalSessionStore
from dsh.state.query.sqlite import SqliteSessionQuery
from dsh.state.query.service import *
async def main():
    root = Context()
    await root.plugin(LocalSessionStore)
    await root.plugin(SqliteSessionQuery, {"path": ":memory:", "openAt": "never"})
    query = root.require(SessionQuery)
    await query.list_sessions()
    try:
        await query.search_sessions(SessionSearch(query="x"))
    except SessionQueryError:
        pass
    await root.dispose()
asyncio.run(main())
print("sqlite3" in sys.modules or "_sqlite3" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


async def test_first_searches_at_once_share_one_opening(
    store: LocalSessionStore, query: SessionQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[object] = []
    make = SqliteSessionQuery._make_index

    def counted(self: SqliteSessionQuery) -> Any:
        made.append(self)
        return make(self)

    monkeypatch.setattr(SqliteSessionQuery, "_make_index", counted)
    conversation(store, "s", ["word"])
    answers = await asyncio.gather(*(found_in(query, "word") for _ in range(5)))
    assert answers == [["s"]] * 5
    assert len(made) == 1


async def test_a_cancelled_search_leaves_the_next_one_whole(
    home: Home,
) -> None:
    query = await mount(home.root)
    await store_and_leave(home, "s", ["word"])
    for turns_of_the_loop in range(12):
        asked = asyncio.ensure_future(found_in(query, "word"))
        for _ in range(turns_of_the_loop):
            await asyncio.sleep(0)
        asked.cancel()
        await asyncio.wait([asked])
    assert await found_in(query, "word") == ["s"]


async def test_one_damaged_session_does_not_hide_the_others(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    query = await mount(home.root)
    for number in range(3):
        await store_and_leave(home, f"s{number}", ["word"] * 3)
    damage(home.folder, "s1")
    assert sorted(await found_in(query, "word")) == ["s0", "s2"]
    assert "'s1'" in caplog.text
    with pytest.raises(SessionQueryError) as error:
        await seqs_in(query, "s1", "word")
    assert code_of(error) == "CORRUPT_SESSION"


async def test_one_session_that_the_system_refuses_does_not_hide_the_others(
    home: Home, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    query = await mount(home.root)
    for number in range(3):
        await store_and_leave(home, f"s{number}", ["word"])
    inspect = JsonlPersistence.inspect

    async def refused(self: Any, id: str) -> Any:
        if id == "s1":
            raise PermissionError(13, "Permission denied")
        return await inspect(self, id)

    monkeypatch.setattr(JsonlPersistence, "inspect", refused)
    assert sorted(await found_in(query, "word")) == ["s0", "s2"]
    assert "Permission denied" in caplog.text


async def test_a_store_that_fails_as_a_whole_fails_the_search(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = await mount(home.root)

    async def failing(self: object) -> Any:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(JsonlPersistence, "list_snapshots", failing)
    with pytest.raises(SessionQueryError, match="Input/output") as error:
        await found_in(query, "word")
    assert code_of(error) == "PERSISTENCE_FAILED"


async def test_sessions_are_hidden_while_nothing_stores_them(home: Home) -> None:
    query = await mount(home.root)
    await store_and_leave(home, "cold", ["word"])
    conversation(home.store, "warm", ["word"])
    assert sorted(await found_in(query, "word")) == ["cold", "warm"]
    await home.fiber.dispose()
    assert await found_in(query, "word") == ["warm"]
    await home.root.plugin(JsonlPersistence, home.config)
    assert sorted(await found_in(query, "word")) == ["cold", "warm"]


async def test_a_session_that_ends_stays_to_be_found(home: Home) -> None:
    query = await mount(home.root)
    await store_and_leave(home, "s", ["word one"])
    assert await found_in(query, "word") == ["s"]
    session = await home.resume("s")
    open_turn(session, 2)
    say(session, "word two")
    close_turn(session, 2)
    assert len(await seqs_in(query, "s", "word")) == 2
    await home.store.flush(session)
    assert len(await seqs_in(query, "s", "word")) == 2


async def test_a_deleted_session_is_not_found(home: Home) -> None:
    query = await mount(home.root)
    await store_and_leave(home, "s", ["word"])
    assert await found_in(query, "word") == ["s"]
    await home.persistence.delete("s")
    assert await found_in(query, "word") == []
    with pytest.raises(SessionQueryError) as error:
        await seqs_in(query, "s", "word")
    assert code_of(error) == "SESSION_NOT_FOUND"


async def test_only_new_events_of_a_live_session_are_read(
    store: LocalSessionStore, query: SessionQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = conversation(store, "s", ["word"] * 10)
    await found_in(query, "word")
    read: list[int] = []
    plain_reader = index.searchable_text

    def noted(event: Any) -> str | None:
        read.append(event["seq"])
        return plain_reader(event)

    monkeypatch.setattr(index, "searchable_text", noted)
    new = say(session, "word more")
    assert len(await seqs_in(query, "s", "word")) == 11
    assert read == [new["seq"]]


async def test_the_loop_never_does_the_indexing(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = await mount(home.root)
    await store_and_leave(home, "cold", ["word"])
    conversation(home.store, "warm", ["word"])
    threads: list[threading.Thread] = []
    reader = index.searchable_text

    def noted(event: Any) -> str | None:
        threads.append(threading.current_thread())
        return reader(event)

    monkeypatch.setattr(index, "searchable_text", noted)
    assert sorted(await found_in(query, "word")) == ["cold", "warm"]
    assert len(set(threads)) == 1
    assert threading.main_thread() not in threads


async def test_indexing_begins_at_startup_when_asked_for(home: Home) -> None:
    await store_and_leave(home, "s", ["word"])
    query = await mount(home.root, openAt="startup")
    assert await found_in(query, "word") == ["s"]


async def test_a_store_that_goes_away_during_a_search_is_asked_no_more(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = await mount(home.root)
    await store_and_leave(home, "cold", ["word"])
    conversation(home.store, "warm", ["word"])

    async def leaving(self: Any) -> Any:
        await home.fiber.dispose()
        raise PersistenceError("session persistence is shutting down")

    monkeypatch.setattr(JsonlPersistence, "list_snapshots", leaving)
    assert await found_in(query, "word") == ["warm"]


async def test_a_session_that_ends_during_a_search_is_looked_for_once_more(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = await mount(home.root)
    held: list[Any] = []

    def body(ctx: Context) -> None:
        held.append(conversation(ctx.require(SessionStore), "s", ["word"]))

    fiber = await home.root.inject([SessionStore], body)
    await home.store.flush(held[0])
    snapshots = JsonlPersistence.list_snapshots

    async def ending(self: Any) -> Any:
        found = await snapshots(self)
        await fiber.dispose()
        return found

    monkeypatch.setattr(JsonlPersistence, "list_snapshots", ending)
    assert await found_in(query, "word") == ["s"]
