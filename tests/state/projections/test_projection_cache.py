"""The cache: when states are kept, and that nothing wrong ever comes out of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from projection_support import Process, counting, recording
from state_logs import say, whole_turn

from dsh.base.json import thaw
from dsh.state.persistence.errors import SessionNotFound
from dsh.state.session.events import SESSION_FLUSH, SessionHeader
from dsh.state.session.session import Session
from dsh.state.storage import DOMAIN_CHANGED, DomainFacility

Start = Callable[..., Awaitable[Process]]


async def kept_session(process: Process, id: str = "s", turns: int = 1) -> Session:
    """A session that is stored, kept in the cache, and not live any more."""
    session = process.session(id)
    for turn in range(1, turns + 1):
        whole_turn(session, turn)
    await process.idle()
    await process.leave(session)
    return session


async def rewrite(process: Process, change: Callable[[Any], None], id: str = "s") -> None:
    """Change what is kept of a session behind the cache's back."""
    table = process.root.require(DomainFacility).get("session_projcache")
    assert table is not None
    record = thaw(process.kept[id])
    change(record)
    await table.table("sessions").put(id, record)


async def test_states_are_kept_at_the_end_of_a_turn(process: Process) -> None:
    process.registry.register(counting())
    session = process.session("s", createdAt=5, cwd="/there")
    whole_turn(session)
    await process.idle()
    assert process.kept == {
        "s": {
            "identity": {"createdAt": 5, "cwd": "/there"},
            "rows": {"count": {"ver": 1, "seq": session.seq - 1, "val": session.seq}},
        }
    }


async def test_states_are_kept_after_so_many_events(start: Start) -> None:
    process = await start(events=3)
    process.registry.register(counting())
    session = process.session()
    say(session, "one")
    say(session, "two")
    await process.idle()
    assert process.kept == {}
    say(session, "three")
    await process.idle()
    assert process.kept["s"]["rows"]["count"]["val"] == 3


async def test_states_are_kept_after_so_much_time(start: Start) -> None:
    process = await start(interval_ms=20)
    process.registry.register(counting())
    changed = asyncio.Event()
    process.root.on(DOMAIN_CHANGED, lambda _: changed.set())
    say(process.session(), "one")
    await changed.wait()
    assert process.kept["s"]["rows"]["count"]["val"] == 1


async def test_states_are_kept_when_a_session_leaves(process: Process) -> None:
    process.registry.register(counting())
    session = process.session()
    say(session, "one")
    await process.leave(session)
    assert process.kept["s"]["rows"]["count"]["val"] == 1


async def test_states_land_after_the_events_that_are_in_them(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    process.registry.register(counting())
    stored: list[int] = []

    def look(_: object) -> None:
        log = process.home.stored("s")
        stored.append(0 if log is None else len(log))

    process.root.on(DOMAIN_CHANGED, look)
    session = process.session()
    say(session, "one")
    await process.cache.write(session)
    say(session, "two")
    await process.leave(session)
    assert stored == [1, 2]


async def test_states_of_a_log_that_could_not_be_stored_are_not_kept(
    process: Process, caplog: pytest.LogCaptureFixture
) -> None:
    process.registry.register(counting())

    async def fail(_: object) -> None:
        raise OSError("disk full")

    process.root.on(SESSION_FLUSH, fail)
    session = process.session()
    whole_turn(session)
    await process.idle()
    assert process.kept == {}
    assert "disk full" in caplog.text
    with pytest.raises(OSError, match="disk full"):
        await process.cache.write(session)


async def test_a_failed_write_only_warns_and_heals(
    process: Process, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    process.registry.register(counting())
    (tmp_path / "storages").write_text("in the way")
    session = process.session()
    whole_turn(session)
    await process.idle()
    assert "session 's' are not kept" in caplog.text
    assert process.kept == {}
    (tmp_path / "storages").unlink()
    whole_turn(session, 2)
    await process.idle()
    assert process.kept["s"]["rows"]["count"]["val"] == session.seq


async def test_a_cached_snapshot_needs_no_reading(process: Process, tmp_path: Path) -> None:
    process.registry.register(counting())
    process.registry.register(recording())
    session = await kept_session(process)
    assert process.cache.cached_snapshot(session.header) == process.registry.snapshot(session)


async def test_a_cached_snapshot_is_as_old_as_its_oldest_view(process: Process) -> None:
    process.registry.register(counting())
    process.registry.register(recording())
    session = await kept_session(process)
    await rewrite(process, lambda record: record["rows"]["types"].update(seq=2))
    snapshot = process.cache.cached_snapshot(session.header)
    assert snapshot is not None
    assert snapshot["asOfSeq"] == 2
    assert snapshot["values"].keys() == {"count", "types"}


async def test_a_session_that_is_not_kept_has_no_cached_snapshot(process: Process) -> None:
    process.registry.register(counting())
    header: SessionHeader = {"version": 0, "id": "other", "createdAt": 1}
    assert process.cache.cached_snapshot(header) is None


@pytest.mark.parametrize("other", [{"createdAt": 99}, {"cwd": "/elsewhere"}])
async def test_another_session_of_the_same_id_gets_nothing_of_it(
    other: dict[str, Any], process: Process
) -> None:
    process.registry.register(counting())
    session = await kept_session(process)
    header: Any = {**session.header, **other}
    assert process.cache.cached_snapshot(header) is None


async def test_a_stored_session_is_folded_from_what_is_kept(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    process.registry.register(counting())
    session = await kept_session(process, turns=3)
    asked: list[int] = []
    persistence = process.home.persistence
    read = type(persistence).read_from

    async def noted(self: Any, id: str, seq: int) -> Any:
        asked.append(seq)
        return await read(self, id, seq)

    monkeypatch.setattr(type(persistence), "read_from", noted)
    snapshot = await process.cache.cold_snapshot("s")
    assert snapshot == process.registry.snapshot(session)
    assert asked == [session.seq - 1]


async def test_a_session_that_is_not_kept_is_folded_and_kept(process: Process) -> None:
    session = process.session()
    whole_turn(session)
    await process.leave(session)
    process.registry.register(counting())
    assert (await process.cache.cold_snapshot("s"))["values"] == {"count": session.seq}
    await process.idle()
    assert process.kept["s"]["rows"]["count"]["val"] == session.seq


async def test_a_live_session_is_its_own_truth(process: Process) -> None:
    process.registry.register(counting())
    session = process.session()
    whole_turn(session)
    await process.idle()
    say(session, "not stored yet")
    assert await process.cache.cold_snapshot("s") == process.registry.snapshot(session)


@pytest.mark.parametrize("with_units", [True, False])
async def test_a_session_that_is_nowhere_is_not_found(with_units: bool, process: Process) -> None:
    if with_units:
        process.registry.register(counting())
    with pytest.raises(SessionNotFound):
        await process.cache.cold_snapshot("nowhere")


async def test_without_units_a_stored_session_has_an_empty_snapshot(process: Process) -> None:
    session = await kept_session(process)
    snapshot = await process.cache.cold_snapshot("s")
    assert snapshot == {"asOfSeq": session.seq - 1, "values": {}}


LIES: dict[str, Callable[[Any], None]] = {
    "another session": lambda record: record["identity"].update(createdAt=1),
    "another folder": lambda record: record["identity"].update(cwd="/elsewhere"),
    "a shrunk log": lambda record: record["rows"]["count"].update(seq=500, val=501),
    "another version": lambda record: record["rows"]["count"].update(ver=9, val=99),
    "a malformed state": lambda record: record["rows"]["count"].update(val={"no": "number"}),
    "a malformed row": lambda record: record["rows"].update(count=3),
    "a negative seq": lambda record: record["rows"]["count"].update(seq=-7),
    "no rows": lambda record: record["rows"].clear(),
}


@pytest.mark.parametrize("lie", LIES)
async def test_what_does_not_fit_is_folded_anew(lie: str, process: Process) -> None:
    process.registry.register(counting())
    process.registry.register(recording())
    session = await kept_session(process)
    await rewrite(process, LIES[lie])
    assert await process.cache.cold_snapshot("s") == process.registry.snapshot(session)
    await process.idle()
    rows = process.kept["s"]["rows"]
    assert rows == process.registry.checkpoint(session)


async def test_a_session_that_was_made_anew_gets_nothing_of_the_old_one(
    process: Process, tmp_path: Path
) -> None:
    process.registry.register(counting())
    await kept_session(process, turns=4)
    await process.home.persistence.delete("s")
    session = process.session("s", createdAt=77)
    say(session, "new")
    await process.home.store.flush(session)
    header = session.header
    assert process.cache.cached_snapshot(header) is None
    await process.leave(session)
    assert (await process.cache.cold_snapshot("s"))["values"] == {"count": 1}


async def test_the_cache_stays_over_a_restart(start: Start) -> None:
    first = await start()
    first.registry.register(counting())
    session = await kept_session(first)
    await first.close()
    second = await start()
    second.registry.register(counting())
    assert second.cache.cached_snapshot(session.header) == {
        "asOfSeq": session.seq - 1,
        "values": {"count": session.seq},
    }


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"unit":{"name":"session_projcache","version":2},"tables":{}}',
        '{"unit":{"name":"session_projcache","version":3},"tables":{"sessions":{"s":4}}}',
        '{"unit":{"name":"session_projcache","version":3},"tables":{"sessions":[]}}',
    ],
)
async def test_a_damaged_cache_never_prevents_a_start(
    text: str, start: Start, tmp_path: Path
) -> None:
    (tmp_path / "storages").mkdir()
    (tmp_path / "storages" / "session_projcache.json").write_text(text)
    process = await start()
    process.registry.register(counting())
    session = await kept_session(process)
    assert (await process.cache.cold_snapshot("s"))["values"] == {"count": session.seq}
    written = json.loads((tmp_path / "storages" / "session_projcache.json").read_text())
    assert written["unit"]["version"] == 3


async def test_a_write_that_comes_early_takes_its_timer_along(process: Process) -> None:
    process.registry.register(counting())
    held = len(process.cache_fiber.effects())
    session = process.session()
    say(session, "one")
    assert len(process.cache_fiber.effects()) == held + 1
    whole_turn(session)
    await process.idle()
    assert len(process.cache_fiber.effects()) == held


async def test_unloading_drops_timers_and_finishes_writes(start: Start) -> None:
    process = await start(interval_ms=10_000_000)
    process.registry.register(counting())
    session = process.session()
    whole_turn(session)
    say(session, "a timer runs")
    await process.cache_fiber.dispose()
    assert (process.folder / "storages" / "session_projcache.json").exists()
