"""Rules of reading: what others see, and what is never served."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dsh.base.json import thaw
from dsh.state.persistence.errors import (
    SessionConflict,
    SessionFormatUnsupportedError,
    SessionNotFound,
)
from dsh.state.session.events import SessionMeta
from dsh.state.session.session import Session
from dsh.testing.persistence.logs import interrupted_turn, open_turn, say, whole_turn
from dsh.testing.persistence.medium import Host, Hosts


async def store_event(host: Host, type: str, **more: Any) -> None:
    """Store a session ``s`` with one event of a type."""
    origin = Session.create("s")
    await host.persistence.create(origin.header)
    event = {"type": type, "seq": 0, "time": 1, "data": {}, **more}
    await host.persistence.append("s", [event])


class ReadingRules:
    """Reading changes nothing, and shows what is stored now."""

    async def test_what_is_not_stored_is_not_found(self, one: Host) -> None:
        keep = one.persistence
        for read in (keep.prepare, keep.load, keep.inspect, keep.delete):
            with pytest.raises(SessionNotFound, match='session "none" not found'):
                await read("none")
        with pytest.raises(SessionNotFound):
            await keep.read_from("none", 0)
        one.store.create("empty")
        with pytest.raises(SessionNotFound):
            await keep.load("empty")
        assert (await keep.survey(), await keep.all(), await keep.list_snapshots()) == ([], [], [])

    async def test_a_suffix_is_what_is_stored_from_an_event_on(self, one: Host, two: Host) -> None:
        session = one.store.create("s")
        interrupted_turn(session)
        await one.close()
        for from_seq in (0, 1, session.seq - 1, session.seq, 99):
            header, events = await two.persistence.read_from("s", from_seq)
            assert header["id"] == "s"
            assert events == list(session.events[from_seq:])
        for bad in (-1, 1.0, True, "1"):
            with pytest.raises(TypeError):
                await two.persistence.read_from("s", bad)  # type: ignore[arg-type]

    async def test_listing_is_newest_first(self, one: Host, two: Host) -> None:
        for number in range(5):
            session = one.store.create(f"s{number}", meta={"createdAt": number})
            whole_turn(session)
            await one.flush(session)
        headers = await two.persistence.all()
        assert [header["id"] for header in headers] == ["s4", "s3", "s2", "s1", "s0"]
        survey = await two.persistence.survey()
        assert {item.header["id"] for item in survey if item.header} == {f"s{n}" for n in range(5)}
        assert {item.damage for item in survey} == {None}

    async def test_the_newest_session_of_a_directory_is_the_one_written_last(
        self, one: Host, two: Host
    ) -> None:
        sessions: dict[str, SessionMeta] = {
            "old": {"cwd": "/w", "createdAt": 5},
            "new": {"cwd": "/w", "createdAt": 1},
            "child": {"cwd": "/w", "createdAt": 9, "origin": "subagent"},
            "other": {"cwd": "/v", "createdAt": 9},
        }
        for name, meta in sessions.items():
            session = one.store.create(name, meta=meta)
            whole_turn(session)
            await one.flush(session)
            await asyncio.sleep(0.005)  # so that the clock moves on
        newest = await two.persistence.newest("/w")
        assert newest is not None
        assert newest["id"] == "new"
        assert await two.persistence.newest("/none") is None

    async def test_a_revision_changes_with_the_log_alone(self, one: Host, two: Host) -> None:
        session, other = one.store.create("s"), one.store.create("other")
        whole_turn(session)
        whole_turn(other)
        await one.flush(session, other)
        before = {item.header["id"]: item for item in await two.persistence.list_snapshots()}
        say(session, "x")
        await one.flush(session)
        after = {item.header["id"]: item for item in await two.persistence.list_snapshots()}
        assert before["other"] == after["other"]
        assert before["s"].revision != after["s"].revision
        assert before["s"].revision != before["other"].revision

    async def test_inspecting_changes_nothing_and_repairing_changes_the_revision(
        self, one: Host, two: Host
    ) -> None:
        session = one.store.create("s")
        interrupted_turn(session)
        await one.close()
        before = await two.persistence.list_snapshots()
        await two.persistence.inspect("s")
        assert await two.persistence.list_snapshots() == before
        await two.persistence.load("s")
        repaired = await two.persistence.list_snapshots()
        assert repaired[0].revision != before[0].revision
        await two.persistence.load("s")
        assert await two.persistence.list_snapshots() == repaired

    async def test_reads_at_the_same_time_agree(self, one: Host, two: Host) -> None:
        whole_turn(one.store.create("s"))
        await one.close()
        seen = await asyncio.gather(*(two.persistence.inspect("s") for _ in range(4)))
        assert all(each.events == seen[0].events for each in seen)

    async def test_a_stale_read_is_never_served(self, one: Host, two: Host) -> None:
        session = one.store.create("s")
        whole_turn(session)
        await one.flush(session)
        assert len((await two.persistence.inspect("s")).events) == 10
        say(session, "more")
        await one.flush(session)
        assert len((await two.persistence.inspect("s")).events) == 11
        assert await two.stored("s") == list(session.events)

    async def test_a_live_session_is_read_as_it_is(self, one: Host) -> None:
        session = one.store.create("s")
        whole_turn(session)
        assert (await one.persistence.inspect("s")).events == session.events
        assert (await one.persistence.load("s")).events == session.events
        open_turn(session, 2)
        assert (await one.persistence.inspect("s")).events == session.events
        with pytest.raises(SessionConflict, match="open turn"):
            await one.persistence.load("s")
        with pytest.raises(SessionConflict, match="is live"):
            await one.persistence.prepare("s")

    @pytest.mark.parametrize("steps", range(0, 12, 2))
    async def test_a_session_that_becomes_live_while_it_is_inspected_is_shown_as_it_is(
        self, one: Host, two: Host, steps: int
    ) -> None:
        stored = one.store.create("s")
        interrupted_turn(stored)
        await one.close()
        before = await two.stored("s")
        inspecting = asyncio.ensure_future(two.persistence.inspect("s"))
        for _ in range(steps):
            await asyncio.sleep(0)
        came_first = inspecting.done()
        live = two.store.create("s", seed=before)
        seen = await inspecting
        assert came_first or seen.events == live.events
        say(live, "goes on")
        await two.flush(live)
        assert await two.stored("s") == list(live.events)

    @pytest.mark.parametrize("steps", range(0, 12, 2))
    async def test_a_session_that_becomes_live_while_it_is_loaded_wins_or_is_refused(
        self, one: Host, two: Host, steps: int
    ) -> None:
        stored = one.store.create("s")
        whole_turn(stored)
        await one.close()
        before = await two.stored("s")
        loading = asyncio.ensure_future(two.persistence.load("s"))
        for _ in range(steps):
            await asyncio.sleep(0)
        try:
            live = two.store.create("s", seed=before)
        except SessionConflict:
            assert list((await loading).events) == before
            live = two.store.create("s", seed=before)
        else:
            (outcome,) = await asyncio.gather(loading, return_exceptions=True)
            if isinstance(outcome, BaseException):
                assert isinstance(outcome, SessionConflict)
            else:
                assert list(outcome.events)[: len(before)] == before
        say(live, "goes on")
        await two.flush(live)
        assert await two.stored("s") == list(live.events)

    async def test_a_type_that_must_be_understood_is_refused_by_name(self, one: Host) -> None:
        await store_event(one, "acme/required")
        for read in (one.persistence.inspect, one.persistence.prepare, one.persistence.load):
            with pytest.raises(SessionFormatUnsupportedError, match="acme/required"):
                await read("s")

    async def test_a_type_that_may_be_skipped_is_kept(self, one: Host) -> None:
        await store_event(one, "acme/note", ignorable=True)
        (event,) = (await one.persistence.inspect("s")).events
        assert thaw(event) == {
            "type": "acme/note",
            "seq": 0,
            "time": 1,
            "data": {},
            "ignorable": True,
        }

    async def test_a_reader_beside_a_writer_sees_whole_batches(self, hosts: Hosts) -> None:
        one, two = await hosts.pair()
        session = one.store.create("s")
        whole_turn(session)
        await one.flush(session)

        async def write() -> None:
            for turn in range(2, 30):
                whole_turn(session, turn)
                await one.flush(session)

        writing = asyncio.ensure_future(write())
        while not writing.done():
            events = await two.stored("s")
            assert events == list(session.events[: len(events)])
            assert len(events) % 10 == 0
        await writing
        assert await two.stored("s") == list(session.events)
