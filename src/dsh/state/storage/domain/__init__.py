"""Storage domains: typed tables that are read from memory and written through."""

from dsh.state.storage.domain.events import DOMAIN_CHANGED, DomainChanged
from dsh.state.storage.domain.service import (
    Domain,
    DomainFacility,
    DomainSpec,
    KvTable,
    Recovery,
    Schema,
)

__all__ = [
    "DOMAIN_CHANGED",
    "Domain",
    "DomainChanged",
    "DomainFacility",
    "DomainSpec",
    "KvTable",
    "Recovery",
    "Schema",
]
