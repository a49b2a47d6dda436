"""The row ``storage-json``: each unit is one JSON file, replaced as a whole by every write."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field

from dsh.base.files import FileLock, sweep_unfinished, write_atomic
from dsh.base.json import loads, pretty
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
    from dsh.base.json import JsonValue
    from dsh.kernel import Context

NAME: Final = "json"
_PRIVATE: Final = 0o600

name = "storage-json"
inject = (Storage,)


class Config(BaseModel):
    """Where the files are."""

    model_config = ConfigDict(extra="forbid")

    root: Annotated[str, Field(min_length=1)]
    """The folder; made when something is first written."""


def apply(ctx: Context, config: Config) -> None:
    """Offer the backend ``json`` until the plugin unloads."""
    backend = JsonFiles(Path(config.root))
    ctx.defer(backend.close, "storage-json.close")
    ctx.require(Storage).register(NAME, backend)
    ctx.provide(backend_key(NAME), backend)


class JsonFiles(StorageBackend, KvFacet):
    """Keeps each unit in a file of its own.

    Several processes may write to one file: each write takes over what others wrote meanwhile
    and changes one record of it.

    Args:
        root: The folder; a relative one is resolved now, once.
    """

    def __init__(self, root: Path) -> None:
        self.kv = self
        self._root = root.expanduser().absolute()
        self._worker = Worker("storage-json")
        self._open: set[str] = set()

    async def open(self, descriptor: UnitDescriptor) -> KvUnit:
        """See `KvFacet.open`."""
        self._claim(descriptor.name)
        file = _File(self._path(descriptor.name), descriptor)
        try:
            await self._worker.run(file.look)
        except BaseException:
            self._open.discard(descriptor.name)
            raise
        return _JsonUnit(file, self._worker, lambda: self._open.discard(descriptor.name))

    async def discard(self, name: str) -> None:
        """See `KvFacet.discard`; the file is kept beside, with ``.damaged`` at its end."""
        self._claim(name)
        try:
            await self._worker.run(_put_aside, self._path(name))
        finally:
            self._open.discard(name)

    async def close(self) -> None:
        """See `StorageBackend.close`."""
        await self._worker.close()

    def _claim(self, name: str) -> None:
        if name in self._open:
            raise UnitOpen(name)
        self._open.add(name)

    def _path(self, name: str) -> Path:
        return self._root / f"{name}.json"


class _JsonUnit(KvUnit):
    def __init__(self, file: _File, worker: Worker, release: Callable[[], None]) -> None:
        self._file = file
        self._worker = worker
        self._release = release
        self._closed = False

    async def load_all(self) -> UnitContent:
        content: UnitContent = await self._run(self._file.content)
        return content

    async def put_record(self, table: str, key: str, value: JsonValue) -> None:
        await self._run(self._file.put, table, record_key(key), value)

    async def delete_record(self, table: str, key: str) -> None:
        await self._run(self._file.delete, table, record_key(key))

    async def set_global(self, value: JsonValue) -> None:
        await self._run(self._file.set_global, value)

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._release()

    async def _run(self, call: Callable[..., Any], *args: Any) -> Any:
        if self._closed:
            raise StorageClosed(f"the storage unit {self._file.unit.name!r}")
        return await self._worker.run(call, *args)


class _File:
    """The content of one file; only the worker's thread calls it, and it blocks."""

    def __init__(self, path: Path, unit: UnitDescriptor) -> None:
        self.path = path
        self.unit = unit
        self._document: Mapping[str, Any] = _empty(unit)
        self._digest = b""
        self._swept = False

    def look(self) -> None:
        """Take over what somebody else wrote; a file that went away changes nothing."""
        data = self._read()
        # Its times and numbers do not tell: two quick writes may leave them as they were.
        if data is None or _digest(data) == self._digest:
            return
        self._document = self._parse(data)
        self._digest = _digest(data)

    def content(self) -> UnitContent:
        self.look()
        tables = self._document["tables"]
        found = {name: dict(tables.get(name, {})) for name in self.unit.tables}
        return UnitContent(found, self._document.get("global"))

    def put(self, table: str, key: str, value: JsonValue) -> None:
        self._change(lambda document: _with_record(document, table, key, value))

    def delete(self, table: str, key: str) -> None:
        self._change(lambda document: _without_record(document, table, key))

    def set_global(self, value: JsonValue) -> None:
        self._change(lambda document: {**document, "global": value})

    def _change(self, edit: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(self.path):
            if not self._swept:
                sweep_unfinished(self.path)
                self._swept = True
            self.look()
            changed = edit(self._document)
            if changed is self._document:
                return
            there = self.path.exists()
            data = pretty(changed)
            write_atomic(self.path, data, mode=None if there else _PRIVATE)
            # Only what is durable is remembered, so a failed write is undone by doing nothing.
            self._document = changed
            self._digest = _digest(data)

    def _read(self) -> bytes | None:
        """Return the content; a pipe in the place of the file would never end, so it is refused."""
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise self._malformed("it is no regular file")
        with os.fdopen(fd, "rb") as file:
            return file.read()

    def _parse(self, data: bytes) -> Mapping[str, Any]:
        try:
            document = loads(data)
        except ValueError as error:
            raise self._malformed(f"it is no JSON ({error})") from error
        unit = document.get("unit") if isinstance(document, dict) else None
        if not isinstance(unit, dict) or unit.get("name") != self.unit.name:
            raise self._malformed("it does not say that it is of this unit")
        if type(unit.get("version")) is not int:
            raise self._malformed("it has no version")
        if unit["version"] != self.unit.version:
            raise VersionMismatch(
                self.unit.name,
                place=repr(str(self.path)),
                found=unit["version"],
                wanted=self.unit.version,
            )
        tables = document.get("tables", {})
        if not isinstance(tables, dict) or not all(
            isinstance(table, dict) for table in tables.values()
        ):
            raise self._malformed("its tables are not objects")
        return {**document, "tables": tables}

    def _malformed(self, problem: str) -> MalformedMedium:
        return MalformedMedium(self.unit.name, place=repr(str(self.path)), problem=problem)


def _empty(unit: UnitDescriptor) -> dict[str, Any]:
    document: dict[str, Any] = {"unit": {"name": unit.name, "version": unit.version}}
    if unit.has_global:
        document["global"] = None
    document["tables"] = {table: {} for table in unit.tables}
    return document


def _with_record(
    document: Mapping[str, Any], table: str, key: str, value: JsonValue
) -> Mapping[str, Any]:
    tables = document["tables"]
    return {**document, "tables": {**tables, table: {**tables.get(table, {}), key: value}}}


def _without_record(document: Mapping[str, Any], table: str, key: str) -> Mapping[str, Any]:
    records = document["tables"].get(table, {})
    if key not in records:
        return document
    kept = {other: value for other, value in records.items() if other != key}
    return {**document, "tables": {**document["tables"], table: kept}}


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def _put_aside(path: Path) -> None:
    try:
        path.replace(path.with_name(path.name + ".damaged"))
    except FileNotFoundError:
        return
