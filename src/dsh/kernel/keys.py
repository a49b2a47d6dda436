"""Keys: what names a service, a piece of context data, or a service scope."""

from __future__ import annotations

from typing import Any, Generic, TypeVar, final

T = TypeVar("T")


@final
class ServiceKey(Generic[T]):
    """Types a service that has no class of its own; the name is the key."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"ServiceKey({self.name!r})"


@final
class ContextKey(Generic[T]):
    """Names data that a context carries and its children inherit; compared by identity."""

    __slots__ = ("default", "name")

    def __init__(self, name: str, default: T | None = None) -> None:
        self.name = name
        self.default = default

    def __repr__(self) -> str:
        return f"ContextKey({self.name!r})"


@final
class Label:
    """One scope of a service name: contexts with the same label share the service."""

    __slots__ = ("name",)

    def __init__(self, name: str = "") -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"Label({self.name!r})"


AGENT: ContextKey[Any] = ContextKey("agent")
"""Who a context belongs to; ``ctx.agent`` reads it and is ``None`` on a plain context."""


def service_name(key: object) -> str:
    """Return the service name behind a string, a ``ServiceKey`` or a service class.

    Raises:
        TypeError: the key has no usable name.
    """
    if isinstance(key, str):
        return key
    name = getattr(key, "name", None)
    if isinstance(name, str) and name:
        return name
    raise TypeError(f"{key!r} is not a service key: expected a name or a class with a name")
