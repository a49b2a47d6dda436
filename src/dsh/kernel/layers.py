"""Registries with one layer for everybody and one for each scope.

A scoped view sees the global layer and those of its ancestors below its own; a nearer entry
shadows one of the same name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from dsh.kernel.scope import ScopeKey, scope_of, scope_parent_of

if TYPE_CHECKING:
    from dsh.kernel.context import Context
    from dsh.kernel.effect import Effect

V = TypeVar("V")
N = TypeVar("N")


class Layer(Protocol):
    """What a layer must tell: whether it can be dropped."""

    def is_empty(self) -> bool:
        """Whether nothing is registered in it."""


L = TypeVar("L", bound=Layer)


class NamedEntries(Generic[V]):
    """Values by unique name, in the order they were inserted.

    Args:
        duplicate: Makes the error for a name that is taken.
    """

    __slots__ = ("_count", "_duplicate", "_entries", "_generation")

    def __init__(self, duplicate: Callable[[str], Exception]) -> None:
        self._duplicate = duplicate
        self._entries: dict[str, tuple[int, V]] = {}
        self._count = 0
        self._generation = 0

    def insert(self, name: str, value: V) -> Callable[[], None]:
        """Add a value; the returned undo removes this very entry, and only once.

        Raises:
            Exception: what ``duplicate`` makes, when the name is taken.
        """
        if name in self._entries:
            raise self._duplicate(name)
        self._count += 1
        entry = (self._count, value)
        self._entries[name] = entry

        def undo() -> None:
            if self._entries.get(name) is entry:
                del self._entries[name]
                if not self._entries:
                    self._generation += 1

        return undo

    def get(self, name: str) -> V | None:
        """Return a value by name."""
        entry = self._entries.get(name)
        return None if entry is None else entry[1]

    def has(self, name: str) -> bool:
        """Whether a name is taken."""
        return name in self._entries

    def keys(self) -> list[str]:
        """The names, oldest first."""
        return list(self._entries)

    def values(self) -> list[V]:
        """The values, oldest first."""
        return [entry[1] for entry in self._entries.values()]

    def entries(self) -> list[tuple[str, V]]:
        """Names with values, oldest first."""
        return [(name, entry[1]) for name, entry in self._entries.items()]

    def live(self) -> Iterator[tuple[str, V]]:
        """Names with values, oldest first, following changes made meanwhile.

        What is removed before its turn is left out, what is added comes last. The iteration ends
        for good when nothing is left: what is registered then belongs to a later time.
        """
        generation, done = self._generation, 0
        while fresh := [item for item in self._entries.items() if item[1][0] > done]:
            for name, entry in fresh:
                done = entry[0]
                if self._entries.get(name) is entry:
                    yield name, entry[1]
                if self._generation != generation:
                    return

    def is_empty(self) -> bool:
        """Whether nothing is registered."""
        return not self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self._entries)


class AnonymousEntries(Generic[V]):
    """Values in the order they were appended; equal values stay separate entries."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: dict[object, V] = {}

    def append(self, value: V) -> Callable[[], None]:
        """Add a value; the returned undo removes this very entry, and only once."""
        token = object()
        self._entries[token] = value

        def undo() -> None:
            self._entries.pop(token, None)

        return undo

    def values(self) -> list[V]:
        """The values, oldest first."""
        return list(self._entries.values())

    def is_empty(self) -> bool:
        """Whether nothing is registered."""
        return not self._entries

    def __len__(self) -> int:
        return len(self._entries)


class ScopedLayers(Generic[L]):
    """One global layer, and one for each scope in which something is registered.

    Args:
        create_layer: Makes an empty layer.
        on_change: Called after each registration and removal, unless that asked for silence.

    Attributes:
        global_: What is registered outside of any scope.
    """

    __slots__ = ("_create", "_layers", "_on_change", "global_")

    def __init__(
        self, create_layer: Callable[[], L], on_change: Callable[[], object] | None = None
    ) -> None:
        self._create = create_layer
        self._on_change = on_change
        self.global_ = create_layer()
        self._layers: dict[int, tuple[ScopeKey, L]] = {}

    def peek(self, key: ScopeKey | None) -> L | None:
        """Return the layer of exactly this scope; the global one for None."""
        if key is None:
            return self.global_
        entry = self._layers.get(id(key))
        return None if entry is None else entry[1]

    def chain_layers(self, key: ScopeKey | None) -> list[L]:
        """Return the layers of a scope and its ancestors, farthest first, without the global."""
        found: list[L] = []
        while key is not None:
            entry = self._layers.get(id(key))
            if entry is not None:
                found.append(entry[1])
            key = scope_parent_of(key)
        found.reverse()
        return found

    def merge(self, key: ScopeKey | None, pick: Callable[[L], NamedEntries[N]]) -> dict[str, N]:
        """Return what a scope sees by name: global first, then the chain, the nearest wins."""
        merged: dict[str, N] = {}
        for layer in (self.global_, *self.chain_layers(key)):
            merged.update(pick(layer).entries())
        return merged

    def effect(
        self,
        ctx: Context,
        action: Callable[[L], Callable[[], object]],
        label: str = "anonymous",
        notify: bool = True,
    ) -> Effect:
        """Change the layer of a context's scope, as an effect of that context.

        Args:
            ctx: Decides both who sees the entry and who owns it.
            action: Registers in the layer and returns the undo.
            label: The effect's label.
            notify: Call ``on_change`` after the change and after its undo.
        """
        key = scope_of(ctx)

        def setup() -> Iterator[Callable[[], object]]:
            if notify and self._on_change is not None:
                yield self._on_change
            layer = self._obtain(key)
            yield lambda: self._drop_if_empty(key)
            yield action(layer)
            if notify and self._on_change is not None:
                self._on_change()

        return ctx.effect(setup, label)

    def _obtain(self, key: ScopeKey | None) -> L:
        if key is None:
            return self.global_
        entry = self._layers.get(id(key))
        if entry is None:
            entry = self._layers[id(key)] = (key, self._create())
        return entry[1]

    def _drop_if_empty(self, key: ScopeKey | None) -> None:
        layer = self.peek(key)
        if key is not None and layer is not None and layer.is_empty():
            del self._layers[id(key)]
