"""The database file: when it is refused, how it is opened, and what it says when it fails."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from state_logs import say, whole_turn

from dsh.kernel import Context
from dsh.kernel.errors import ValidationError
from dsh.state.persistence.background import Tasks, Workers
from dsh.state.persistence.errors import PersistenceError, SessionPersistenceCorruptionError
from dsh.state.persistence.sqlite import Config, SqlitePersistence
from dsh.state.persistence.sqlite.commit import GroupCommit
from dsh.state.persistence.sqlite.database import Database, Work
from dsh.state.persistence.sqlite.errors import DatabaseFailed, UnusableDatabase
from dsh.state.persistence.sqlite.schema import Options, connect
from dsh.state.persistence.sqlite.store import SqliteStore
from dsh.state.session.session import Session
from dsh.state.session.store import LocalSessionStore
from dsh.testing.persistence.medium import Host, Medium

PLUGIN = "dsh.state.persistence.sqlite:SqlitePersistence"

# as another program of the same format would make it: other words, the same tables
FOREIGN_TABLES = """
create table persistence_state (
  singleton integer primary key check (singleton=1), store_id text not null) strict;
create table "sessions" (
  id text primary key, version integer not null, created_at integer not null, cwd text,
  parent_session text, seed_length integer, origin text, delegation_depth integer,
  agent_preset text, incarnation text not null, revision integer not null) strict;
create table "events" (
  session_id text not null references sessions (id) on delete cascade, seq integer not null,
  type text not null, time integer not null, data any not null, source_event_seqs any,
  surface_op text, ignorable integer check (ignorable is null or ignorable in (0,1)),
  primary key (session_id, seq)) strict;
insert into persistence_state values (1, 'store-1');
insert into sessions values ('s', 0, 5, '/w', null, null, null, null, null, 'inc', 3);
insert into events values
  ('s', 0, 'turn/start', 6, '{"turn":1}', null, null, null),
  ('s', 1, 'text-chunks', 7,
    '{"turn":1,"step":1,"index":0,"dt":[1,2],"texts":["a","b","c"]}', null, null, 0),
  ('s', 4, 'user/message', 9, '{"id":"m","role":"user","content":[{"type":"text","text":"hi"}],'
    || '"source":{"kind":"user"}}', null, '"append"', null),
  ('s', 5, 'turn/end', 9, '{"turn":1,"reason":{"kind":"completed"}}', null, null, null);
pragma application_id = 0x44534850;
pragma user_version = 17;
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store" / "sessions.db"


@pytest.fixture
async def other(path: Path) -> AsyncIterator[Host]:
    """What another process has."""
    host = await Host(Medium(PLUGIN, {"path": str(path)})).open()
    yield host
    await host.close()


@pytest.fixture
async def host(path: Path) -> AsyncIterator[Host]:
    host = await Host(Medium(PLUGIN, {"path": str(path), "busyTimeoutMs": 50})).open()
    yield host
    await host.close()


def make(path: Path, script: str) -> bytes:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    db = sqlite3.connect(path)
    db.executescript(script)
    db.close()
    path.chmod(0o600)
    return path.read_bytes()


def content(path: Path) -> bytes:
    return path.read_bytes()


async def refused(root: Context, path: Path, match: str) -> None:
    await root.plugin(LocalSessionStore)
    with pytest.raises(UnusableDatabase, match=match):
        await root.plugin(SqlitePersistence, {"path": str(path)})


async def test_nothing_is_made_before_something_is_stored(host: Host, path: Path) -> None:
    assert await host.persistence.all() == []
    assert await host.persistence.newest("/w") is None
    await host.flush(host.store.create("s"))
    assert not path.parent.exists()


async def test_the_files_are_private(host: Host, path: Path) -> None:
    session = host.store.create("s")
    whole_turn(session)
    await host.flush(session)
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert {"sessions.db", "sessions.db-wal", "sessions.db.leases"} <= modes.keys()
    assert set(modes.values()) == {0o600}
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_database_is_what_the_format_says(path: Path) -> None:
    connect(Options(path, "wal", 1)).close()
    db = sqlite3.connect(path)
    pragmas = ("application_id", "user_version", "journal_mode")
    assert [db.execute(f"PRAGMA {name}").fetchone()[0] for name in pragmas] == [
        0x44534850,
        17,
        "wal",
    ]
    tables = db.execute("SELECT name, strict FROM pragma_table_list WHERE name NOT LIKE 'sqlite%'")
    assert sorted(tables) == [("events", 1), ("persistence_state", 1), ("sessions", 1)]
    db.close()


def test_every_commit_waits_for_the_disk(path: Path) -> None:
    db = connect(Options(path, "wal", 1))
    wanted = {"synchronous": 2, "foreign_keys": 1, "trusted_schema": 0, "mmap_size": 0}
    assert {name: db.execute(f"PRAGMA {name}").fetchone()[0] for name in wanted} == wanted
    db.close()


async def test_a_database_of_another_program_of_this_format_is_continued(
    host: Host, path: Path
) -> None:
    make(path, FOREIGN_TABLES)
    session = await host.resume("s")
    assert [event["type"] for event in session.events] == [
        "turn/start",
        *["assistant/chunk"] * 3,
        "user/message",
        "turn/end",
        "session/end-seed",
    ]
    whole_turn(session, 2)
    await host.flush(session)
    db = sqlite3.connect(path)
    names = {name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    assert names == {"persistence_state", "sessions", "events"}
    assert db.execute("SELECT revision, incarnation FROM sessions").fetchone() == (4, "inc")
    db.close()


@pytest.mark.parametrize(
    ("script", "match"),
    [
        ("create table t(x); pragma application_id = 7", "belongs to another program"),
        ("create table t(x)", "belongs to another program"),
        (FOREIGN_TABLES + "pragma user_version = 18", "upgrade this one"),
        (FOREIGN_TABLES + "pragma user_version = 16", "no upgrade"),
    ],
)
async def test_a_database_that_is_not_ours_is_refused_untouched(
    root: Context, path: Path, script: str, match: str
) -> None:
    before = make(path, script)
    await refused(root, path, match)
    assert content(path) == before
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize(
    "change",
    [
        "create table more(x)",
        "create index i on events(type)",
        "alter table sessions add column more text",
        "create view v as select 1",
    ],
)
async def test_other_tables_than_those_of_the_version_are_refused(
    host: Host, path: Path, change: str
) -> None:
    before = make(path, f"{FOREIGN_TABLES}; {change}")
    with pytest.raises(UnusableDatabase, match="version"):
        await host.persistence.inspect("s")
    (told,) = await host.persistence.survey()
    assert "version" in (told.damage or "")
    assert content(path) == before


async def test_a_file_that_is_no_database_is_refused(root: Context, path: Path) -> None:
    connect(Options(path, "wal", 1)).close()
    os.truncate(path, 200)
    os.pwrite(fd := os.open(path, os.O_WRONLY), b"notes", 0)
    os.close(fd)
    await refused(root, path, "is not an SQLite database")
    assert os.stat(path).st_size == 200


async def test_a_link_is_refused(root: Context, path: Path, tmp_path: Path) -> None:
    os.mkdir(path.parent, 0o700)
    os.symlink(tmp_path / "elsewhere.db", path)
    await refused(root, path, "not a regular file")
    assert not (tmp_path / "elsewhere.db").exists()


@pytest.mark.parametrize("name", ["sessions.db", "sessions.db.leases"])
async def test_a_file_that_others_can_open_is_refused_with_a_remedy(
    root: Context, path: Path, name: str
) -> None:
    connect(Options(path, "wal", 1)).close()
    path.with_name(name).chmod(0o644)
    await refused(root, path, "chmod 600")


async def test_a_folder_that_others_can_write_to_is_refused(root: Context, path: Path) -> None:
    path.parent.mkdir()
    path.parent.chmod(0o770)
    await refused(root, path, "chmod go-w")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
async def test_a_folder_of_somebody_else_is_refused(root: Context, path: Path) -> None:
    path.parent.mkdir(mode=0o700)
    os.chown(path.parent, 12345, -1)
    await refused(root, path, "another user")


async def test_another_writer_is_waited_for_and_nothing_is_lost(host: Host, path: Path) -> None:
    session = host.store.create("s")
    whole_turn(session)
    await host.flush(session)
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    say(session, "more")
    with pytest.raises(DatabaseFailed, match=r"kept it locked for 0\.05 s"):
        await host.flush(session)
    assert await host.stored("s") == list(session.events[:-1])
    writer.execute("ROLLBACK")
    writer.close()
    await host.flush(session)
    assert await host.stored("s") == list(session.events)


async def test_a_writer_that_finishes_in_time_delays_only(path: Path) -> None:
    host = await Host(Medium(PLUGIN, {"path": str(path), "busyTimeoutMs": 20_000})).open()
    session = host.store.create("s")
    whole_turn(session)
    await host.flush(session)
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    say(session, "more")
    threading.Timer(0.1, other.execute, ["ROLLBACK"]).start()
    await host.flush(session)
    other.close()
    await host.close()


async def test_a_removed_or_replaced_database_is_told_and_nothing_is_called_durable(
    host: Host, path: Path, tmp_path: Path
) -> None:
    session = host.store.create("s")
    whole_turn(session)
    await host.flush(session)
    os.rename(path.parent, tmp_path / "moved")
    say(session, "more")
    with pytest.raises(DatabaseFailed, match="was removed"):
        await host.flush(session)
    make(path, FOREIGN_TABLES)
    with pytest.raises(DatabaseFailed, match="was replaced"):
        await host.flush(session)
    shutil.rmtree(path.parent)
    os.rename(tmp_path / "moved", path.parent)
    await host.flush(session)
    assert await host.stored("s") == list(session.events)


async def test_a_session_with_a_bad_header_is_listed_as_damaged_beside_the_others(
    host: Host, other: Host, path: Path
) -> None:
    for name in ("good", "bad", "new"):
        session = host.store.create(name)
        whole_turn(session)
        await host.flush(session)
    await host.unload()
    db = sqlite3.connect(path)
    db.execute("UPDATE sessions SET created_at = -1 WHERE id = 'bad'")
    db.execute("UPDATE sessions SET version = 9 WHERE id = 'new'")
    db.commit()
    db.close()
    damage = [item.damage or "" for item in await other.persistence.survey()]
    assert sorted("" if not each else each.split()[0] for each in damage) == ["", "session", "the"]
    assert [header["id"] for header in await other.persistence.all()] == ["good"]
    with pytest.raises(PersistenceError, match="newer dsh"):
        await other.persistence.inspect("new")


async def test_a_listing_shows_each_header_as_it_is_now(host: Host, path: Path) -> None:
    session = host.store.create("s", meta={"cwd": "/w"})
    whole_turn(session)
    await host.flush(session)
    first, again = [(await host.persistence.all())[0] for _ in range(2)]
    assert first is again
    db = sqlite3.connect(path)
    for change in ("cwd = '/v'", "created_at = 7", "created_at = -1"):
        db.execute(f"UPDATE sessions SET {change}")
        db.commit()
        headers = [entry.header for entry in await host.persistence.survey()]
        assert headers != [first]
    db.close()
    assert await host.persistence.all() == []


async def test_a_cut_database_is_told_and_breaks_no_listing(
    host: Host, other: Host, path: Path
) -> None:
    for number in range(20):
        session = host.store.create(f"s{number}")
        whole_turn(session)
        say(session, os.urandom(20_000).hex())
        await host.flush(session)
    await host.unload()
    os.truncate(path, os.stat(path).st_size // 2 // 4096 * 4096)
    survey = await other.persistence.survey()
    problems = 0
    for number in range(20):
        try:
            await other.persistence.inspect(f"s{number}")
        except PersistenceError:
            problems += 1
    assert problems > 0
    assert survey != []


async def test_a_gap_behind_the_last_turn_is_torn_and_one_before_it_is_damage(
    host: Host, other: Host, path: Path
) -> None:
    for name in ("torn", "bad"):
        session = host.store.create(name)
        whole_turn(session)
        for number in range(3):
            say(session, f"{number}")
    await host.unload()
    db = sqlite3.connect(path)
    db.execute("DELETE FROM events WHERE seq = 11 AND session_id = 'torn'")
    db.execute("DELETE FROM events WHERE seq = 7 AND session_id = 'bad'")
    db.commit()
    db.close()
    assert len((await other.persistence.inspect("torn")).events) == 11
    for read in (other.persistence.inspect("bad"), other.persistence.read_from("bad", 5)):
        with pytest.raises(SessionPersistenceCorruptionError, match="ends a later turn"):
            await read


async def test_a_database_in_memory_keeps_its_sessions_while_it_is_open() -> None:
    host = await Host(Medium(PLUGIN, {"path": ":memory:"})).open()
    session = host.store.create("s", meta={"cwd": "/w"})
    whole_turn(session)
    await host.flush(session)
    assert await host.stored("s") == list(session.events)
    assert (await host.persistence.newest("/w") or {})["id"] == "s"
    (snapshot,) = await host.persistence.list_snapshots()
    assert snapshot.revision.startswith("memory:store:")
    await host.close()


# group commit


class Counting(Database):
    """A database that notes how many jobs each transaction did."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.sizes: list[int] = []

    def transact(self, jobs: Sequence[Callable[[], Work]]) -> list[Any]:
        self.sizes.append(len(jobs))
        return super().transact(jobs)


async def test_what_waits_while_the_disk_works_is_one_transaction(path: Path) -> None:
    database, workers, tasks = Counting(Options(path, "wal", 1)), Workers("test", 1), Tasks()
    store, commits = SqliteStore(database), GroupCommit(database.transact, workers, tasks)
    sessions = [Session.create(f"s{number}") for number in range(20)]
    for session in sessions:
        whole_turn(session)
    jobs = [
        commits.run(lambda session=session: store.create(session.header, session.events))
        for session in [*sessions, sessions[3]]
    ]
    made = await asyncio.gather(*jobs, return_exceptions=True)
    assert len(database.sizes) <= 2
    assert isinstance(made[20], PersistenceError)
    assert all(isinstance(each, tuple) for each in made[:20])
    for session in sessions:
        log = store.load(session.id)
        assert log is not None
        assert log.events == list(session.events)
    await tasks.join()
    database.close()
    workers.close()


async def test_a_failed_job_leaves_nothing_of_itself(path: Path) -> None:
    database = Database(Options(path, "wal", 1))

    def half(db: sqlite3.Connection) -> None:
        db.execute("DELETE FROM persistence_state")
        raise ValueError("half done")

    def count(db: sqlite3.Connection) -> int:
        return int(db.execute("SELECT count(*) FROM persistence_state").fetchone()[0])

    outcomes = database.transact([lambda: half, lambda: count])
    assert isinstance(outcomes[0], ValueError)
    assert outcomes[1] == 1
    database.close()


async def test_sessions_of_one_window_are_written_together(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsh.state.persistence.sqlite.database.Database", Counting)
    host = await Host(Medium(PLUGIN, {"path": str(path)})).open()
    sessions = [host.store.create(f"s{number}") for number in range(10)]
    for turn in (1, 2):
        for session in sessions:
            whole_turn(session, turn)
        await host.flush(sessions[0])
        await host.persistence._coordinator._tasks.join()  # type: ignore[attr-defined]
    for session in sessions:
        assert await host.stored(session.id) == list(session.events)
    database: Counting = host.persistence._coordinator.backend._store.database  # type: ignore[attr-defined]
    assert len(database.sizes) <= 6
    await host.close()


# config


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"path": ""},
        {"path": "x", "journalMode": "off"},
        {"path": "x", "busyTimeoutMs": -1},
        {"path": "x", "busyTimeoutMs": 2**31},
        {"path": "x", "leaseMs": 99},
        {"path": "x", "writeBatchMaxDelayMs": 0},
        {"path": "x", "root": "y"},
    ],
)
async def test_a_wrong_config_is_refused(root: Context, config: dict[str, Any]) -> None:
    await root.plugin(LocalSessionStore)
    with pytest.raises(ValidationError):
        await root.plugin(SqlitePersistence, config)


def test_the_config_has_the_names_of_the_format() -> None:
    assert Config(path="x").model_dump(by_alias=True) == {
        "path": "x",
        "journalMode": "wal",
        "busyTimeoutMs": 5000,
        "preparedSessionCacheSize": 5,
        "writeBatchMaxDelayMs": 200,
        "leaseMs": 15_000,
    }


def test_the_module_of_the_row_imports_no_database() -> None:
    code = (
        "import sys, dsh.state.persistence.sqlite; "
        "assert not {'sqlite3', 'zstandard', 'psycopg'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
