"""Rules of writing: what is durable when, in which order, and exactly once."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsh.base.json import thaw
from dsh.state.persistence.errors import SessionConflict, SessionNotFound
from dsh.state.session.errors import RefusedEvent
from dsh.state.session.events import SessionMeta
from dsh.state.session.session import Session
from dsh.testing.persistence.logs import interrupted_turn, open_turn, say, whole_turn
from dsh.testing.persistence.medium import Host, Hosts
from dsh.testing.persistence.random_logs import Act, acts

_names = count()


class WritingRules:
    """A session is stored from its first event on, as it is, and only grows."""

    async def test_a_session_without_events_is_not_stored(self, one: Host, two: Host) -> None:
        session = one.store.create("s")
        await one.flush(session)
        assert await two.persistence.survey() == []
        await one.unload()
        with pytest.raises(SessionNotFound):
            await two.persistence.inspect("s")

    async def test_what_was_flushed_is_there_for_others(self, one: Host, two: Host) -> None:
        session = one.store.create("s", meta={"cwd": "/w"})
        whole_turn(session)
        assert await one.store.flush(session) is True
        assert await two.stored("s") == list(session.events)
        say(session, "more")
        await one.flush(session)
        assert await two.stored("s") == list(session.events)

    async def test_events_are_written_behind_without_a_flush(self, hosts: Hosts) -> None:
        one, two = await hosts.open(writeBatchMaxDelayMs=1), await hosts.open()
        session = one.store.create("s")
        whole_turn(session)
        async with asyncio.timeout(10):
            while not await two.persistence.all():  # noqa: ASYNC110 - it is another process
                await asyncio.sleep(0.005)
        assert await two.stored("s") == list(session.events)

    async def test_unloading_writes_what_is_unwritten(self, one: Host, two: Host) -> None:
        sessions = [one.store.create(name) for name in ("a", "b")]
        for session in sessions:
            whole_turn(session)
        await one.unload()
        for session in sessions:
            assert await two.stored(session.id) == list(session.events)

    @settings(
        max_examples=25,
        deadline=None,
        suppress_health_check=[
            HealthCheck.function_scoped_fixture,
            HealthCheck.differing_executors,  # one rule, many stores
        ],
    )
    @given(st.lists(st.tuples(acts, st.booleans()), min_size=1, max_size=12), st.integers(0, 60))
    async def test_any_log_in_any_batches_comes_back_as_it_was(
        self, one: Host, two: Host, log: list[tuple[Act, bool]], from_seq: int
    ) -> None:
        session = one.store.create(f"s{next(_names)}", meta={"cwd": "/w"})
        for act, is_flushed in log:
            act(session)
            if is_flushed:
                await one.flush(session)
        await one.flush(session)
        events = list(session.events)
        header, suffix = await two.persistence.read_from(session.id, from_seq)
        assert header == {**session.header, "delegationDepth": 0}
        assert suffix == events[from_seq:]
        assert list((await two.persistence.inspect(session.id)).events)[: len(events)] == events
        assert await two.stored(session.id) == events

    async def test_long_runs_of_chunks_come_back_from_any_event_on(
        self, one: Host, two: Host
    ) -> None:
        session = one.store.create("s")
        whole_turn(session, words=3000)
        await one.flush(session)
        for from_seq in (0, 3, 4, 1026, 1027, 1028, 2999, 3002, session.seq):
            events = (await two.persistence.read_from("s", from_seq))[1]
            assert events == list(session.events[from_seq:])

    async def test_resume_goes_on_behind_what_is_stored(self, one: Host, two: Host) -> None:
        session = one.store.create("s", meta={"cwd": "/w"})
        whole_turn(session)
        await one.close()
        resumed = await two.resume("s")
        whole_turn(resumed, 2)
        await two.flush(resumed)
        stored = await two.stored("s")
        assert stored == list(resumed.events)
        assert stored[: session.seq] == list(session.events)
        assert resumed.derive_messages()[:2] == session.derive_messages()

    async def test_an_interrupted_turn_is_closed_once(self, one: Host, two: Host) -> None:
        session = one.store.create("s")
        interrupted_turn(session)
        await one.close()
        seen = await two.persistence.inspect("s")
        ends = ["tool/result", "step/end", "turn/end"]
        assert [event["type"] for event in seen.events[session.seq :]] == ends
        assert await two.stored("s") == list(session.events)
        for _ in range(2):
            assert list((await two.persistence.load("s")).events) == list(seen.events)
            assert await two.stored("s") == list(seen.events)

    async def test_a_reload_of_the_provider_goes_on_where_it_was(
        self, one: Host, two: Host
    ) -> None:
        session = one.store.create("s")
        whole_turn(session)
        await one.unload()
        say(session, "while nobody kept it")
        open_turn(session, 2)
        await one.mount()
        await one.flush(session)
        assert await two.stored("s") == list(session.events)
        assert session.events[-1]["type"] == "step/start"

    async def test_a_seed_is_stored_with_its_session(self, one: Host, two: Host) -> None:
        origin = Session.create("origin")
        whole_turn(origin)
        child = one.store.create("child", seed=origin.events, meta={"seedLength": origin.seq})
        await one.flush(child)
        assert await two.stored("child") == list(child.events)

    async def test_an_id_that_is_stored_already_is_a_collision(self, one: Host, two: Host) -> None:
        first = one.store.create("s", meta={"cwd": "/one"})
        whole_turn(first)
        await one.close()
        metas: list[SessionMeta] = [{"cwd": "/two"}, {}, {"cwd": "/one"}]
        for meta in metas:
            other = two.store.prepare("s", meta=meta)
            detach = two.store.enter(other)
            two.store.announce(other)
            whole_turn(other)
            with pytest.raises(SessionConflict, match="is stored already"):
                await two.flush(other)
            detach()
        assert await two.stored("s") == list(first.events)
        with pytest.raises(ExceptionGroup, match="dispose failed"):
            await two.persistence._coordinator.close()  # type: ignore[attr-defined]

    async def test_a_session_without_a_directory_is_not_that_of_one(
        self, one: Host, two: Host
    ) -> None:
        first = one.store.create("s")
        whole_turn(first)
        await one.close()
        other = two.store.prepare("s", meta={"cwd": "/w"}, seed=first.events)
        two.store.enter(other)
        two.store.announce(other)
        with pytest.raises(SessionConflict, match="is stored already, for None"):
            await two.flush(other)
        with pytest.raises(ExceptionGroup, match="dispose failed"):
            await two.persistence._coordinator.close()  # type: ignore[attr-defined]

    async def test_an_id_that_was_never_used_is_free_again(self, one: Host, two: Host) -> None:
        unused = one.store.prepare("s")
        detach = one.store.enter(unused)
        one.store.announce(unused)
        detach()
        for host in (one, two):
            session = host.store.create("s" if host is one else "t")
            whole_turn(session)
            await host.flush(session)
            assert await two.stored(session.id) == list(session.events)

    async def test_unloading_has_nothing_to_complain_of(
        self, one: Host, two: Host, caplog: pytest.LogCaptureFixture
    ) -> None:
        whole_turn(one.store.create("s"))
        await one.unload()
        await two.persistence.inspect("s")
        await two.unload()
        assert [record.getMessage() for record in caplog.records] == []

    async def test_unloading_waits_for_detached_appends(self, one: Host, two: Host) -> None:
        origin = Session.create("s")
        whole_turn(origin)
        await one.persistence.create(origin.header)
        events = [thaw(event) for event in origin.events]
        appending = asyncio.ensure_future(one.persistence.append("s", events))
        await asyncio.sleep(0)
        await one.unload()
        await appending
        assert await two.stored("s") == list(origin.events)

    async def test_detached_appends_are_durable_and_must_follow_on(
        self, one: Host, two: Host
    ) -> None:
        origin = Session.create("s")
        whole_turn(origin)
        events = [thaw(event) for event in origin.events]
        keep = one.persistence
        with pytest.raises(SessionNotFound):
            await keep.append("s", events[:1])
        await keep.create(origin.header)
        assert await two.persistence.survey() == []
        with pytest.raises(SessionConflict, match="reserved"):
            await keep.create(origin.header)
        await keep.append("s", [])
        await keep.append("s", events[:4])
        for wrong in (events[:2], events[5:], [events[4], events[6]]):
            with pytest.raises(SessionConflict, match="expects event"):
                await keep.append("s", wrong)
        await keep.append("s", events[4:])
        assert await two.stored("s") == list(origin.events)
        with pytest.raises(SessionConflict, match="stored already"):
            await keep.create(origin.header)
        with pytest.raises(RefusedEvent):
            await keep.append("s", [{"type": "x", "seq": 1}])

    async def test_what_another_writer_added_is_not_overwritten(self, one: Host, two: Host) -> None:
        origin = Session.create("s")
        whole_turn(origin)
        whole_turn(origin, 2)
        events = [thaw(event) for event in origin.events]
        await one.persistence.create(origin.header)
        await one.persistence.append("s", events[:10])
        await two.persistence.append("s", events[10:])
        with pytest.raises(SessionConflict, match="another process"):
            await one.persistence.append("s", events[10:])
        assert await two.stored("s") == list(origin.events)

    async def test_a_cancelled_flush_doubles_and_loses_nothing(self, one: Host, two: Host) -> None:
        session = one.store.create("s")
        for turn in range(1, 20):
            whole_turn(session, turn)
            flush = asyncio.ensure_future(one.flush(session))
            for _ in range(turn % 7):
                await asyncio.sleep(0)
            flush.cancel()
            await asyncio.wait({flush})
        await one.flush(session)
        assert await two.stored("s") == list(session.events)

    @pytest.mark.parametrize("steps", range(0, 10, 2))
    async def test_unloading_during_a_flush_loses_nothing(
        self, one: Host, two: Host, steps: int
    ) -> None:
        session = one.store.create("s")
        whole_turn(session)
        flush = asyncio.ensure_future(one.flush(session))
        for _ in range(steps):
            await asyncio.sleep(0)
        whole_turn(session, 2)
        await one.unload()
        await flush
        assert await two.stored("s") == list(session.events)

    async def test_many_sessions_are_written_beside_each_other(self, one: Host, two: Host) -> None:
        sessions = [one.store.create(f"s{number}") for number in range(20)]
        for turn in range(1, 4):
            for session in sessions:
                whole_turn(session, turn)
            await asyncio.gather(*(one.flush(session) for session in sessions))
        for session in sessions:
            assert await two.stored(session.id) == list(session.events)

    async def test_any_id_and_any_directory_has_its_session(self, one: Host, two: Host) -> None:
        ids = ["../x", "/abs", "nul\0", "\ud800", "\ud801", ".", "..", "~", "a/b", "s'; --", "%s"]
        cwds = ["/", "/a b/\u4e2d~", "/x\udcff", "/line\nbreak", "C:\\work", "/nul\0"]
        for number, name in enumerate(ids):
            session = one.store.create(name, meta={"cwd": cwds[number % len(cwds)]})
            say(session, name)
            await one.flush(session)
        for number, name in enumerate(ids):
            inspection = await two.persistence.inspect(name)
            assert inspection.meta["id"] == name
            assert inspection.meta["cwd"] == cwds[number % len(cwds)]
            assert inspection.events[0] == one.store.get(name).events[0]  # type: ignore[union-attr]
        for cwd in cwds:
            newest = await two.persistence.newest(cwd)
            assert newest is not None
            assert newest["cwd"] == cwd
