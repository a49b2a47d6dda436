"""Records by name: what plugins keep beside the sessions."""

from dsh.state.storage.domain.events import DOMAIN_CHANGED, DomainChanged
from dsh.state.storage.domain.service import Domain, DomainFacility, DomainSpec, KvTable
from dsh.state.storage.errors import DomainError
from dsh.state.storage.service import (
    KvFacet,
    KvUnit,
    Storage,
    StorageBackend,
    StorageError,
    UnitContent,
    UnitDescriptor,
    backend_key,
)

__all__ = [
    "DOMAIN_CHANGED",
    "Domain",
    "DomainChanged",
    "DomainError",
    "DomainFacility",
    "DomainSpec",
    "KvFacet",
    "KvTable",
    "KvUnit",
    "Storage",
    "StorageBackend",
    "StorageError",
    "UnitContent",
    "UnitDescriptor",
    "backend_key",
]
