"""Folding step by step equals folding anew: whatever comes, restarts, is cached or is damaged."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from projection_support import Process, counting, recording
from state_logs import answer, call, chunk, close_turn, open_turn, reply, say, whole_turn

from dsh.base.json import thaw
from dsh.kernel import Effect
from dsh.model.chunks import text_delta
from dsh.state.projections import ProjectionUnit
from dsh.state.projections.stats import SESSION_STATS
from dsh.state.session.events import SESSION_EVENT, SessionEventAppended
from dsh.state.session.session import Session
from dsh.state.storage import DomainFacility
from dsh.state.titles.facts import TITLE

UNITS: dict[str, list[ProjectionUnit[Any]]] = {
    "count": [counting(), counting(version=2, only="user/message")],
    "types": [recording(), recording(version=0)],
    "sessionStats": [SESSION_STATS],
    "title": [TITLE],
}
ELSEWHERE: dict[str, Any] = {"count": 10_001, "types": ["elsewhere"], "title": "elsewhere"}
EVENTS = st.sampled_from(["say", "open", "close", "chunk", "blank", "reply", "call", "answer"])
APPEND = st.tuples(st.just("append"), EVENTS, st.integers(1, 6))
STEPS = st.lists(
    st.one_of(
        APPEND,
        APPEND,
        st.tuples(st.just("append"), st.just("turn"), st.integers(1, 3)),
        st.tuples(st.just("append"), st.just("turn"), st.integers(1, 3)),
        st.tuples(st.just("leave"), st.just(""), st.just(0)),
        st.tuples(st.just("register"), st.sampled_from(sorted(UNITS)), st.integers(0, 1)),
        st.tuples(st.just("upgrade"), st.sampled_from(["count", "types"]), st.integers(0, 1)),
        st.tuples(st.just("withdraw"), st.sampled_from(sorted(UNITS)), st.just(0)),
        st.tuples(st.just("leave"), st.just(""), st.just(0)),
        st.tuples(st.just("restart"), st.just(""), st.just(0)),
        st.tuples(st.just("read"), st.just(""), st.just(0)),
        st.tuples(
            st.just("lie"),
            st.sampled_from(["ver", "val", "row", "seq", "identity", "gone", "rows"]),
            st.integers(0, 3),
        ),
    ),
    min_size=6,
    max_size=40,
)


def refolded(units: list[ProjectionUnit[Any]], events: Any) -> dict[str, Any]:
    """What the definition of a projection says."""
    values = {}
    for unit in units:
        state = unit.init()
        for event in events:
            state = unit.apply(state, event)
        assert unit.view is not None
        values[unit.key] = unit.view(state)
    return values


class World:
    """One session, over processes that come and go."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.chosen: dict[str, ProjectionUnit[Any]] = {}
        self.effects: dict[str, Effect] = {}
        self.told: dict[str, Any] = {}
        self.seen: dict[str, Any] = {}
        self.turn = 0
        self.session: Session | None = None

    async def run(self, steps: list[tuple[str, str, int]]) -> None:
        await self.begin()
        for key in UNITS:
            await self.register(key, 0)
        try:
            for kind, what, number in steps:
                await getattr(self, kind)(what, number)
                self.compare_live()
            await self.leave("", 0)
            await self.compare_cold()
        finally:
            await self.process.close()

    async def begin(self) -> None:
        self.process = await Process(self.folder, events=4).open()
        self.effects = {
            key: self.process.registry.register(unit) for key, unit in self.chosen.items()
        }
        self.told, self.seen = {}, {}
        self.process.registry.on_changed(self.hear)
        # Who hears of an event first may ask for what it makes.
        self.process.root.on(SESSION_EVENT, self.peek, prepend=True)

    def peek(self, appended: SessionEventAppended) -> None:
        if appended.event["seq"] % 3:
            self.process.registry.snapshot(appended.session)

    def hear(self, session: Session, key: str, view: Any, seq: int) -> None:
        assert session is self.session
        assert seq == session.seq - 1
        assert view == refolded([self.chosen[key]], session.events)[key]
        self.told[key] = view

    async def live(self) -> Session:
        if self.session is None:
            stored = self.process.home.stored("s")
            make = self.process.resume if stored else None
            self.session = await make() if make else self.process.session("s", createdAt=1)
            self.told = {}
            self.seen = refolded(list(self.chosen.values()), self.session.events)
        return self.session

    async def append(self, what: str, number: int) -> None:
        session = await self.live()
        for _ in range(number):
            self.one(session, what)

    def one(self, session: Session, what: str) -> None:
        if what == "turn":
            self.turn += 1
            whole_turn(session, self.turn)
        elif what == "open":
            self.turn += 1
            open_turn(session, self.turn)
        elif what == "close":
            close_turn(session, self.turn)
        elif what in {"chunk", "blank"}:
            chunk(session, text_delta(0, "word" if what == "chunk" else ""))
        elif what == "reply":
            reply(session, "answer")
        elif what == "call":
            call(session, f"__class__{session.seq % 3}")
        elif what == "answer":
            calls = [event for event in session.events if event["type"] == "tool/call"]
            if calls:
                answer(session, calls[-1])
        else:
            say(session, f"message {session.seq}")

    async def register(self, key: str, number: int) -> None:
        if key in self.effects:
            return
        versions = UNITS[key]
        self.chosen[key] = versions[number % len(versions)]
        self.effects[key] = self.process.registry.register(self.chosen[key])
        if self.session is not None:
            self.seen |= refolded([self.chosen[key]], self.session.events)

    async def withdraw(self, key: str, _: int) -> None:
        effect = self.effects.pop(key, None)
        if effect is not None:
            effect.dispose()
            del self.chosen[key]
            self.told.pop(key, None)

    async def upgrade(self, key: str, number: int) -> None:
        await self.withdraw(key, 0)
        await self.register(key, number)
        await self.read("", 0)

    async def read(self, _: str, __: int) -> None:
        if self.session is None:
            await self.compare_cold()

    async def leave(self, _: str, __: int) -> None:
        if self.session is not None:
            session, self.session = self.session, None
            await self.process.leave(session)
            await self.compare_cold()

    async def restart(self, _: str, __: int) -> None:
        self.session = None
        await self.process.close()
        await self.begin()

    async def lie(self, what: str, number: int) -> None:
        """Damage what is kept in ways that a crash, an upgrade or a person could."""
        await self.process.idle()
        record = thaw(self.process.kept.get("s"))
        domain = self.process.root.require(DomainFacility).get("session_projcache")
        if record is None or domain is None:
            return
        rows = record["rows"]
        key = sorted(rows)[number % len(rows)] if rows else ""
        if what == "identity":
            record["identity"]["createdAt"] = 2
        elif what == "gone":
            rows.pop(key, None)
        elif what == "rows":
            rows.clear()
        elif rows and what == "row":
            rows[key] = [1, 2]
        elif rows and isinstance(rows[key], dict):
            rows[key][what] = {"ver": 77, "val": {"a": [None]}, "seq": 10_000}[what]
            if what == "seq" and key in ELSEWHERE:
                rows[key]["val"] = ELSEWHERE[key]  # the log was longer, and is another one now
        await domain.table("sessions").put("s", record)

    def compare_live(self) -> None:
        session = self.session
        if session is None:
            return
        expected = refolded(list(self.chosen.values()), session.events)
        assert self.process.registry.snapshot(session) == {
            "asOfSeq": session.seq - 1,
            "values": expected,
        }
        for key, view in expected.items():
            assert key in self.told or view == self.seen[key]
            assert self.told.get(key, view) == view

    async def compare_cold(self) -> None:
        stored = self.process.home.stored("s")
        if not stored:
            return
        snapshot = await self.process.cache.cold_snapshot("s")
        assert snapshot == {
            "asOfSeq": len(stored) - 1,
            "values": refolded(list(self.chosen.values()), stored),
        }
        await self.process.idle()


@settings(max_examples=60, deadline=None)
@given(steps=STEPS)
def test_a_snapshot_is_always_the_fold_of_the_whole_log(steps: list[tuple[str, str, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(World(Path(folder)).run(steps))
