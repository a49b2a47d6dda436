"""Scopes: contexts that belong to someone, and routing of events to whom they concern.

A scope key is any object that can be weakly referenced, compared by identity; an agent is
its own key. Keys form chains: listeners of a parent hear its descendants, never the reverse.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from dsh.kernel.errors import ScopeError
from dsh.kernel.keys import ContextKey
from dsh.kernel.service import Service

if TYPE_CHECKING:
    from dsh.kernel.context import Context
    from dsh.kernel.disposal import Disposal
    from dsh.kernel.fiber import Fiber

ScopeKey: TypeAlias = object
SCOPE: ContextKey[ScopeKey] = ContextKey("dsh.scope")
"""The key of the nearest scope."""


class Scope:
    """A context of its own for a key; disposing of it undoes all that was registered on it."""

    __slots__ = ("ctx", "fiber", "key")

    def __init__(self, key: ScopeKey, fiber: Fiber) -> None:
        self.key = key
        self.fiber = fiber
        self.ctx = fiber.ctx

    def dispose(self) -> Disposal:
        """Request disposal; all who await it, now or later, join the same end."""
        return self.fiber.dispose()


class ScopeParentBinding:
    """The only way to link a key to another parent, for whoever linked it first."""

    __slots__ = ("__weakref__", "_child")

    def __init__(self, child: ScopeKey) -> None:
        self._child = weakref.ref(child)

    def rebind(self, parent: ScopeKey) -> None:
        """Link the key to another parent.

        Raises:
            ScopeError: the link would close a cycle.
        """
        child = self._child()
        if child is not None:
            _check_cycle(child, parent)
            _parents[id(child)] = (_weak(child), parent)
            Carrier.links += 1


_parents: dict[int, tuple[weakref.ref[object], ScopeKey]] = {}


def create_scope(ctx: Context, key: ScopeKey, parent: ScopeKey | None = None) -> Scope:
    """Mount an empty plugin whose context carries ``key``; usable at once.

    Args:
        ctx: Where; the scope goes when its plugin unloads.
        key: Whose scope it is.
        parent: Link the key to this parent first.

    Raises:
        ScopeError: the key has a parent already, or the link would close a cycle.
    """
    if parent is not None:
        bind_scope_parent(key, parent)
    return Scope(key, ctx.extend(meta={SCOPE: key}).plugin(_scope_body))


def scope_of(ctx: Context) -> ScopeKey | None:
    """Return the key of the nearest scope around a context."""
    return ctx[SCOPE]


def bind_scope_parent(child: ScopeKey, parent: ScopeKey) -> ScopeParentBinding:
    """Link a key to its parent, once.

    Raises:
        ScopeError: it has a parent already, or the link would close a cycle.
    """
    if scope_parent_of(child) is not None:
        raise ScopeError(f"scope {child!r} has a parent already; only its first binding may rebind")
    binding = ScopeParentBinding(child)
    binding.rebind(parent)
    return binding


def scope_parent_of(key: ScopeKey) -> ScopeKey | None:
    """Return the parent a key is linked to."""
    entry = _parents.get(id(key))
    return entry[1] if entry is not None and entry[0]() is key else None


def scope_chain(key: ScopeKey | None) -> list[ScopeKey]:
    """Return a key and its ancestors, nearest first; empty for None."""
    chain: list[ScopeKey] = []
    while key is not None:
        chain.append(key)
        key = scope_parent_of(key)
    return chain


class Carrier:
    """An opaque dispatch target that routes to one scope.

    Lets through listeners outside of any scope, and those whose scope is the key or one of its
    ancestors; the filter of ``base`` applies as well. Without a key only that filter applies.
    """

    __slots__ = ("__weakref__", "_accepts", "base", "key", "steady")

    links: ClassVar[int] = 0
    """How often any key was linked to a parent."""

    def __init__(self, base: object, key: ScopeKey | None) -> None:
        self.base = base
        self.key = key
        self._accepts = None if base is None else getattr(type(base), "accepts_listener", None)
        self.steady = self._accepts is None or _is_steady(base)
        """Whether it lets the same listeners through until some key is linked anew."""

    def accepts_listener(self, ctx: Context) -> bool:
        """See ``Context.emit``."""
        if self._accepts is not None and not self._accepts(self.base, ctx):
            return False
        scope = ctx[SCOPE]
        if scope is None or self.key is None or scope is self.key:
            return True
        above = scope_parent_of(self.key)
        while above is not None:
            if above is scope:
                return True
            above = scope_parent_of(above)
        return False


def _is_steady(base: object) -> bool:
    if isinstance(base, Carrier):
        return base.steady
    cls: Any = type(base)
    return cls.accepts_listener is Service.accepts_listener and cls.same_scope is Service.same_scope


def scope_target(base: object, key: ScopeKey | None) -> Carrier:
    """Return the dispatch target of a scope; ``base`` may be a target of its own, or None."""
    return Carrier(base, key)


def is_scope_carrier(value: object) -> bool:
    """Whether a dispatch target came from ``scope_target``."""
    return isinstance(value, Carrier)


def carrier_key_of(target: object) -> ScopeKey | None:
    """Return the key a carrier routes to; None for other targets."""
    return target.key if isinstance(target, Carrier) else None


def _scope_body(ctx: Context) -> None:
    """The empty plugin behind a scope."""


_scope_body.name = "scope"  # type: ignore[attr-defined]


def _check_cycle(child: ScopeKey, parent: ScopeKey) -> None:
    if any(key is child for key in scope_chain(parent)):
        raise ScopeError(f"scope {child!r} cannot be below {parent!r}, which is below it already")


def _weak(key: ScopeKey) -> weakref.ref[object]:
    number = id(key)

    def gone(ref: weakref.ref[object]) -> None:
        entry = _parents.get(number)
        if entry is not None and entry[0] is ref:
            del _parents[number]

    return weakref.ref(key, gone)
