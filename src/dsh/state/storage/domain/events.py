"""Bus events of storage domains."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from dsh.base.values import value
from dsh.kernel import Emit

if TYPE_CHECKING:
    from dsh.base.json import JsonValue

__all__ = ["DOMAIN_CHANGED", "DomainChanged"]


@value
class DomainChanged:
    """A record changed, and the change is durable.

    Attributes:
        domain: The domain.
        table: The table; empty for the global value.
        key: The record; empty for the global value.
        operation: Whether it was stored or removed.
        value: What is stored now; ``None`` after a removal.
    """

    domain: str
    table: str
    key: str
    operation: Literal["put", "deleted"]
    value: JsonValue = None


DOMAIN_CHANGED: Final = Emit[DomainChanged]("domain/changed", errors="contain")
"""From a domain, after the write; failures of listeners do not reach the writer."""
