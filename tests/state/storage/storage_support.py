"""Both backends, a backend that fails when told to, and a domain facility on a folder."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dsh.kernel import Context
from dsh.state.storage import (
    DOMAIN_CHANGED,
    DomainChanged,
    DomainFacility,
    KvFacet,
    KvUnit,
    Storage,
    StorageBackend,
    UnitContent,
    UnitDescriptor,
)
from dsh.state.storage import hub as storage
from dsh.state.storage import json_files as storage_json
from dsh.state.storage import sqlite as storage_sqlite
from dsh.state.storage.domain import facility as storage_domain
from dsh.state.storage.json_files import JsonFiles
from dsh.state.storage.sqlite import SqliteFile

KINDS = ("json", "sqlite")
AWKWARD_KEYS = (
    "",
    " ",
    "__proto__",
    "constructor",
    "../../etc/passwd",
    "/abs",
    "a\0b",
    "\u200b",
    "\u2028",
    "\ud800",
    "\udc00\ud800",
    "\ud83d\ude00",
    "\U0001f600",
    "\ufeffbom",
    "x" * 5000,
    'quote " and \\ and \n',
)


def make_backend(kind: str, folder: Path) -> StorageBackend:
    if kind == "json":
        return JsonFiles(folder)
    return SqliteFile(str(folder / "records.db"))


class FailingUnit(KvUnit):
    """Keeps records in memory, and refuses writes while it is told to."""

    def __init__(self, content: dict[str, dict[str, Any]]) -> None:
        self.content = content
        self.global_value: Any = None
        self.failure: Exception | None = None
        self.closed = False

    @contextmanager
    def failing(self, error: Exception) -> Iterator[None]:
        self.failure = error
        try:
            yield
        finally:
            self.failure = None

    async def load_all(self) -> UnitContent:
        return UnitContent({t: dict(rows) for t, rows in self.content.items()}, self.global_value)

    async def put_record(self, table: str, key: str, value: Any) -> None:
        self._check()
        self.content[table][key] = value

    async def delete_record(self, table: str, key: str) -> None:
        self._check()
        self.content[table].pop(key, None)

    async def set_global(self, value: Any) -> None:
        self._check()
        self.global_value = value

    async def close(self) -> None:
        self.closed = True

    def _check(self) -> None:
        assert not self.closed
        if self.failure is not None:
            raise self.failure


class FailingBackend(StorageBackend, KvFacet):
    """One unit in memory."""

    def __init__(self, *tables: str) -> None:
        self.kv = self
        self.unit = FailingUnit({table: {} for table in tables})

    async def open(self, descriptor: UnitDescriptor) -> KvUnit:
        self.unit.closed = False
        return self.unit

    async def discard(self, name: str) -> None:
        raise AssertionError("nothing here is damaged")


class StorageHome:
    """The rows of storage on a folder, and what they announced."""

    def __init__(self, root: Context, folder: Path) -> None:
        self.root = root
        self.folder = folder
        self.heard: list[DomainChanged] = []

    async def open(
        self, backend: str = "json", *, routes: dict[str, str] | None = None, wait: bool = True
    ) -> StorageHome:
        await self.root.plugin(storage.plugin)
        self.json = self.root.plugin(storage_json, {"root": str(self.folder)})
        self.sqlite = self.root.plugin(storage_sqlite, {"path": str(self.folder / "records.db")})
        await self.json
        await self.sqlite
        config = {"backend": backend, "routes": routes or {}}
        self.facility = await self.root.plugin(storage_domain, config)
        self.ready = asyncio.Event()
        self.root.inject([DomainFacility], lambda _: self.ready.set())
        if wait:
            await self.ready.wait()
        self.root.on(DOMAIN_CHANGED, self.heard.append)
        return self

    @property
    def storage(self) -> Storage:
        return self.root.require(Storage)

    @property
    def domains(self) -> DomainFacility:
        return self.root.require(DomainFacility)
