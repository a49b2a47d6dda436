"""Which tools a step counts on: they are waited for before it, and kept loaded until its end."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

from dsh.base.changes import Changes, loop_time
from dsh.kernel import FiberState, InactiveEffect, scope_chain

if TYPE_CHECKING:
    from dsh.base.signal import AbortSignal
    from dsh.execution.tools.registry import Registered, ToolLayers
    from dsh.kernel import Fiber

SWAP_WAIT_S: Final = 1.0
"""How long a step may wait for tools whose plugin is being swapped, before it goes on without."""


class Holds:
    """The tools that are counted on now, and the leases on their plugins."""

    def __init__(self, layers: ToolLayers) -> None:
        self._layers = layers
        self._promised: list[tuple[tuple[str, ...], object | None]] = []

    @contextmanager
    def of(
        self, names: Iterable[str], scope: object | None, owner: Fiber | None
    ) -> Iterator[tuple[str, ...]]:
        """See `ToolRuntime.hold`."""
        promised = tuple(dict.fromkeys(names))
        promise = (promised, scope)
        self._promised.append(promise)
        try:
            with ExitStack() as leases:
                lost: list[str] = []
                for fiber, tools in self._plugins(promised, scope).items():
                    label = f"a step with the tools {', '.join(tools)}"
                    if fiber is None:
                        lost += [name for name in tools if self._layers.swaps.awaits(name, scope)]
                    elif not _take(leases, fiber.lease(label, owner=owner)):
                        lost += tools
                yield tuple(lost)
        finally:
            self._promised.remove(promise)

    def is_promised(self, name: str, scope: object | None) -> bool:
        """Whether a tool was there when a step of this scope began that has not ended yet."""
        return any(scope is whose and name in names for names, whose in self._promised)

    def _plugins(self, names: Iterable[str], scope: object | None) -> dict[Fiber | None, list[str]]:
        """Return the tools of each plugin; under None those that are not there."""
        plugins: dict[Fiber | None, list[str]] = {}
        seen = self._layers.visible_entries(scope)
        for name in names:
            found = seen.get(name)
            fiber = None if found is None else found.ctx.fiber
            plugins.setdefault(fiber, []).append(name)
        return plugins


def _take(leases: ExitStack, lease: AbstractContextManager[None]) -> bool:
    try:
        leases.enter_context(lease)
    except InactiveEffect:
        return False
    return True


class Swaps:
    """Tools that went with their plugin a moment ago, and may be back in another.

    Args:
        wait_s: How long a step waits for them at most.
    """

    def __init__(self, wait_s: float = SWAP_WAIT_S) -> None:
        self.wait_s = wait_s
        self._lost: dict[int, _Lost] = {}
        self._changes = Changes()

    def registered(self, name: str, scope: object | None) -> None:
        """Note that a tool is there."""
        lost = self._lost.get(id(scope))
        if lost is not None:
            lost.since.pop(name, None)
        self._changes.announce()

    def removed(self, name: str, scope: object | None, entry: Registered) -> None:
        """Note that a tool is gone; only if its plugin is unloading, it may come back."""
        if entry.ctx.fiber.state is FiberState.UNLOADING:
            self._lost_in(scope).since[name] = loop_time()
        self._changes.announce()

    async def settle(
        self, layers: ToolLayers, scope: object | None, signal: AbortSignal | None
    ) -> None:
        """See `ToolRuntime.settle`."""
        if not self._is_moving(layers, scope):
            return
        deadline = loop_time() + self.wait_s
        while (left := deadline - loop_time()) > 0 and self._is_moving(layers, scope):
            if signal is not None:
                signal.throw_if_aborted()
            await self._changes.next(left, signal)

    def awaits(self, name: str | None, scope: object | None) -> bool:
        """Whether a scope lost a tool of this name, or any, that may be back soon."""
        if not self._lost:
            return False
        oldest = loop_time() - self.wait_s
        for each in (None, *scope_chain(scope)):
            lost = self._lost.get(id(each))
            if lost is not None and lost.awaits(name, oldest):
                return True
        return False

    def _is_moving(self, layers: ToolLayers, scope: object | None) -> bool:
        return self.awaits(None, scope) or any(
            entry.is_leaving for entry in layers.visible_entries(scope).values()
        )

    def _lost_in(self, scope: object | None) -> _Lost:
        number = id(scope)
        lost = self._lost.get(number)
        if lost is None:
            lost = self._lost[number] = _Lost()
            if scope is not None:
                # Held weakly: whoever owned the scope has most likely gone with its tools.
                lost.scope = weakref.ref(scope, lambda _: self._lost.pop(number, None))
        return lost


class _Lost:
    """The tools that one scope lost, by name, with the time of the loop."""

    __slots__ = ("scope", "since")

    def __init__(self) -> None:
        self.scope: weakref.ref[object] | None = None
        self.since: dict[str, float] = {}

    def awaits(self, name: str | None, oldest: float) -> bool:
        """Whether one of this name, or any, went after ``oldest``; older ones are forgotten."""
        self.since = {each: time for each, time in self.since.items() if time > oldest}
        return bool(self.since) if name is None else name in self.since
