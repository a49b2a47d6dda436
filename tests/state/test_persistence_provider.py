from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from state_home import Home
from state_logs import call, open_turn, reply, say, whole_turn

from dsh.kernel import Context
from dsh.kernel.errors import ValidationError
from dsh.state.persistence import (
    SessionConflict,
    SessionNotFound,
    SessionPersistence,
)
from dsh.state.persistence.artifact.frames import compress
from dsh.state.persistence.artifact.layout import Encoding
from dsh.state.persistence.artifact.store import ArtifactStore
from dsh.state.persistence.coordinator import PersistenceCoordinator
from dsh.state.persistence.jsonl import Config, JsonlPersistence
from dsh.state.persistence.jsonl.backend import JsonlBackend
from dsh.state.session.events import SESSION_EVENT
from dsh.state.session.session import Session
from dsh.state.session.store import LocalSessionStore


async def test_a_session_without_events_is_not_stored(home: Home) -> None:
    session = home.store.create("s")
    await home.store.flush(session)
    await home.fiber.dispose()
    assert home.files() == []
    assert not home.folder.exists()


async def test_the_store_provides_a_durable_flush(home: Home) -> None:
    session = home.store.create("s")
    whole_turn(session)
    assert home.files() == []
    assert await home.store.flush(session) is True
    assert home.stored("s") == list(session.events)
    say(session, "more")
    await home.store.flush(session)
    assert home.stored("s") == list(session.events)


async def test_events_are_written_behind_without_a_flush(root: Context, tmp_path: Path) -> None:
    await root.plugin(LocalSessionStore)
    store = root.require(LocalSessionStore)
    loop, durable = asyncio.get_running_loop(), asyncio.Event()

    def sync(fd: int) -> None:
        os.fsync(fd)
        loop.call_soon_threadsafe(durable.set)

    files = ArtifactStore(tmp_path, sync=sync)
    coordinator = PersistenceCoordinator(JsonlBackend(files), store, window_s=0.001)
    root.on(SESSION_EVENT, coordinator.live.appended)
    session = store.create("s")
    coordinator.attach(session)
    whole_turn(session)
    await durable.wait()
    await coordinator.close()
    stored = files.load("s")
    assert stored is not None
    assert stored.events == list(session.events)


async def test_at_least_one_stored_session_is_remembered(tmp_path: Path) -> None:
    store: Any = None
    with pytest.raises(ValueError, match="at least one"):
        PersistenceCoordinator(JsonlBackend(ArtifactStore(tmp_path)), store, cache_size=0)


async def test_unloading_drains_what_is_unwritten(home: Home) -> None:
    one, two = home.store.create("one"), home.store.create("two")
    whole_turn(one)
    whole_turn(two)
    await home.fiber.dispose()
    assert home.stored("one") == list(one.events)
    assert home.stored("two") == list(two.events)


async def test_a_disposed_session_is_written_and_its_id_free_for_resume(home: Home) -> None:
    creator = await home.root.inject(["sessions"], lambda ctx: whole_turn(ctx.sessions.create("s")))
    await creator.dispose()
    session = await home.resume("s")
    assert session.first_live_seq == 10
    assert home.stored("s") == list(session.events[:10])


async def test_resume_goes_on_without_writing_the_prefix_again(home: Home, again: Home) -> None:
    session = home.store.create("s", meta={"cwd": "/w"})
    whole_turn(session)
    await home.store.flush(session)
    before = next(home.folder.rglob("session.jsonl.zstd")).read_bytes()
    await home.fiber.dispose()

    resumed = await again.resume("s")
    whole_turn(resumed, 2)
    await again.store.flush(resumed)

    assert resumed.derive_messages()[:2] == session.derive_messages()
    stored = home.stored("s")
    assert stored == list(resumed.events)
    assert [event["type"] for event in stored[10:12]] == ["session/end-seed", "turn/start"]
    assert next(home.folder.rglob("session.jsonl.zstd")).read_bytes().startswith(before)


async def test_an_interrupted_turn_is_closed_once(home: Home, again: Home) -> None:
    session = home.store.create("s")
    open_turn(session)
    reply(session, calls={"c1": "bash"})
    call(session, "c1")
    await home.fiber.dispose()
    count = session.seq

    seen = await again.persistence.inspect("s")
    assert [event["type"] for event in seen.events[count:]] == [
        "tool/result",
        "step/end",
        "turn/end",
    ]
    assert len(home.stored("s") or []) == count

    loaded = await again.persistence.load("s")
    assert list(loaded.events) == list(seen.events)
    assert home.stored("s") == list(seen.events)
    resumed = await again.resume("s")
    await again.store.flush(resumed)
    assert home.stored("s") == list(resumed.events)
    assert len(home.stored("s") or []) == count + 3 + 1


async def test_an_untouched_resume_grows_by_one_marker_and_not_again(
    home: Home, again: Home
) -> None:
    session = home.store.create("s")
    whole_turn(session)
    await home.fiber.dispose()
    for _ in range(3):
        resumer = await again.root.inject(["sessions"], lambda ctx: None)
        resumed = await again.resume("s")
        await again.store.flush(resumed)
        await resumer.dispose()
        again.store._release_all()
        assert len(home.stored("s") or []) == session.seq + 1


async def test_a_preparation_that_is_given_up_is_free_again(home: Home, again: Home) -> None:
    whole_turn(home.store.create("s"))
    await home.fiber.dispose()
    preparation = await again.persistence.prepare("s")
    with pytest.raises(SessionConflict, match="being resumed"):
        await again.persistence.prepare("s")
    with pytest.raises(SessionConflict, match="being resumed"):
        again.store.create("s")
    assert again.store.all() == []
    preparation.release()
    preparation.release()
    (await again.persistence.prepare("s")).release()


async def test_a_live_session_cannot_be_prepared(home: Home) -> None:
    session = home.store.create("s")
    whole_turn(session)
    with pytest.raises(SessionConflict, match="is live"):
        await home.persistence.prepare("s")
    inspection = await home.persistence.inspect("s")
    assert inspection.events == session.events
    assert (await home.persistence.load("s")).events == session.events
    open_turn(session, 2)
    with pytest.raises(SessionConflict, match="open turn"):
        await home.persistence.load("s")


async def test_what_is_not_stored_is_not_found(home: Home) -> None:
    for read in (home.persistence.prepare, home.persistence.load, home.persistence.inspect):
        with pytest.raises(SessionNotFound, match='session "none" not found'):
            await read("none")
    home.store.create("empty")
    with pytest.raises(SessionNotFound):
        await home.persistence.load("empty")


async def test_an_id_that_is_stored_already_is_a_collision(home: Home, again: Home) -> None:
    first = home.store.create("s", meta={"cwd": "/one"})
    whole_turn(first)
    await home.fiber.dispose()
    for cwd in ("/two", "/one"):
        other = again.store.prepare("s", meta={"cwd": cwd})
        detach = again.store.enter(other)
        again.store.announce(other)
        whole_turn(other)
        with pytest.raises(SessionConflict, match="is stored already"):
            await again.store.flush(other)
        detach()
    with pytest.raises(ExceptionGroup, match="jsonl dispose failed"):
        await again.persistence._coordinator.close()
    assert home.stored("s") == list(first.events)


@pytest.mark.parametrize("other", [True, "1", 2])
async def test_a_log_that_differs_in_its_data_alone_is_a_collision(
    home: Home, again: Home, other: Any
) -> None:
    first = home.store.create("s", seed=[_todo(1)])
    await home.store.flush(first)
    await home.fiber.dispose()
    second = again.store.prepare("s", seed=[_todo(other)])
    detach = again.store.enter(second)
    again.store.announce(second)
    with pytest.raises(SessionConflict, match="another history"):
        await again.store.flush(second)
    detach()
    with pytest.raises(ExceptionGroup, match="jsonl dispose failed"):
        await again.persistence._coordinator.close()
    assert home.stored("s") == list(first.events)


def _todo(value: Any) -> Any:
    return {"type": "todo/write", "seq": 0, "time": 1, "data": {"todos": [{"x": value}]}}


async def test_reloading_the_provider_goes_on_where_it_was(home: Home) -> None:
    session = home.store.create("s")
    whole_turn(session)
    await home.fiber.dispose()
    say(session, "while nobody kept it")
    open_turn(session, 2)
    home.fiber = await home.root.plugin(JsonlPersistence, home.config)
    await home.store.flush(session)
    assert home.stored("s") == list(session.events)
    assert session.events[-1]["type"] == "step/start"


async def test_a_seeded_session_is_stored_with_its_seed(home: Home) -> None:
    origin = Session.create("origin")
    whole_turn(origin)
    child = home.store.create("child", seed=origin.events, meta={"seedLength": origin.seq})
    await home.store.flush(child)
    assert home.stored("child") == list(child.events)


async def test_a_failed_write_is_told_at_flush_and_nothing_is_lost(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    home.folder.parent.mkdir(exist_ok=True)
    home.folder.touch()  # a file where the folder belongs
    session = home.store.create("s")
    whole_turn(session)
    for _ in range(2):
        with pytest.raises(OSError, match=r"."):
            await home.store.flush(session)
    home.folder.unlink()
    say(session, "more")
    await home.store.flush(session)
    assert home.stored("s") == list(session.events)


async def test_a_session_that_left_unwritten_is_tried_again_at_exit(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    home.folder.touch()
    session = home.store.prepare("s")
    detach = home.store.enter(session)
    home.store.announce(session)
    whole_turn(session)
    with caplog.at_level(logging.WARNING):
        detach()
        await home.persistence._coordinator._tasks.join()
    assert "tried again at exit" in caplog.text
    home.folder.unlink()
    await home.fiber.dispose()
    assert home.stored("s") == list(session.events)


async def test_what_another_writer_added_is_never_overwritten(home: Home) -> None:
    session = home.store.create("s")
    whole_turn(session)
    await home.store.flush(session)
    path = home.persistence.locate(session.header).path
    with path.open("ab") as other:  # one that knows nothing of our holds
        other.write(compress(b"\n"))
    before = path.read_bytes()
    say(session, "from the first")
    with pytest.raises(SessionConflict, match="another process"):
        await home.store.flush(session)
    assert path.read_bytes() == before
    with pytest.raises(ExceptionGroup, match="jsonl dispose failed"):
        await home.persistence._coordinator.close()


async def test_lone_surrogates_survive_the_disk(home: Home, again: Home) -> None:
    text = "\ud83d cut, nul \0, \ufffe, pair \U0001f600"
    for compression in ("zstd", "none"):
        session = home.store.create(compression)
        open_turn(session)
        say(session, text)
    await home.fiber.dispose()
    for name in ("zstd", "none"):
        events: Any = (await again.persistence.inspect(name)).events
        assert events[2]["data"]["content"][0]["text"] == text


@pytest.mark.parametrize("compression", ["zstd", "none"])
async def test_the_config_chooses_how_new_sessions_are_written(
    root: Context, tmp_path: Path, compression: str
) -> None:
    home = await Home(root, tmp_path / "s", compression=compression, packChunks=False).open()
    session = home.store.create("s", meta={"cwd": "/w"})
    whole_turn(session)
    location = home.persistence.locate(session.header)
    assert not location.path.exists()
    await home.store.flush(session)
    assert home.persistence.locate(session.header) == location
    assert location.kind == "jsonl"
    assert location.path.name == (
        "session.jsonl.zstd" if compression == "zstd" else "session.jsonl"
    )
    assert location.path.exists()


async def test_a_session_of_the_other_encoding_is_continued_as_it_is(
    home: Home, tmp_path: Path
) -> None:
    plain = Session.create("s")
    whole_turn(plain)
    ArtifactStore(home.folder, Encoding.PLAIN).create(plain.header, plain.events)
    session = await home.resume("s")
    await home.store.flush(session)
    assert home.files() == ["session.jsonl", "session.lease"]
    assert home.stored("s") == list(session.events)
    assert home.persistence.locate(session.header).path.name == "session.jsonl"


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"root": ""},
        {"root": "x", "compression": "gzip"},
        {"root": "x", "preparedSessionCacheSize": 0},
        {"root": "x", "preparedSessionCacheSize": True},
        {"root": "x", "writeBatchMaxDelayMs": 0},
        {"root": "x", "writeBatchMaxDelayMs": 2**31},
        {"root": "x", "packChunk": True},
    ],
)
async def test_a_wrong_config_is_refused(root: Context, config: dict[str, Any]) -> None:
    await root.plugin(LocalSessionStore)
    with pytest.raises(ValidationError):
        await root.plugin(JsonlPersistence, config)


def test_the_config_has_the_names_of_the_format() -> None:
    config = Config(root="x")
    assert config.model_dump(by_alias=True) == {
        "root": "x",
        "packChunks": True,
        "compression": "zstd",
        "preparedSessionCacheSize": 5,
        "writeBatchMaxDelayMs": 200,
        "leaseMs": 15_000,
    }


async def test_a_root_that_is_a_file_fails_the_plugin(root: Context, tmp_path: Path) -> None:
    file = tmp_path / "sessions"
    file.touch()
    await root.plugin(LocalSessionStore)
    with pytest.raises(NotADirectoryError, match="not a folder"):
        await root.plugin(JsonlPersistence, {"root": str(file)})


async def test_it_provides_itself_under_the_name_of_the_seam(home: Home) -> None:
    assert home.root.require(SessionPersistence) == home.persistence
