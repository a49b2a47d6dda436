"""The definition of ``ctx.storage``: backends that keep records, and the forms that use them."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from dsh.base.errors import DshError
from dsh.base.values import value
from dsh.kernel import Service

if TYPE_CHECKING:
    from dsh.base.json import JsonValue
    from dsh.kernel import Effect
    from dsh.state.storage.domain.service import DomainFacility

_NAME: Final = re.compile(r"[a-z][a-z0-9_]*\Z")


class StorageError(DshError):
    """Anything about stored records."""

    code = "storage"


class InvalidStorageName(StorageError, ValueError):
    """A name cannot be part of file and table names."""

    code = "invalid-name"

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(
            f"{name!r} cannot name a {kind}: use lower-case letters, digits and underscores, "
            "beginning with a letter"
        )
        self.name = name


def check_name(kind: str, name: str) -> str:
    """Return a name that can be part of file and table names.

    Raises:
        InvalidStorageName: it cannot.
    """
    if not isinstance(name, str) or not _NAME.match(name):
        raise InvalidStorageName(kind, name)
    return name


def backend_key(name: str) -> str:
    """Return the service key that is there for as long as a backend is."""
    return f"storage.backend.{name}"


def record_key(key: str) -> str:
    """Return the one spelling of a record's key that survives storage.

    Any string is a key. The two halves of a surrogate pair are the character that every reader
    of the medium makes of them.
    """
    if key.isascii():
        return key
    return key.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


@value
class UnitDescriptor:
    """What one owner keeps: its name, the version of its records, its tables.

    Attributes:
        name: Names the file, or the tables.
        version: Records of another version are refused.
        tables: The names of the tables.
        has_global: Whether there is one more value beside the tables.
    """

    name: str
    version: int
    tables: tuple[str, ...] = ()
    has_global: bool = False

    def __post_init__(self) -> None:
        check_name("storage unit", self.name)
        for table in self.tables:
            check_name("table", table)
        if type(self.version) is not int or self.version < 0:
            raise ValueError(f"the version of {self.name!r} is {self.version!r}, not 0 or above")


@value
class UnitContent:
    """All that a unit holds.

    Attributes:
        tables: The records of each table of the descriptor.
        global_value: The global value; ``None`` when there is none.
    """

    tables: Mapping[str, Mapping[str, JsonValue]]
    global_value: JsonValue = None


class KvUnit(ABC):
    """An open unit. Each write is atomic, and durable on return.

    After a failed write the medium holds what it held before. Writes do not wait for each other:
    whoever needs an order awaits one before asking for the next.
    """

    @abstractmethod
    async def load_all(self) -> UnitContent:
        """Return everything.

        Raises:
            MalformedMedium: it cannot be read.
            StorageClosed: the unit is closed.
        """

    @abstractmethod
    async def put_record(self, table: str, key: str, value: JsonValue) -> None:
        """Store a record in the place of an earlier one.

        Raises:
            StorageClosed: the unit is closed.
            OSError: what the operating system says.
        """

    @abstractmethod
    async def delete_record(self, table: str, key: str) -> None:
        """Remove a record; harmless when it is not there.

        Raises:
            StorageClosed: the unit is closed.
            OSError: what the operating system says.
        """

    @abstractmethod
    async def set_global(self, value: JsonValue) -> None:
        """Store the global value.

        Raises:
            StorageClosed: the unit is closed.
            OSError: what the operating system says.
        """

    @abstractmethod
    async def close(self) -> None:
        """Let others open the unit; harmless when repeated."""


class KvFacet(ABC):
    """The part of a backend that keeps records by key."""

    @abstractmethod
    async def open(self, descriptor: UnitDescriptor) -> KvUnit:
        """Open a unit; one of which nothing is stored is empty.

        Raises:
            UnitOpen: it is open already.
            VersionMismatch: its records are of another version; they are untouched.
            MalformedMedium: they cannot be read; they are untouched.
            OSError: what the operating system says.
        """

    @abstractmethod
    async def discard(self, name: str) -> None:
        """Put aside what is stored of a unit, readable or not, so that it opens empty.

        Raises:
            UnitOpen: it is open.
            OSError: what the operating system says.
        """


class StorageBackend:
    """A medium.

    Attributes:
        kv: Keeps records; ``None`` when this medium cannot.
    """

    kv: KvFacet | None = None

    async def close(self) -> None:
        """End the medium; its units are closed."""


class Storage(Service, ABC):
    """The backends of this process, and the forms in which plugins use them."""

    name: ClassVar[str] = "storage"

    @abstractmethod
    def register(self, name: str, backend: StorageBackend) -> Effect:
        """Offer a backend until the calling plugin unloads.

        The plugin also provides `backend_key` of the name, so that those who use the backend
        unload before it ends.

        Raises:
            DuplicateBackend: the name is taken.
            InvalidStorageName: the name cannot be one.
        """

    @abstractmethod
    def backend(self, name: str) -> StorageBackend:
        """Return a backend.

        Raises:
            BackendNotFound: nobody registered it.
        """

    @abstractmethod
    def backend_names(self) -> list[str]:
        """Return the names of the backends, in the order they came."""

    @abstractmethod
    def mount(self, form: str, facility: object) -> Effect:
        """Offer a form until the calling plugin unloads.

        Raises:
            DuplicateMount: another plugin offers it.
        """

    @abstractmethod
    def form(self, name: str) -> Any:
        """Return what offers a form; its type is the form's own.

        Raises:
            FormNotMounted: nobody offers it.
        """

    @property
    @abstractmethod
    def domain(self) -> DomainFacility:
        """The form ``domain``.

        Raises:
            FormNotMounted: nobody offers it.
        """
