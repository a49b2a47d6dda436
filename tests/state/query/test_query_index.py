"""The index file: whose it is, who may read it, what becomes of it."""

from __future__ import annotations

import asyncio
import sqlite3
import stat
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from query_corpus import code_of, conversation, mount, store_and_leave
from state_home import Home

from dsh.kernel import Context
from dsh.state.query.service import SessionQuery, SessionQueryError, SessionSearch
from dsh.state.query.sqlite import Config, SqliteSessionQuery
from dsh.state.query.sqlite.schema import APPLICATION_ID, VERSION
from dsh.state.session.store import LocalSessionStore


async def found(query: SessionQuery, text: str = "word") -> list[str]:
    page = await query.search_sessions(SessionSearch(query=text))
    return sorted(hit.session.id for hit in page.hits)


async def remount(home: Home, **config: Any) -> SessionQuery:
    """Mount the search in a context of its own, so that it can be unmounted again."""
    held: list[Context] = []
    fiber = await home.root.inject([LocalSessionStore], held.append)
    await held[0].plugin(
        SqliteSessionQuery, {"path": ":memory:", "openAt": "first-search", **config}
    )
    home.query_fiber = fiber  # type: ignore[attr-defined]
    return home.root.require(SessionQuery)


async def unmount(home: Home) -> None:
    await home.query_fiber.dispose()  # type: ignore[attr-defined]


async def test_what_was_indexed_is_not_read_again(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "index.db")
    await store_and_leave(home, "s", ["word"])
    query = await remount(home, path=path)
    assert await found(query) == ["s"]
    await unmount(home)

    inspected: list[str] = []
    inspect = type(home.persistence).inspect

    async def noted(self: Any, id: str) -> Any:
        inspected.append(id)
        return await inspect(self, id)

    monkeypatch.setattr(type(home.persistence), "inspect", noted)
    await store_and_leave(home, "new", ["word"])
    query = await remount(home, path=path)
    assert await found(query) == ["new", "s"]
    assert inspected == ["new"]


async def test_what_was_indexed_ahead_of_storage_is_forgotten(home: Home, tmp_path: Path) -> None:
    path = str(tmp_path / "index.db")
    query = await remount(home, path=path)
    session = conversation(home.store, "live", ["word"])
    assert await found(query) == ["live"]
    await unmount(home)
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT count(*) FROM sessions WHERE revision IS NULL").fetchone()[0]
    connection.close()
    await home.store.flush(session)
    query = await remount(home, path=path)
    assert await found(query) == ["live"]


async def test_the_index_is_for_its_owner_only(home: Home, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "index.db"
    query = await remount(home, path=str(path))
    conversation(home.store, "live", ["word"])
    assert await found(query) == ["live"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    for beside in path.parent.iterdir():
        assert stat.S_IMODE(beside.stat().st_mode) == 0o600


@pytest.mark.parametrize("journal_mode", ["wal", "delete", "truncate", "persist"])
async def test_the_journal_mode_is_as_configured(
    home: Home, tmp_path: Path, journal_mode: str
) -> None:
    path = tmp_path / "index.db"
    query = await remount(home, path=str(path), journalMode=journal_mode)
    conversation(home.store, "live", ["word"])
    assert await found(query) == ["live"]
    await unmount(home)
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID
    connection.close()


@pytest.mark.parametrize(
    "tables",
    [
        "CREATE TABLE persisted_sessions(x); CREATE VIRTUAL TABLE persisted_docs USING fts5(text)",
        "CREATE TABLE sessions(x); CREATE TABLE docs(y)",
    ],
)
async def test_an_index_of_another_version_is_made_anew(
    home: Home, tmp_path: Path, tables: str
) -> None:
    path = tmp_path / "index.db"
    connection = sqlite3.connect(path)
    connection.executescript(
        f"{tables}; PRAGMA application_id={APPLICATION_ID}; PRAGMA user_version=8;"
    )
    connection.close()
    query = await remount(home, path=str(path))
    conversation(home.store, "live", ["word"])
    assert await found(query) == ["live"]
    await unmount(home)
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA user_version").fetchone()[0] == VERSION
    connection.close()


@pytest.mark.parametrize(
    "script",
    [
        "CREATE TABLE mine(x); INSERT INTO mine VALUES(1)",
        "PRAGMA application_id=7",
        f"PRAGMA application_id={APPLICATION_ID}; PRAGMA user_version=8; CREATE TABLE mine(x)",
        f"PRAGMA application_id={APPLICATION_ID}; CREATE TABLE docs(x); CREATE VIEW v AS SELECT 1",
    ],
)
async def test_the_database_of_others_is_left_alone(
    home: Home, tmp_path: Path, script: str
) -> None:
    path = tmp_path / "index.db"
    connection = sqlite3.connect(path)
    connection.executescript(script)
    connection.close()
    before = path.read_bytes()
    query = await remount(home, path=str(path))
    with pytest.raises(SessionQueryError, match="give another path") as error:
        await found(query)
    assert code_of(error) == "INVALID_CONFIG"
    assert path.read_bytes() == before
    assert await query.list_sessions() == []


async def test_what_is_no_database_is_left_alone(home: Home, tmp_path: Path) -> None:
    path = tmp_path / "index.db"
    path.write_text("a letter, and a long one" * 100)
    query = await remount(home, path=str(path))
    with pytest.raises(SessionQueryError, match="delete") as error:
        await found(query)
    assert code_of(error) == "INDEX_FAILED"
    assert path.read_text().startswith("a letter")


async def test_an_index_that_cannot_be_opened_stops_nothing_else(
    home: Home, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "folder"
    path.mkdir()
    query = await remount(home, path=str(path), openAt="startup")
    with pytest.raises(SessionQueryError):
        await found(query)
    assert await query.list_sessions() == []
    assert "not indexed" in caplog.text


async def test_a_second_process_indexes_in_memory(
    home: Home, again: Home, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = str(tmp_path / "index.db")
    await store_and_leave(home, "s", ["word"])
    first = await mount(home.root, path=path)
    second = await mount(again.root, path=path)
    assert await found(first) == ["s"]
    assert await found(second) == ["s"]
    assert "in memory" in caplog.text


async def test_a_log_that_another_process_wrote_on_is_read_again(home: Home, again: Home) -> None:
    query = await mount(again.root)
    await store_and_leave(home, "s", ["one"])
    assert await found(query, "two") == []
    events = (await home.persistence.load("s")).events
    more = {
        "type": "user/message",
        "seq": len(events),
        "time": 1,
        "data": {
            "id": "m",
            "role": "user",
            "content": [{"type": "text", "text": "two"}],
            "source": {"kind": "user"},
        },
        "surfaceOp": "append",
    }
    await home.persistence.append("s", [more])
    assert await found(query, "two") == ["s"]
    assert await found(query, "one") == ["s"]


async def test_another_session_of_the_same_id_takes_its_place(home: Home) -> None:
    query = await mount(home.root)
    await store_and_leave(home, "s", ["old word"], createdAt=1)
    assert await found(query) == ["s"]
    await home.persistence.delete("s")
    await store_and_leave(home, "s", ["new text"], createdAt=2)
    assert await found(query) == []
    assert await found(query, "new") == ["s"]


async def test_unloading_ends_an_indexing_that_is_under_way(home: Home) -> None:
    for number in range(5):
        await store_and_leave(home, f"s{number}", ["word " * 200] * 20)
    query = await remount(home)
    asked = asyncio.ensure_future(found(query))
    await asyncio.sleep(0)
    await unmount(home)
    done, _ = await asyncio.wait([asked], timeout=10)
    assert done
    if asked.exception() is not None:
        assert isinstance(asked.exception(), SessionQueryError)


@pytest.mark.parametrize(
    "wrong",
    [
        {"path": ""},
        {"path": "x", "openAt": "later"},
        {"path": "x", "defaultLimit": 101},
        {"path": "x", "maxLimit": 0},
        {"path": "x", "snippetChars": 0},
        {"path": "x", "readWindowMax": -1},
        {"path": "x", "persistedInspectConcurrency": 0},
        {"path": "x", "journalMode": "off"},
        {"path": "x", "more": 1},
        {},
    ],
)
def test_a_wrong_config_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Config.model_validate(wrong)


def test_the_config_has_the_defaults_of_the_format() -> None:
    assert Config(path="x").model_dump(by_alias=True) == {
        "path": "x",
        "openAt": "startup",
        "journalMode": "wal",
        "defaultLimit": 20,
        "maxLimit": 100,
        "snippetChars": 240,
        "readWindowMax": 50,
        "persistedInspectConcurrency": 4,
    }
