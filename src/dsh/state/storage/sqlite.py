"""The row ``storage-sqlite``: all units in one SQLite database."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from dsh.base.json import dumps, loads
from dsh.state.storage.errors import (
    MalformedMedium,
    StorageClosed,
    UnitOpen,
    VersionMismatch,
)
from dsh.state.storage.service import (
    KvFacet,
    KvUnit,
    Storage,
    StorageBackend,
    UnitContent,
    UnitDescriptor,
    backend_key,
    record_key,
)
from dsh.state.storage.worker import Worker

if TYPE_CHECKING:
    import sqlite3

    from dsh.base.json import JsonValue
    from dsh.kernel import Context

NAME: Final = "sqlite"
_FORMAT: Final = 1
_MEMORY: Final = ":memory:"
_BUSY_S: Final = 5.0

name = "storage-sqlite"
inject = (Storage,)


class Config(BaseModel):
    """Where the database is, and how it is written."""

    model_config = ConfigDict(extra="forbid", alias_generator=to_camel, populate_by_name=True)

    path: Annotated[str, Field(min_length=1)]
    """The file, or ``:memory:``; its folder is made when it is first needed."""
    journal_mode: Literal["wal", "delete", "truncate", "persist"] = "wal"
    """How SQLite keeps a write that is not finished."""


def apply(ctx: Context, config: Config) -> None:
    """Offer the backend ``sqlite`` until the plugin unloads."""
    backend = SqliteFile(config.path, config.journal_mode)
    ctx.defer(backend.close, "storage-sqlite.close")
    ctx.require(Storage).register(NAME, backend)
    ctx.provide(backend_key(NAME), backend)


class SqliteFile(StorageBackend, KvFacet):
    """Keeps units as tables of one database.

    Args:
        path: The file, or ``:memory:``; a relative one is resolved now, once.
        journal_mode: SQLite's name of the journal.
    """

    def __init__(self, path: str, journal_mode: str = "wal") -> None:
        self.kv = self
        self._worker = Worker("storage-sqlite")
        where = path if path == _MEMORY else str(Path(path).expanduser().absolute())
        self._database = _Database(where, journal_mode)
        self._open: set[str] = set()

    async def open(self, descriptor: UnitDescriptor) -> KvUnit:
        """See `KvFacet.open`."""
        self._claim(descriptor.name)
        try:
            await self._worker.run(self._database.open_unit, descriptor)
        except BaseException:
            self._open.discard(descriptor.name)
            raise
        release = lambda: self._open.discard(descriptor.name)  # noqa: E731 - a name would say less
        return _SqliteUnit(descriptor, self._database, self._worker, release)

    async def discard(self, name: str) -> None:
        """See `KvFacet.discard`; the tables are dropped, other units are left as they are."""
        self._claim(name)
        try:
            await self._worker.run(self._database.drop_unit, name)
        finally:
            self._open.discard(name)

    async def close(self) -> None:
        """See `StorageBackend.close`."""
        try:
            await self._worker.run(self._database.close)
        except StorageClosed:
            return
        await self._worker.close()

    def _claim(self, name: str) -> None:
        if name in self._open:
            raise UnitOpen(name)
        self._open.add(name)


class _SqliteUnit(KvUnit):
    def __init__(
        self,
        unit: UnitDescriptor,
        database: _Database,
        worker: Worker,
        release: Callable[[], object],
    ) -> None:
        self._unit = unit
        self._database = database
        self._worker = worker
        self._release = release
        self._closed = False

    async def load_all(self) -> UnitContent:
        content: UnitContent = await self._run(self._database.load, self._unit)
        return content

    async def put_record(self, table: str, key: str, value: JsonValue) -> None:
        await self._run(self._database.put, self._unit.name, table, record_key(key), dumps(value))

    async def delete_record(self, table: str, key: str) -> None:
        await self._run(self._database.delete, self._unit.name, table, record_key(key))

    async def set_global(self, value: JsonValue) -> None:
        await self._run(self._database.set_global, self._unit.name, dumps(value))

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._release()

    async def _run(self, call: Callable[..., Any], *args: Any) -> Any:
        if self._closed:
            raise StorageClosed(f"the storage unit {self._unit.name!r}")
        return await self._worker.run(call, *args)


class _Database:
    """The database; only the worker's thread calls it, and it blocks."""

    def __init__(self, path: str, journal_mode: str) -> None:
        self.path = path
        self._journal_mode = journal_mode
        self._connection: sqlite3.Connection | None = None

    def open_unit(self, unit: UnitDescriptor) -> None:
        with self._transaction(unit.name) as run:
            row = run("SELECT version FROM units WHERE name = ?", (unit.name,)).fetchone()
            if row is not None and row[0] != unit.version:
                raise VersionMismatch(
                    unit.name, place=repr(self.path), found=row[0], wanted=unit.version
                )
            for table in unit.tables:
                # A new unit must not take the table of another one whose name runs on like it.
                guard = "IF NOT EXISTS " if row is not None else ""
                run(
                    f"CREATE TABLE {guard}{_table(unit.name, table)} "
                    "(key TEXT PRIMARY KEY NOT NULL, value TEXT NOT NULL) STRICT"
                )
            if row is None:
                run("INSERT INTO units (name, version) VALUES (?, ?)", (unit.name, unit.version))

    def drop_unit(self, name: str) -> None:
        with self._transaction(name) as run:
            tables = run("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
            others = [row[0] for row in run("SELECT name FROM units WHERE name <> ?", (name,))]
            for table in _owned([_as_text(row[0]) for row in tables], name, map(_as_text, others)):
                run(f'DROP TABLE "{table}"')
            run("DELETE FROM unit_globals WHERE unit = ?", (name,))
            run("DELETE FROM units WHERE name = ?", (name,))

    def load(self, unit: UnitDescriptor) -> UnitContent:
        with self._transaction(unit.name) as run:
            tables = {
                table: {
                    _as_text(key): self._value(unit.name, value)
                    for key, value in run(f"SELECT key, value FROM {_table(unit.name, table)}")
                }
                for table in unit.tables
            }
            row = run("SELECT value FROM unit_globals WHERE unit = ?", (unit.name,)).fetchone()
        return UnitContent(tables, None if row is None else self._value(unit.name, row[0]))

    def put(self, unit: str, table: str, key: str, value: bytes) -> None:
        with self._transaction(unit) as run:
            run(
                f"INSERT INTO {_table(unit, table)} (key, value) "
                "VALUES (CAST(? AS TEXT), CAST(? AS TEXT)) "
                "ON CONFLICT (key) DO UPDATE SET value = excluded.value",
                (_as_bytes(key), value),
            )

    def delete(self, unit: str, table: str, key: str) -> None:
        with self._transaction(unit) as run:
            run(
                f"DELETE FROM {_table(unit, table)} WHERE key = CAST(? AS TEXT)",
                (_as_bytes(key),),
            )

    def set_global(self, unit: str, value: bytes) -> None:
        with self._transaction(unit) as run:
            run(
                "INSERT INTO unit_globals (unit, value) VALUES (?, CAST(? AS TEXT)) "
                "ON CONFLICT (unit) DO UPDATE SET value = excluded.value",
                (unit, value),
            )

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _value(self, unit: str, data: bytes) -> Any:
        try:
            return loads(data)
        except ValueError as error:
            problem = f"a value is no JSON ({error})"
            raise MalformedMedium(unit, place=repr(self.path), problem=problem) from error

    @contextmanager
    def _transaction(self, unit: str) -> Iterator[Callable[..., sqlite3.Cursor]]:
        import sqlite3

        try:
            connection = self._connect(unit)
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection.execute
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
        except sqlite3.DatabaseError as error:
            raise self._translated(unit, error) from error

    def _translated(self, unit: str, error: sqlite3.DatabaseError) -> Exception:
        """Tell a medium that cannot be written from one that is no such medium."""
        code = (getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF
        if code in _DAMAGE:
            return MalformedMedium(unit, place=repr(self.path), problem=str(error))
        return OSError(f"the storage database {self.path!r}: {error}")

    def _connect(self, unit: str) -> sqlite3.Connection:
        if self._connection is not None:
            return self._connection
        import sqlite3

        if self.path != _MEMORY:
            _make_private(Path(self.path))
        connection = sqlite3.connect(
            self.path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
        )
        try:
            connection.text_factory = bytes
            self._prepare(connection, unit)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection

    def _prepare(self, connection: sqlite3.Connection, unit: str) -> None:
        connection.execute(f"PRAGMA journal_mode = {self._journal_mode}")
        connection.execute("PRAGMA synchronous = FULL")
        # Locked from the first look on: another process may be making the tables right now.
        connection.execute("BEGIN IMMEDIATE")
        found = connection.execute("PRAGMA user_version").fetchone()[0]
        tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
        if found != _FORMAT and (found or tables):
            problem = f"it is no storage database of format {_FORMAT}"
            raise MalformedMedium(unit, place=repr(self.path), problem=problem)
        if found != _FORMAT:
            for statement in _SCHEMA:
                connection.execute(statement)
        connection.execute("COMMIT")


_SCHEMA: Final = (
    (
        "CREATE TABLE IF NOT EXISTS units "
        "(name TEXT PRIMARY KEY NOT NULL, version INTEGER NOT NULL) STRICT"
    ),
    (
        "CREATE TABLE IF NOT EXISTS unit_globals "
        "(unit TEXT PRIMARY KEY NOT NULL, value TEXT NOT NULL) STRICT"
    ),
    f"PRAGMA user_version = {_FORMAT}",
)
_DAMAGE: Final = (1, 11, 26)
"""SQLite's codes for a wrong schema, a corrupt file, and a file that is no database."""


def _table(unit: str, table: str) -> str:
    return f"u_{unit}_{table}"


def _owned(tables: list[str], unit: str, others: Iterator[str]) -> list[str]:
    """Return the tables of a unit; one that a longer unit name also claims is left alone."""
    longer = tuple(f"u_{other}_" for other in others if other.startswith(f"{unit}_"))
    mine = [table for table in tables if table.startswith(f"u_{unit}_")]
    return [table for table in mine if not table.startswith(longer)]


def _as_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _as_text(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


def _make_private(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
