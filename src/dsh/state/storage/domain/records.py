"""An open domain: its records in memory, and the queue of writes to its unit."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

from dsh.base.errors import message_of
from dsh.base.json import NotLossless, snapshot
from dsh.base.serial import SerialQueue
from dsh.state.storage.domain.events import DomainChanged
from dsh.state.storage.domain.service import Domain, DomainSpec, GlobalValue, KvTable, Schema
from dsh.state.storage.errors import InvalidRecord, MissingKey, StorageClosed
from dsh.state.storage.service import KvUnit, UnitContent, UnitDescriptor, record_key

_log = logging.getLogger("dsh.storage")

Announce = Callable[[DomainChanged], None]


class VolatileUnit(KvUnit):
    """Keeps nothing: the domain's memory is all there is."""

    def __init__(self, unit: UnitDescriptor) -> None:
        self._unit = unit

    async def load_all(self) -> UnitContent:
        """See `KvUnit.load_all`."""
        return UnitContent({table: {} for table in self._unit.tables})

    async def put_record(self, table: str, key: str, value: Any) -> None:
        """See `KvUnit.put_record`."""

    async def delete_record(self, table: str, key: str) -> None:
        """See `KvUnit.delete_record`."""

    async def set_global(self, value: Any) -> None:
        """See `KvUnit.set_global`."""

    async def close(self) -> None:
        """See `KvUnit.close`."""


class Records:
    """The checked, frozen content of a domain."""

    def __init__(self, spec: DomainSpec) -> None:
        self.spec = spec
        self.tables: dict[str, dict[str, Any]] = {name: {} for name in spec.tables}
        self.global_value: Any = None

    def fill(self, content: UnitContent) -> None:
        """Take what is stored.

        Raises:
            InvalidRecord: a record does not fit. Those that can be made again are left out
                instead, and stay on the medium until they are.
        """
        for table, schema in self.spec.tables.items():
            for key, raw in content.tables.get(table, {}).items():
                with self._forgiving():
                    self.tables[table][key] = self.checked(schema, raw, table, key)
        if self.spec.global_schema is not None and content.global_value is not None:
            with self._forgiving():
                self.global_value = self.checked(self.spec.global_schema, content.global_value)

    @contextmanager
    def _forgiving(self) -> Iterator[None]:
        try:
            yield
        except InvalidRecord as error:
            if self.spec.recovery != "reset":
                raise
            _log.warning("a record that can be made again is left out: %s", error.message)

    def checked(self, schema: Schema, raw: Any, table: str = "", key: str = "") -> Any:
        """Return a detached, frozen copy of a value that fits.

        Raises:
            InvalidRecord: it does not.
        """
        try:
            frozen = snapshot(raw, logged=True)
        except NotLossless as error:
            raise InvalidRecord(self.spec.name, error.message, table=table, key=key) from error
        try:
            schema(frozen)
        except Exception as error:  # the owner's code, and whatever it makes of a strange value
            problem = message_of(error)
            raise InvalidRecord(self.spec.name, problem, table=table, key=key) from error
        return frozen


class OpenDomain(Domain):
    """A domain over a unit; see `Domain`.

    Args:
        records: What the unit holds.
        unit: Where writes go; closed with the domain.
        announce: Told of each change.
        released: Called when the name is free.
    """

    def __init__(
        self,
        records: Records,
        unit: KvUnit,
        announce: Announce,
        released: Callable[[], object],
    ) -> None:
        self.name = records.spec.name
        self.records = records
        self._unit = unit
        self._announce = announce
        self._released = released
        self._queue = SerialQueue(f"storage-domain:{self.name}")
        self._closed = False
        self._tables = {name: _Table(self, name) for name in records.spec.tables}
        self._global = None if records.spec.global_schema is None else _Global(self)

    @property
    def global_(self) -> GlobalValue:
        """See `Domain.global_`."""
        if self._global is None:
            raise LookupError(f"the storage domain {self.name!r} has no global value")
        return self._global

    def table(self, name: str) -> KvTable:
        """See `Domain.table`."""
        if name not in self._tables:
            raise LookupError(f"the storage domain {self.name!r} has no table {name!r}")
        return self._tables[name]

    async def close(self) -> None:
        """See `Domain.close`."""
        self._closed = True
        await self._queue.join()
        await self._unit.close()
        self._released()

    async def write(self, operation: Callable[[KvUnit], Awaitable[Any]]) -> Any:
        """Run a write in its turn.

        Raises:
            StorageClosed: the domain takes nothing any more.
        """
        self.check_open()
        return await self._queue.run(partial(operation, self._unit))

    def check_open(self) -> None:
        """Refuse when closed.

        Raises:
            StorageClosed: the domain takes nothing any more.
        """
        if self._closed:
            raise StorageClosed(f"the storage domain {self.name!r}")

    def tell(
        self, table: str, key: str, operation: Literal["put", "deleted"], value: Any = None
    ) -> None:
        """Announce a change that is durable."""
        self._announce(DomainChanged(self.name, table, key, operation, value))


class _Table(KvTable):
    def __init__(self, domain: OpenDomain, name: str) -> None:
        self._domain = domain
        self._name = name
        self._schema = domain.records.spec.tables[name]
        self._records = domain.records.tables[name]

    def get(self, key: str) -> Any:
        return self._records.get(record_key(key))

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and record_key(key) in self._records

    def __len__(self) -> int:
        return len(self._records)

    def keys(self) -> Iterator[str]:
        return iter(list(self._records))

    def entries(self) -> Iterator[tuple[str, Any]]:
        return iter(list(self._records.items()))

    async def put(self, key: str, value: Any) -> None:
        self._domain.check_open()
        key = record_key(key)
        frozen = self._checked(key, value)
        await self._domain.write(partial(self._put, key, frozen))

    async def delete(self, key: str) -> bool:
        there: bool = await self._domain.write(partial(self._delete, record_key(key)))
        return there

    async def update(self, key: str, change: Callable[[Any], Any]) -> Any:
        return await self._domain.write(partial(self._update, record_key(key), change))

    async def _put(self, key: str, frozen: Any, unit: KvUnit) -> None:
        await unit.put_record(self._name, key, frozen)
        self._records[key] = frozen
        self._domain.tell(self._name, key, "put", frozen)

    async def _delete(self, key: str, unit: KvUnit) -> bool:
        if key not in self._records:
            return False
        await unit.delete_record(self._name, key)
        del self._records[key]
        self._domain.tell(self._name, key, "deleted")
        return True

    async def _update(self, key: str, change: Callable[[Any], Any], unit: KvUnit) -> Any:
        if key not in self._records:
            raise MissingKey(self._domain.name, table=self._name, key=key)
        frozen = self._checked(key, change(self._records[key]))
        await self._put(key, frozen, unit)
        return frozen

    def _checked(self, key: str, value: Any) -> Any:
        return self._domain.records.checked(self._schema, value, self._name, key)


class _Global(GlobalValue):
    def __init__(self, domain: OpenDomain) -> None:
        self._domain = domain

    def get(self) -> Any:
        records = self._domain.records
        stored = records.global_value
        return records.spec.global_initial if stored is None else stored

    async def set(self, value: Any) -> None:
        self._domain.check_open()
        records = self._domain.records
        schema = records.spec.global_schema
        assert schema is not None  # there is a global value only with its schema
        frozen = records.checked(schema, value)
        await self._domain.write(partial(self._set, frozen))

    async def _set(self, frozen: Any, unit: KvUnit) -> None:
        await unit.set_global(frozen)
        self._domain.records.global_value = frozen
        self._domain.tell("", "", "put", frozen)
