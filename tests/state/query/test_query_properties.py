"""What must hold for any sessions: the index finds what a scan finds, and forgets nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from state_logs import say

from dsh.model.messages import create_user_message
from dsh.state.query.filters import checked_event_filters, event_test
from dsh.state.query.service import (
    EventSearch,
    SessionQueryError,
    SessionRecord,
    SessionSearch,
    SurfaceClass,
    SurfaceIs,
    TextHas,
)
from dsh.state.query.sqlite.index import LiveLog, SearchIndex
from dsh.state.query.sqlite.request import Requests
from dsh.state.query.text import folded, plain, searchable_text, snippet_around
from dsh.state.query.traces import surface_class
from dsh.state.session.events import USER_MESSAGE
from dsh.state.session.session import Session

# Few letters, so that random texts have random parts in common; some of them are awkward.
LETTERS = st.sampled_from(list('aAbß "*Σςİ搜索\n\t\0\ud800🦊%-'))
TEXTS = st.text(LETTERS, max_size=12)
REQUESTS = Requests("test", 20, 100)
QUICK = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def session_of(id: str, texts: Sequence[str], replacements: Sequence[int] = ()) -> Session:
    session = Session.create(id)
    for text in texts:
        say(session, text)
    for choice in replacements:
        replace(session, choice)
    return session


def replace(session: Session, choice: int) -> None:
    """Replace one or two nodes by a message."""
    nodes = session.surface.nodes
    if not nodes:
        return
    first = choice % len(nodes)
    taken = nodes[first : first + 1 + choice % 2]
    session.append(
        USER_MESSAGE,
        create_user_message("ab"),
        surface_op={"op": "replace", "start": taken[0], "end": taken[-1]},
        source_event_seqs=taken,
    )


def live_log(session: Session) -> LiveLog:
    return LiveLog(session.header, session.events, session.surface.nodes)


def scanned(session: Session, needle: str) -> list[tuple[int, int, int, int]]:
    """Rank the events of a session by reading all of them."""
    found = []
    for event in session.events:
        text = folded(plain(searchable_text(event) or ""))
        if count := text.count(needle):
            found.append((-count, len(text), -event["time"], -event["seq"]))
    return sorted(found)


def usable(query: str) -> bool:
    return "\0" not in query and bool(plain(query))


corpora = st.lists(
    st.tuples(st.lists(TEXTS, max_size=5), st.lists(st.integers(0, 9), max_size=2)), max_size=4
)


@QUICK
@given(corpora, TEXTS.filter(usable))
def test_a_search_finds_and_ranks_what_a_scan_does(corpus: list[Any], query: str) -> None:
    sessions = [session_of(f"s{n}", *content) for n, content in enumerate(corpus)]
    index = SearchIndex(":memory:", "wal")
    try:
        records = [SessionRecord(each.header, True, False) for each in sessions]
        search = REQUESTS.over_sessions(SessionSearch(query=query))
        answer = index.search_sessions(map(live_log, sessions), records, search)
        ranked = [(scanned(each, search.needle), each.id) for each in sessions]
        best = sorted((found[0][:3], name, found[0][3]) for found, name in ranked if found)
        assert [(hit.session_id, hit.seq) for hit in answer.hits] == [
            (name, -seq) for _, name, seq in best
        ]
        for session in sessions:
            request = EventSearch(session_id=session.id, query=query)
            within = index.search_events(session.id, None, REQUESTS.within(request))
            expected = [-found[3] for found in scanned(session, search.needle)]
            assert [hit.seq for hit in within.hits] == expected
            for hit in within.hits:
                assert folded(hit.text)[hit.at :].startswith(search.needle)
    finally:
        index.close()


@QUICK
@given(
    st.lists(TEXTS, max_size=6),
    st.lists(st.integers(0, 9), max_size=3),
    TEXTS.filter(usable),
    st.lists(st.sampled_from(["current", "shadowed", "log-only"]), max_size=2),
)
def test_a_filter_means_the_same_in_a_scan_and_in_a_search(
    texts: list[str], replacements: list[int], query: str, surfaces: list[SurfaceClass]
) -> None:
    session = session_of("s", texts, replacements)
    filters = checked_event_filters([TextHas(query), SurfaceIs(surfaces)])
    passes = event_test(filters)
    nodes = session.surface.nodes
    expected = [
        event["seq"] for event in session.events if passes(event, surface_class(event, nodes))
    ]
    index = SearchIndex(":memory:", "wal")
    try:
        request = EventSearch(session_id="s", query=query, filters=filters)
        answer = index.search_events("s", live_log(session), REQUESTS.within(request))
        assert sorted(hit.seq for hit in answer.hits) == expected
    finally:
        index.close()


changes = st.lists(
    st.one_of(
        st.tuples(st.just("say"), st.integers(0, 3), TEXTS),
        st.tuples(st.just("replace"), st.integers(0, 3), st.integers(0, 9)),
        st.tuples(st.just("store"), st.integers(0, 3), st.just(0)),
        st.tuples(st.just("leave"), st.integers(0, 3), st.just(0)),
        st.tuples(st.just("recreate"), st.integers(0, 3), st.lists(TEXTS, max_size=3)),
        st.tuples(st.just("reopen"), st.just(0), st.just(0)),
    ),
    max_size=25,
)


class World:
    """Sessions that come, grow and go, and an index that follows them now and then."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.index = SearchIndex(self.path, "wal")
        self.live: dict[str, Session] = {}
        self.stored: dict[str, tuple[Session, str]] = {}
        self.clock = 0

    def apply(self, kind: str, number: int, what: Any) -> None:
        name = f"s{number}"
        session = self.live.get(name)
        if kind == "recreate":
            self.clock += 1
            self.stored.pop(name, None)
            header = {"version": 0, "id": name, "createdAt": self.clock}
            self.live[name] = Session.create(name, header=header)
            for text in what:
                say(self.live[name], text)
        elif kind == "reopen":
            self.index.close()
            self.index = SearchIndex(self.path, "wal")
        elif session is None:
            return
        elif kind == "say":
            say(session, what)
        elif kind == "replace":
            replace(session, what)
        else:
            copy = _copied(session)
            self.stored[name] = (copy, f"r{session.seq}-{session.header['createdAt']}")
            if kind == "leave":
                del self.live[name]
        self.follow()

    def follow(self) -> None:
        revisions = {name: revision for name, (_, revision) in self.stored.items()}
        for name in self.index.outdated(revisions, self.live.keys(), complete=True):
            session, revision = self.stored[name]
            self.index.read(session.header, session.events, revision)
        for session in self.live.values():
            self.index.follow(live_log(session))

    def sessions(self) -> list[Session]:
        cold = [each for name, (each, _) in self.stored.items() if name not in self.live]
        return [*self.live.values(), *cold]


def _copied(session: Session) -> Session:
    copy = Session.create(session.id, header=session.header)
    for event in session.events:
        copy.append(
            USER_MESSAGE,
            event["data"],  # type: ignore[arg-type]  # only user messages are in these logs
            surface_op=event["surfaceOp"],
            source_event_seqs=event.get("sourceEventSeqs"),
        )
    return copy


def contents(index: SearchIndex) -> list[tuple[Any, ...]]:
    rows = index._connection.execute(
        "SELECT sessions.id, seq, type, surface, size, folded, shown FROM docs"
        " JOIN sessions ON sessions.key = docs.session ORDER BY 1, 2"
    )
    return list(rows)


def hits(index: SearchIndex, query: str) -> list[tuple[str, int]]:
    records = [SessionRecord(_header(name), True, False) for name in index._known]
    search = REQUESTS.over_sessions(SessionSearch(query=query))
    answer = index.search_sessions([], records, search)
    return [(hit.session_id, hit.seq) for hit in answer.hits]


def _header(id: str) -> Any:
    return {"version": 0, "id": id, "createdAt": 0}


@QUICK
@given(changes)
def test_following_changes_ends_where_building_anew_does(
    tmp_path_factory: Any, steps: list[tuple[str, int, Any]]
) -> None:
    world = World(tmp_path_factory.mktemp("index") / "index.db")
    try:
        for kind, number, what in steps:
            world.apply(kind, number, what)
        world.follow()
        fresh = SearchIndex(":memory:", "wal")
        try:
            for session in world.sessions():
                fresh.follow(live_log(session))
            assert contents(world.index) == contents(fresh)
            for query in ("搜", "索", "搜索", "ab", "ab ", "a搜b", "\u03c3", "🦊", "%-"):
                assert hits(world.index, query) == hits(fresh, query)
            checks = world.index._connection.execute(
                "INSERT INTO grams(grams, rank) VALUES('integrity-check', 1)"
            )
            assert checks is not None
        finally:
            fresh.close()
    finally:
        world.index.close()


@QUICK
@given(TEXTS, TEXTS)
def test_folding_keeps_the_place_of_every_character(left: str, right: str) -> None:
    text = plain(left + right)
    assert len(folded(text)) == len(text)
    assert folded(folded(text)) == folded(text)


@QUICK
@given(st.text(max_size=80), st.integers(0, 80), st.integers(1, 20), st.integers(1, 40))
def test_a_snippet_keeps_its_bound(text: str, at: int, length: int, most: int) -> None:
    assert len(snippet_around(text, min(at, len(text)), length, most)) <= most


@QUICK
@given(st.text(max_size=40))
def test_no_text_is_a_cursor_by_chance(text: str) -> None:
    with pytest.raises(SessionQueryError) as error:
        REQUESTS.over_sessions(SessionSearch(query="x", cursor=text))
    assert error.value.code == "SESSION_QUERY_INVALID_CURSOR"
