"""What both backends promise, and what each does with a damaged medium."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from storage_support import AWKWARD_KEYS, KINDS, make_backend

from dsh.state.storage import KvUnit, StorageBackend, UnitDescriptor
from dsh.state.storage.errors import (
    MalformedMedium,
    StorageClosed,
    UnitOpen,
    VersionMismatch,
)
from dsh.state.storage.json_files import JsonFiles
from dsh.state.storage.service import InvalidStorageName, record_key
from dsh.state.storage.sqlite import SqliteFile

UNIT = UnitDescriptor("notes", 2, ("items", "tags"), has_global=True)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
async def backend(kind: str, tmp_path: Path) -> AsyncIterator[StorageBackend]:
    made = make_backend(kind, tmp_path / "storages")
    yield made
    await made.close()


async def opened(backend: StorageBackend, unit: UnitDescriptor = UNIT) -> KvUnit:
    assert backend.kv is not None
    return await backend.kv.open(unit)


async def content(unit: KvUnit) -> Any:
    found = await unit.load_all()
    return {**{name: dict(rows) for name, rows in found.tables.items()}, "": found.global_value}


async def test_a_missing_medium_opens_empty(backend: StorageBackend) -> None:
    assert await content(await opened(backend)) == {"items": {}, "tags": {}, "": None}


async def test_what_is_written_is_there_in_another_process(
    backend: StorageBackend, kind: str, tmp_path: Path
) -> None:
    unit = await opened(backend)
    await unit.put_record("items", "a", {"n": 1})
    await unit.put_record("items", "a", {"n": 2})
    await unit.put_record("tags", "a", [None, True, 1.5, "é"])
    await unit.put_record("tags", "b", "gone")
    await unit.delete_record("tags", "b")
    await unit.set_global({"mode": "x"})
    again = make_backend(kind, tmp_path / "storages")
    assert await content(await opened(again)) == {
        "items": {"a": {"n": 2}},
        "tags": {"a": [None, True, 1.5, "é"]},
        "": {"mode": "x"},
    }
    await again.close()


async def test_any_string_is_a_key(backend: StorageBackend, kind: str, tmp_path: Path) -> None:
    unit = await opened(backend)
    for number, key in enumerate(AWKWARD_KEYS):
        await unit.put_record("items", key, number)
    expected = {record_key(key): number for number, key in enumerate(AWKWARD_KEYS)}
    assert (await content(unit))["items"] == expected
    again = make_backend(kind, tmp_path / "storages")
    assert (await content(await opened(again)))["items"] == expected
    await again.close()
    assert {path.name.split(".")[0] for path in (tmp_path / "storages").iterdir()} <= {
        "notes",
        "records",
    }
    for key in AWKWARD_KEYS:
        await unit.delete_record("items", key)
    assert (await content(unit))["items"] == {}


async def test_deleting_what_is_not_there_is_harmless(backend: StorageBackend) -> None:
    unit = await opened(backend)
    await unit.delete_record("items", "nothing")
    assert (await content(unit))["items"] == {}


async def test_a_unit_has_one_holder(backend: StorageBackend) -> None:
    unit = await opened(backend)
    with pytest.raises(UnitOpen):
        await opened(backend)
    await unit.close()
    await unit.close()
    await opened(backend)


async def test_a_closed_unit_takes_nothing(backend: StorageBackend) -> None:
    unit = await opened(backend)
    await unit.close()
    with pytest.raises(StorageClosed):
        await unit.put_record("items", "a", 1)
    with pytest.raises(StorageClosed):
        await unit.load_all()


async def test_a_closed_backend_takes_nothing(backend: StorageBackend) -> None:
    unit = await opened(backend)
    await backend.close()
    await backend.close()
    with pytest.raises(StorageClosed):
        await unit.put_record("items", "a", 1)


async def test_records_of_another_version_are_refused_and_left(
    backend: StorageBackend, tmp_path: Path
) -> None:
    unit = await opened(backend)
    await unit.put_record("items", "a", 1)
    await unit.close()
    with pytest.raises(VersionMismatch, match=r"version 2, newer than the 1 that this dsh reads"):
        await opened(backend, UnitDescriptor("notes", 1, ("items",)))
    with pytest.raises(VersionMismatch, match="older"):
        await opened(backend, UnitDescriptor("notes", 3, ("items",)))
    assert (await content(await opened(backend)))["items"] == {"a": 1}


async def test_discarding_makes_room_for_a_new_unit(backend: StorageBackend) -> None:
    assert backend.kv is not None
    other = await opened(backend, UnitDescriptor("notes_more", 0, ("items",)))
    await other.put_record("items", "kept", 1)
    unit = await opened(backend)
    await unit.put_record("items", "a", 1)
    with pytest.raises(UnitOpen):
        await backend.kv.discard("notes")
    await unit.close()
    await backend.kv.discard("notes")
    await backend.kv.discard("nothing")
    assert (await content(await opened(backend)))["items"] == {}
    assert dict((await other.load_all()).tables["items"]) == {"kept": 1}


@pytest.mark.parametrize("name", ["", "Notes", "1a", "a-b", "../x", "a\n", "ä"])
def test_names_that_cannot_be_files_are_refused(name: str) -> None:
    with pytest.raises(InvalidStorageName):
        UnitDescriptor(name, 0)
    with pytest.raises(InvalidStorageName):
        UnitDescriptor("fine", 0, (name,))


@pytest.mark.parametrize("version", [-1, True, 1.0, "1"])
def test_a_version_is_an_integer_from_0(version: Any) -> None:
    with pytest.raises(ValueError, match="not 0 or above"):
        UnitDescriptor("fine", version)


# JSON files


async def test_a_file_appears_with_the_first_write_and_is_private(tmp_path: Path) -> None:
    backend = JsonFiles(tmp_path / "deep" / "storages")
    unit = await opened(backend)
    assert not (tmp_path / "deep").exists()
    await unit.put_record("items", "a", {"b": 1})
    path = tmp_path / "deep" / "storages" / "notes.json"
    assert path.read_text() == (
        '{\n  "unit": {\n    "name": "notes",\n    "version": 2\n  },\n  "global": null,\n'
        '  "tables": {\n    "items": {\n      "a": {\n        "b": 1\n      }\n    },\n'
        '    "tags": {}\n  }\n}\n'
    )
    assert path.stat().st_mode & 0o777 == 0o600
    await backend.close()


DAMAGE: dict[str, Callable[[str], str]] = {
    "cut": lambda text: text[: len(text) // 2],
    "empty": lambda _: "",
    "another unit": lambda text: text.replace('"notes"', '"others"'),
    "no version": lambda text: text.replace('"version": 2', '"version": "2"'),
    "tables no object": lambda _: '{"unit":{"name":"notes","version":2},"tables":[]}',
    "table no object": lambda _: '{"unit":{"name":"notes","version":2},"tables":{"items":3}}',
    "a list": lambda _: "[]",
    "NaN": lambda text: text.replace("1", "NaN"),
    "no finite number": lambda text: text.replace("1", "1e400"),
}


@pytest.mark.parametrize("damage", DAMAGE)
async def test_a_damaged_file_is_refused_and_left(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "notes.json"
    whole = json.dumps({"unit": {"name": "notes", "version": 2}, "tables": {"items": {"a": 1}}})
    path.write_text(DAMAGE[damage](whole))
    before = path.read_bytes()
    backend = JsonFiles(tmp_path)
    with pytest.raises(MalformedMedium, match=r"notes\.json"):
        await opened(backend)
    assert path.read_bytes() == before
    path.write_text(whole)
    assert (await content(await opened(backend)))["items"] == {"a": 1}
    await backend.close()


async def test_a_failed_write_of_a_file_changes_nothing(tmp_path: Path) -> None:
    folder, away = tmp_path / "storages", tmp_path / "away"
    backend = JsonFiles(folder)
    unit = await opened(backend)
    await unit.put_record("items", "a", 1)
    before = (folder / "notes.json").read_bytes()
    with pytest.raises(TypeError):
        await unit.put_record("items", "b", object())  # type: ignore[arg-type]
    folder.rename(away)
    folder.write_text("in the way")
    with pytest.raises(OSError, match="storages"):
        await unit.put_record("items", "b", 2)
    folder.unlink()
    away.rename(folder)
    assert (folder / "notes.json").read_bytes() == before
    assert sorted(path.name for path in folder.iterdir()) == ["notes.json", "notes.json.lock"]
    assert (await content(unit))["items"] == {"a": 1}
    await unit.put_record("items", "c", 3)
    assert (await content(unit))["items"] == {"a": 1, "c": 3}
    await backend.close()


async def test_two_processes_lose_nothing_of_each_other(tmp_path: Path) -> None:
    one, two = JsonFiles(tmp_path), JsonFiles(tmp_path)
    mine, theirs = await opened(one), await opened(two)
    await mine.put_record("items", "a", 1)
    await theirs.put_record("items", "b", 2)
    await mine.put_record("items", "c", 3)
    await theirs.delete_record("items", "a")
    assert (await content(mine))["items"] == (await content(theirs))["items"] == {"b": 2, "c": 3}
    await one.close()
    await two.close()


async def test_a_file_that_another_process_damaged_is_not_overwritten(tmp_path: Path) -> None:
    backend = JsonFiles(tmp_path)
    unit = await opened(backend)
    await unit.put_record("items", "a", 1)
    (tmp_path / "notes.json").write_text("{")
    with pytest.raises(MalformedMedium):
        await unit.put_record("items", "b", 2)
    assert (tmp_path / "notes.json").read_text() == "{"
    await backend.close()


async def test_a_file_that_went_away_is_written_anew_with_all_records(tmp_path: Path) -> None:
    backend = JsonFiles(tmp_path)
    unit = await opened(backend)
    await unit.put_record("items", "a", 1)
    (tmp_path / "notes.json").unlink()
    await unit.put_record("items", "b", 2)
    written = json.loads((tmp_path / "notes.json").read_text())
    assert written["tables"]["items"] == {"a": 1, "b": 2}
    await backend.close()


async def test_what_this_version_does_not_know_of_a_file_stays(tmp_path: Path) -> None:
    unit = {"name": "notes", "version": 2, "by": "a later one"}
    document = {"unit": unit, "more": 1, "tables": {"items": {}, "later": {"a": 1}}}
    (tmp_path / "notes.json").write_text(json.dumps(document))
    backend = JsonFiles(tmp_path)
    await (await opened(backend)).put_record("items", "b", 2)
    document["tables"] = {"items": {"b": 2}, "later": {"a": 1}}
    assert json.loads((tmp_path / "notes.json").read_text()) == document
    await backend.close()


async def test_a_relative_folder_is_resolved_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "there")
    backend = JsonFiles(Path("storages"))
    monkeypatch.chdir(tmp_path)
    await (await opened(backend)).put_record("items", "a", 1)
    assert (tmp_path / "there" / "storages" / "notes.json").exists()
    await backend.close()


async def test_a_discarded_file_is_kept_beside(tmp_path: Path) -> None:
    (tmp_path / "notes.json").write_text("broken")
    backend = JsonFiles(tmp_path)
    assert backend.kv is not None
    await backend.kv.discard("notes")
    assert (tmp_path / "notes.json.damaged").read_text() == "broken"
    await backend.close()


# SQLite


async def test_a_database_says_what_it_is(tmp_path: Path) -> None:
    backend = SqliteFile(str(tmp_path / "records.db"))
    unit = await opened(backend)
    await unit.put_record("items", "a", {"b": 1})
    await unit.set_global(5)
    await backend.close()
    with sqlite3.connect(tmp_path / "records.db") as found:
        assert found.execute("PRAGMA user_version").fetchone() == (1,)
        assert found.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert found.execute("SELECT * FROM units").fetchall() == [("notes", 2)]
        assert found.execute("SELECT * FROM unit_globals").fetchall() == [("notes", "5")]
        assert found.execute("SELECT * FROM u_notes_items").fetchall() == [("a", '{"b":1}')]
    found.close()
    assert (tmp_path / "records.db").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "data", [b"no database at all, but long enough", b"SQLite format 3\0" * 90]
)
async def test_a_file_that_is_no_database_is_refused_and_left(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    path.write_bytes(data)
    backend = SqliteFile(str(path))
    with pytest.raises(MalformedMedium, match=r"records\.db"):
        await opened(backend)
    assert path.read_bytes() == data
    await backend.close()


async def test_a_database_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE theirs (x)")
    other.close()
    backend = SqliteFile(str(path))
    with pytest.raises(MalformedMedium, match="no storage database"):
        await opened(backend)
    await backend.close()


async def test_a_value_that_is_no_json_is_refused(tmp_path: Path) -> None:
    backend = SqliteFile(str(tmp_path / "records.db"))
    await (await opened(backend)).put_record("items", "a", 1)
    with sqlite3.connect(tmp_path / "records.db") as other:
        other.execute("UPDATE u_notes_items SET value = '{'")
    other.close()
    await backend.close()
    again = SqliteFile(str(tmp_path / "records.db"))
    unit = await opened(again)
    with pytest.raises(MalformedMedium, match="no JSON"):
        await unit.load_all()
    await again.close()


async def test_units_whose_names_run_together_do_not_share_a_table(tmp_path: Path) -> None:
    backend = SqliteFile(str(tmp_path / "records.db"))
    await opened(backend, UnitDescriptor("a_b", 0, ("c",)))
    with pytest.raises(MalformedMedium, match="u_a_b_c"):
        await opened(backend, UnitDescriptor("a", 0, ("b_c",)))
    await backend.close()


async def test_a_database_that_stays_locked_is_a_failure_of_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsh.state.storage.sqlite._BUSY_S", 0.01)
    backend = SqliteFile(str(tmp_path / "records.db"))
    unit = await opened(backend)
    await unit.put_record("items", "a", 1)
    other = sqlite3.connect(tmp_path / "records.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(OSError, match=r"records\.db.*locked"):
        await unit.put_record("items", "a", 2)
    other.execute("ROLLBACK")
    other.close()
    assert (await content(unit))["items"] == {"a": 1}
    await unit.put_record("items", "a", 3)
    await backend.close()


async def test_memory_is_a_database_too() -> None:
    backend = SqliteFile(":memory:")
    unit = await opened(backend)
    await unit.put_record("items", "a", 1)
    assert (await content(unit))["items"] == {"a": 1}
    await backend.close()


async def test_writes_at_the_same_time_are_all_there(backend: StorageBackend) -> None:
    unit = await opened(backend)
    writes: list[Awaitable[None]] = [
        unit.put_record("items", str(number), number) for number in range(20)
    ]
    await asyncio.gather(*writes)
    assert (await content(unit))["items"] == {str(number): number for number in range(20)}


async def test_a_change_of_others_counts_even_when_the_file_looks_alike(tmp_path: Path) -> None:
    backend = JsonFiles(tmp_path)
    unit = await opened(backend)
    await unit.put_record("items", "a", 1)
    path = tmp_path / "notes.json"
    before = path.stat()
    path.write_bytes(path.read_bytes().replace(b'"a": 1', b'"a": 2'))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    await unit.put_record("items", "b", 3)
    assert (await content(unit))["items"] == {"a": 2, "b": 3}
    await backend.close()


async def test_a_pipe_in_the_place_of_a_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "notes.json")
    backend = JsonFiles(tmp_path)
    with pytest.raises(MalformedMedium, match="no regular file"):
        await opened(backend)
    await backend.close()


async def test_a_write_whose_caller_leaves_is_carried_out(
    backend: StorageBackend, kind: str
) -> None:
    unit = await opened(backend)
    writes = [asyncio.create_task(unit.put_record("items", str(n), n)) for n in range(5)]
    await asyncio.sleep(0)
    for write in writes:
        write.cancel()
    await asyncio.gather(*writes, return_exceptions=True)
    assert (await content(unit))["items"] == {str(n): n for n in range(5)}


async def test_those_who_open_a_new_database_at_once_agree(tmp_path: Path) -> None:
    backends = [SqliteFile(str(tmp_path / "records.db")) for _ in range(8)]
    units = await asyncio.gather(*map(opened, backends))
    await asyncio.gather(*(unit.put_record("items", str(n), n) for n, unit in enumerate(units)))
    assert (await content(units[0]))["items"] == {str(n): n for n in range(8)}
    for each in backends:
        await each.close()


async def test_the_first_write_of_a_file_removes_what_killed_writers_left(tmp_path: Path) -> None:
    left = tmp_path / ".notes.json.0123456789ab.tmp"
    others = [tmp_path / ".notes.txt.0123456789ab.tmp", tmp_path / ".notes.json.mine.tmp"]
    for path in (left, *others):
        path.write_text("half")
    backend = JsonFiles(tmp_path)
    unit = await opened(backend)
    await unit.load_all()
    assert left.exists()
    await unit.put_record("items", "a", 1)
    assert not left.exists()
    assert all(path.exists() for path in others)
    await backend.close()
