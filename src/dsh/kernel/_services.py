"""Who provides which service name in which scope, and who depends on it."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from dsh.kernel._stray import as_failure
from dsh.kernel.errors import DuplicateService
from dsh.kernel.events import INTERNAL_SERVICE, ServiceChanged
from dsh.kernel.states import ACTIVE, UNLOADING

if TYPE_CHECKING:
    from dsh.kernel._root import RootState
    from dsh.kernel.context import Context
    from dsh.kernel.fiber import Fiber
    from dsh.kernel.keys import Label


class Binding:
    """One ``provide``: a value under a name and label, owned by a fiber.

    ``holders`` are the fibers that loaded against it and have not let go of it yet.
    """

    __slots__ = (
        "check",
        "generation",
        "holders",
        "label",
        "live",
        "name",
        "owner",
        "place",
        "table",
        "value",
    )

    def __init__(
        self,
        table: ServiceTable,
        name: str,
        ctx: Context,
        value: Any,
        check: Callable[[Context], bool] | None,
        generation: int,
    ) -> None:
        self.table = table
        self.name = name
        self.label = ctx.label_of(name)
        self.place = ctx._place
        self.value = value
        self.owner: Fiber = ctx.fiber
        self.check = check
        self.generation = generation
        self.live = True
        self.holders: dict[Fiber, None] | None = None

    def available(self, ctx: Context) -> bool:
        """Whether a dependant at ``ctx`` may load against it; a failing check says no."""
        if not self.live or self.owner.state is not ACTIVE:
            return False
        if self.check is None:
            return True
        try:
            return bool(self.check(ctx))
        except BaseException as error:
            label = f"check of service {self.name!r}"
            self.owner.kernel.report(as_failure(error, self.owner, label), self.owner, label)
            return False

    def hold(self, fiber: Fiber) -> None:
        """Note that a fiber loads against this."""
        if self.holders is None:
            self.holders = {}
        self.holders[fiber] = None

    def release(self, fiber: Fiber) -> None:
        """Note that a fiber finished its cleanup; a waiting owner goes on after the last one."""
        holders = self.holders
        if holders is None:
            return
        holders.pop(fiber, None)
        if not holders:
            self.holders = None
        for drain in self.owner._drains or ():
            drain.released(fiber)

    def withdraw(self) -> Awaitable[None] | None:
        """Take it back; returns the wait for dependants, unless the owner drained them already."""
        if not self.live:
            return None
        self.live = False
        self.table.remove(self)
        if self.owner.state is UNLOADING:
            return None
        self.table.notify(self.name, self.label)
        return self.owner.drain([self]) if self.holders else None


class ServiceTable:
    """The bindings of a root and the index of fibers that inject each name."""

    __slots__ = ("_bindings", "_generation", "_notifying", "_queue", "dependants", "kernel")

    def __init__(self, kernel: RootState) -> None:
        self.kernel = kernel
        self._bindings: dict[str, dict[Label | None, Binding]] = {}
        self._generation = 0
        self._queue: deque[tuple[str, Label | None]] = deque()
        self._notifying = False
        self.dependants: dict[str, dict[Fiber, None]] = {}

    def find(self, name: str, label: Label | None) -> Binding | None:
        """Return the binding of a name in one scope, whatever its owner's state."""
        scopes = self._bindings.get(name)
        return None if scopes is None else scopes.get(label)

    def scopes_of(self, name: str) -> list[Binding]:
        """Return the bindings of a name in all scopes."""
        return list(self._bindings.get(name, {}).values())

    def names(self) -> list[str]:
        """Return the names that are bound in any scope."""
        return list(self._bindings)

    def count(self) -> int:
        """Count all bindings."""
        return sum(map(len, self._bindings.values()))

    def add(
        self,
        name: str,
        ctx: Context,
        value: Any,
        check: Callable[[Context], bool] | None,
    ) -> Binding:
        """Bind a value in the scope that its name means at a context.

        Raises:
            DuplicateService: the name is taken in this scope.
        """
        binding = Binding(self, name, ctx, value, check, self._generation + 1)
        scopes = self._bindings.setdefault(name, {})
        if (taken := scopes.get(binding.label)) is not None:
            raise DuplicateService(name, taken.owner.title)
        self._generation += 1
        scopes[binding.label] = binding
        owner = ctx.fiber
        if owner._provided is None:
            owner._provided = []
        owner._provided.append(binding)
        return binding

    def relabel(self, binding: Binding, label: Label | None) -> None:
        """Let a binding go to another scope, whose slot is free; nobody is told."""
        scopes = self._bindings[binding.name]
        del scopes[binding.label]
        binding.label = label
        scopes[label] = binding

    def remove(self, binding: Binding) -> None:
        """Free a binding's name."""
        scopes = self._bindings.get(binding.name)
        if scopes is not None and scopes.get(binding.label) is binding:
            del scopes[binding.label]
            if not scopes:
                del self._bindings[binding.name]
        provided = binding.owner._provided
        if provided is not None:
            provided.remove(binding)
            if not provided:
                binding.owner._provided = None

    def watch(self, fiber: Fiber, name: str) -> None:
        """Tell a fiber about changes of a name."""
        found = self.dependants.get(name)
        if found is None:
            found = self.dependants[name] = {}
        found[fiber] = None

    def unwatch(self, fiber: Fiber, name: str) -> None:
        """End ``watch``."""
        found = self.dependants.get(name)
        if found is not None:
            found.pop(fiber, None)
            if not found:
                del self.dependants[name]

    def notify(self, name: str, label: Label | None) -> None:
        """Let dependants in one scope look again; nested changes are queued, not nested."""
        self._queue.append((name, label))
        if self._notifying:
            return
        self._notifying = True
        try:
            while self._queue:
                self._notify_one(*self._queue.popleft())
        finally:
            self._notifying = False

    def _notify_one(self, name: str, label: Label | None) -> None:
        hub = self.kernel.hub
        if hub.listens(INTERNAL_SERVICE.name):
            binding = self.find(name, label)
            shown = binding is not None and binding.owner.state is ACTIVE
            value = binding.value if binding is not None and shown else None
            hub.emit(INTERNAL_SERVICE, ServiceChanged(name, value), ScopeOf(name, label))
        dependants = self.dependants.get(name)
        if dependants:
            for fiber in tuple(dependants):
                if fiber.ctx.label_of(name) is label:
                    fiber.refresh()


class ScopeOf:
    """A dispatch target that lets listeners through whose label for a name is the given one."""

    __slots__ = ("label", "name")

    def __init__(self, name: str, label: Label | None) -> None:
        self.name = name
        self.label = label

    def accepts_listener(self, ctx: Context) -> bool:
        """See ``Context.emit``."""
        return ctx.label_of(self.name) is self.label
