"""The definition of ``ctx.storage_domain``: tables of one plugin, in memory and on a medium."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

from dsh.base.values import value
from dsh.kernel import Service

if TYPE_CHECKING:
    from dsh.base.json import JsonValue

__all__ = [
    "Domain",
    "DomainFacility",
    "DomainSpec",
    "GlobalValue",
    "KvTable",
    "Recovery",
    "Schema",
]

Schema: TypeAlias = Callable[[Any], object]
"""Raises ``ValueError`` when a value does not fit; what it returns does not matter. The
``validate_python`` of a pydantic ``TypeAdapter`` is one."""

Recovery: TypeAlias = Literal["refuse", "reset"]
"""What to do about damaged records: ``refuse`` to open and touch nothing, or ``reset``."""


@value
class DomainSpec:
    """What a plugin keeps.

    Attributes:
        name: The domain; lower-case letters, digits and underscores.
        version: Records that another version wrote are refused.
        tables: The schema of each table's records.
        global_schema: The schema of the global value; it must not take ``None``.
        global_initial: The global value until one is set.
        recovery: ``reset`` is for records that can be made again from something else: what
            cannot be read is put aside, and when even that fails, the domain is kept in memory.
    """

    name: str
    version: int
    tables: Mapping[str, Schema] = field(default_factory=dict)
    global_schema: Schema | None = None
    global_initial: JsonValue = None
    recovery: Recovery = "refuse"


class KvTable(ABC):
    """The records of one table. Values are frozen; any string is a key."""

    @abstractmethod
    def get(self, key: str) -> Any:
        """Return a record, or ``None`` when there is none."""

    @abstractmethod
    def __contains__(self, key: object) -> bool: ...

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def keys(self) -> Iterator[str]:
        """Iterate over the keys as they are now."""

    @abstractmethod
    def entries(self) -> Iterator[tuple[str, Any]]:
        """Iterate over keys and records as they are now."""

    @abstractmethod
    async def put(self, key: str, value: JsonValue) -> None:
        """Store a record; durable, readable and announced on return.

        Raises:
            InvalidRecord: it does not fit the schema, or is not JSON.
            StorageClosed: the domain takes nothing any more.
            Exception: what the backend raised; nothing has changed.
        """

    @abstractmethod
    async def delete(self, key: str) -> bool:
        """Remove a record; say whether there was one.

        Raises:
            StorageClosed: the domain takes nothing any more.
            Exception: what the backend raised; nothing has changed.
        """

    @abstractmethod
    async def update(self, key: str, change: Callable[[Any], JsonValue]) -> Any:
        """Store what ``change`` makes of a record once all writes before this one are done.

        Returns:
            The record as it is stored.

        Raises:
            MissingKey: there is no such record then.
            InvalidRecord: the result does not fit the schema, or is not JSON.
            StorageClosed: the domain takes nothing any more.
            Exception: what ``change`` or the backend raised; nothing has changed.
        """


class GlobalValue(ABC):
    """The one value of a domain beside its tables."""

    @abstractmethod
    def get(self) -> Any:
        """Return it, or the initial one."""

    @abstractmethod
    async def set(self, value: JsonValue) -> None:
        """Store it; durable, readable and announced on return.

        Raises:
            InvalidRecord: it does not fit the schema, or is not JSON.
            StorageClosed: the domain takes nothing any more.
            Exception: what the backend raised; nothing has changed.
        """


class Domain(ABC):
    """An open domain: reads come from memory, writes go to the medium one after the other.

    Attributes:
        name: Its name.
    """

    name: str

    @property
    @abstractmethod
    def global_(self) -> GlobalValue:
        """The global value.

        Raises:
            LookupError: the spec has none.
        """

    @abstractmethod
    def table(self, name: str) -> KvTable:
        """Return a table.

        Raises:
            LookupError: the spec has no such table.
        """

    @abstractmethod
    async def close(self) -> None:
        """Refuse new writes, finish those that wait, and free the name."""


class DomainFacility(Service, ABC):
    """Opens domains on the backends they are routed to."""

    name: ClassVar[str] = "storage_domain"

    @abstractmethod
    async def open(self, spec: DomainSpec) -> Domain:
        """Open a domain; it is closed when the calling plugin unloads, at the latest.

        Raises:
            DomainOpen: it is open.
            FacetUnsupported: its backend keeps no records.
            VersionMismatch: its records are of another version; they are untouched.
            MalformedMedium: its records cannot be read; they are untouched.
            InvalidRecord: a stored record does not fit its schema; all are untouched.
            ValueError: the spec is wrong.
            OSError: what the operating system says.
        """

    @abstractmethod
    def get(self, name: str) -> Domain | None:
        """Return an open domain."""

    @abstractmethod
    async def close_all(self) -> None:
        """Close every domain."""
