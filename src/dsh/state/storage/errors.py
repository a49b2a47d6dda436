"""What can be wrong with stored records; the codes are those of the shared vocabulary."""

from __future__ import annotations

from dsh.state.storage.service import StorageError


class BackendNotFound(StorageError, LookupError):
    """No backend has this name."""

    code = "backend-not-found"

    def __init__(self, name: str, known: list[str]) -> None:
        there = f"registered are: {', '.join(known)}" if known else "none is registered"
        super().__init__(f"no storage backend is called {name!r}; {there}")
        self.name = name


class FormNotMounted(StorageError, LookupError):
    """Nobody offers this way of storing."""

    code = "form-not-mounted"

    def __init__(self, form: str) -> None:
        super().__init__(f"nobody offers the storage form {form!r}; add the row storage-{form}")
        self.form = form


class DuplicateBackend(StorageError, ValueError):
    """The name of a backend is taken."""

    code = "duplicate-backend"

    def __init__(self, name: str) -> None:
        super().__init__(f"a storage backend called {name!r} is registered already")
        self.name = name


class DuplicateMount(StorageError, ValueError):
    """The name of a form is taken."""

    code = "duplicate-mount"

    def __init__(self, form: str) -> None:
        super().__init__(f"the storage form {form!r} is offered by another plugin already")
        self.form = form


class UnitOpen(StorageError, RuntimeError):
    """A unit is open already; two holders would overwrite each other."""

    code = "already-open"

    def __init__(self, unit: str) -> None:
        super().__init__(f"the storage unit {unit!r} is open already; close it first")
        self.unit = unit


class VersionMismatch(StorageError, ValueError):
    """The records were written for another version of their owner; they are untouched."""

    code = "version-mismatch"

    def __init__(self, unit: str, *, place: str, found: object, wanted: int) -> None:
        direction = "newer" if isinstance(found, int) and found > wanted else "older"
        super().__init__(
            f"the records of {unit!r} in {place} are of version {found!r}, {direction} than the "
            f"{wanted} that this dsh reads; use the dsh that wrote them, or move them away"
        )
        self.unit, self.place, self.found, self.wanted = unit, place, found, wanted


class MalformedMedium(StorageError, ValueError):
    """What is stored cannot be read; it is untouched."""

    code = "malformed-medium"

    def __init__(self, unit: str, *, place: str, problem: str) -> None:
        super().__init__(
            f"the records of {unit!r} in {place} cannot be read: {problem}; repair the file, "
            "or move it away to begin anew"
        )
        self.unit, self.place, self.problem = unit, place, problem


class StorageClosed(StorageError, RuntimeError):
    """The unit, the domain or the backend takes nothing any more."""

    code = "closed"

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is closed")
        self.what = what


class DomainError(StorageError):
    """A domain refuses something.

    Attributes:
        table: The table it is about; empty for the global value.
        key: The record it is about; empty for the global value.
    """

    code = "domain"

    def __init__(self, message: str, *, table: str = "", key: str = "") -> None:
        super().__init__(message)
        self.table, self.key = table, key


class DomainOpen(DomainError, RuntimeError):
    """The domain is open already."""

    code = "already-open"

    def __init__(self, domain: str) -> None:
        super().__init__(f"the storage domain {domain!r} is open already; share it, or close it")
        self.domain = domain


class FacetUnsupported(DomainError, TypeError):
    """The backend of a domain cannot hold records."""

    code = "facet-unsupported"

    def __init__(self, domain: str, backend: str) -> None:
        super().__init__(
            f"the backend {backend!r} of the domain {domain!r} holds no records; route the domain "
            "to another one (routes of the row storage-domain)"
        )
        self.domain, self.backend = domain, backend


class InvalidRecord(DomainError, ValueError):
    """A record does not fit its schema."""

    code = "invalid-record"

    def __init__(self, domain: str, problem: str, *, table: str = "", key: str = "") -> None:
        where = f"record {key!r} of table {table!r}" if table else "the global value"
        super().__init__(
            f"{where} of the domain {domain!r} is invalid: {problem}", table=table, key=key
        )
        self.domain, self.problem = domain, problem


class MissingKey(DomainError, KeyError):
    """An update of a record that is not there."""

    code = "missing-key"

    def __init__(self, domain: str, *, table: str, key: str) -> None:
        super().__init__(
            f"table {table!r} of the domain {domain!r} has no record {key!r} to update",
            table=table,
            key=key,
        )
        self.domain = domain

    def __str__(self) -> str:
        return self.message  # KeyError would show its representation
