from __future__ import annotations

import asyncio
import os

import pytest
from state_home import Home
from state_logs import open_turn, say, whole_turn

from dsh.base.json import thaw
from dsh.state.persistence import (
    SessionConflict,
    SessionFormatUnsupportedError,
    SessionNotFound,
    SessionPersistenceCorruptionError,
)
from dsh.state.persistence.artifact.layout import Encoding
from dsh.state.persistence.artifact.store import ArtifactStore
from dsh.state.session.errors import RefusedEvent
from dsh.state.session.events import TURN_START, SessionMeta, TurnStartData
from dsh.state.session.session import Session


async def test_listing_is_newest_first_and_leaves_the_bad_ones_out(home: Home) -> None:
    for number in range(5):
        header = {"version": 0, "id": f"s{number}", "createdAt": number, "cwd": "/w"}
        session = Session.create(f"s{number}", header=header)
        whole_turn(session)
        ArtifactStore(home.folder).create(session.header, session.events)
    next(home.folder.rglob("s3/session.jsonl.zstd")).write_bytes(b"junk")
    headers = await home.persistence.all()
    assert [header["id"] for header in headers] == ["s4", "s2", "s1", "s0"]
    survey = await home.persistence.survey()
    assert len(survey) == 5
    assert [item.damage is None for item in survey].count(False) == 1
    with pytest.raises(SessionPersistenceCorruptionError):
        await home.persistence.inspect("s3")


async def test_the_newest_session_of_a_directory_is_the_one_written_last(home: Home) -> None:
    sessions: dict[str, SessionMeta] = {
        "old": {"cwd": "/w", "createdAt": 5},
        "new": {"cwd": "/w", "createdAt": 1},
        "child": {"cwd": "/w", "createdAt": 9, "origin": "subagent"},
        "other": {"cwd": "/v", "createdAt": 9},
    }
    for name, meta in sessions.items():
        session = home.store.create(name, meta=meta)
        whole_turn(session)
        await home.store.flush(session)
    for number, name in enumerate(sessions):
        path = next(home.folder.rglob(f"{name}/session.jsonl.zstd"))
        os.utime(path, ns=(number * 10**9, number * 10**9))
    newest = await home.persistence.newest("/w")
    assert newest is not None
    assert newest["id"] == "new"
    assert await home.persistence.newest("/none") is None


async def test_a_suffix_is_read_without_closers(home: Home, again: Home) -> None:
    session = home.store.create("s")
    open_turn(session)
    say(session, "x")
    await home.fiber.dispose()
    header, events = await again.persistence.read_from("s", 1)
    assert header["id"] == "s"
    assert events == list(session.events[1:])
    assert (await again.persistence.read_from("s", 3))[1] == []
    assert (await again.persistence.read_from("s", 99))[1] == []
    for bad in (-1, 1.0, True, "1"):
        with pytest.raises(TypeError):
            await again.persistence.read_from("s", bad)  # type: ignore[arg-type]


async def test_a_revision_changes_with_the_log_alone(home: Home) -> None:
    session = home.store.create("s")
    whole_turn(session)
    await home.store.flush(session)
    (first,) = await home.persistence.list_snapshots()
    assert (await home.persistence.list_snapshots()) == [first]
    say(session, "x")
    await home.store.flush(session)
    (second,) = await home.persistence.list_snapshots()
    assert second.revision != first.revision


async def test_detached_appends_are_durable_and_must_follow_on(home: Home) -> None:
    origin = Session.create("s")
    whole_turn(origin)
    events = [thaw(event) for event in origin.events]
    persistence = home.persistence
    with pytest.raises(SessionNotFound):
        await persistence.append("s", events[:1])
    await persistence.create(origin.header)
    assert home.files() == []
    with pytest.raises(SessionConflict, match="reserved"):
        await persistence.create(origin.header)
    await persistence.append("s", [])
    await persistence.append("s", events[:4])
    for wrong in (events[:2], events[5:], [events[4], events[6]]):
        with pytest.raises(SessionConflict, match="expects event"):
            await persistence.append("s", wrong)
    await persistence.append("s", events[4:])
    assert home.stored("s") == list(origin.events)
    with pytest.raises(SessionConflict, match="stored already"):
        await persistence.create({**origin.header, "id": "s"})
    with pytest.raises(RefusedEvent):
        await persistence.append("s", [{"type": "x", "seq": 1}])


async def test_a_detached_append_closes_what_was_open_first(home: Home, again: Home) -> None:
    session = home.store.create("s")
    open_turn(session)
    await home.fiber.dispose()
    follow = {"type": "turn/start", "seq": 4, "time": 1, "data": {"turn": 2}}
    await again.persistence.append("s", [follow])
    stored = home.stored("s") or []
    assert [event["type"] for event in stored[2:]] == ["step/end", "turn/end", "turn/start"]


async def test_reads_at_the_same_time_share_the_log(home: Home, again: Home) -> None:
    whole_turn(home.store.create("s"))
    await home.fiber.dispose()
    inspections = await asyncio.gather(*(again.persistence.inspect("s") for _ in range(4)))
    assert all(one.events == inspections[0].events for one in inspections)
    assert inspections[0].events[0] is inspections[3].events[0]


async def test_a_stale_read_is_never_served(home: Home, again: Home) -> None:
    session = home.store.create("s")
    whole_turn(session)
    await home.store.flush(session)
    assert len((await again.persistence.inspect("s")).events) == 10
    say(session, "more")
    await home.store.flush(session)
    assert len((await again.persistence.inspect("s")).events) == 11


async def test_a_cancelled_prepare_leaves_the_session_free(home: Home, again: Home) -> None:
    whole_turn(home.store.create("s"))
    await home.fiber.dispose()
    waiting = asyncio.create_task(again.persistence.prepare("s"))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await again.persistence._coordinator._tasks.join()
    await asyncio.sleep(0)
    (await again.persistence.prepare("s")).release()


async def test_the_type_of_an_unloaded_plugin_is_refused_by_name(home: Home) -> None:
    origin = Session.create("s")
    origin.append(TURN_START, TurnStartData(turn=1))
    path = ArtifactStore(home.folder, Encoding.PLAIN).create(origin.header, origin.events).path
    with path.open("ab") as file:
        file.write(b'{"type":"acme/required","seq":1,"time":1,"data":{}}\n')
    with pytest.raises(SessionFormatUnsupportedError, match="acme/required"):
        await home.persistence.prepare("s")


async def test_many_sessions_are_written_beside_each_other(home: Home) -> None:
    sessions = [home.store.create(f"s{number}") for number in range(20)]
    for session in sessions:
        whole_turn(session)
    await asyncio.gather(*map(home.store.flush, sessions))
    assert all(home.stored(session.id) == list(session.events) for session in sessions)
