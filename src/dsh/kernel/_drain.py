"""Waiting for dependants: a provider unloads only after they let go of its services.

The wait for leases at the start of an unload is one of the same kind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dsh.kernel._stack import is_ancestor, reaches

if TYPE_CHECKING:
    from dsh.kernel._services import Binding
    from dsh.kernel.fiber import Fiber


class Drain:
    """One wait of an unload: which dependants are left, and what wakes the waiter."""

    __slots__ = ("left", "wake")

    def __init__(self) -> None:
        self.left: dict[Fiber, None] = {}
        self.wake: asyncio.Future[None] | None = None

    @contextmanager
    def of(self, fiber: Fiber) -> Iterator[None]:
        """Be known as a wait of a fiber, so that it is woken when a circle may have closed."""
        if fiber._drains is None:
            fiber._drains = []
        fiber._drains.append(self)
        fiber.kernel.recheck_waits()
        fiber.kernel.draining[fiber] = None
        try:
            yield
        finally:
            fiber._drains.remove(self)
            if not fiber._drains:
                fiber._drains = None
                fiber.kernel.draining.pop(fiber, None)

    def look_again(self) -> None:
        """Wake the waiter."""
        if self.wake is not None and not self.wake.done():
            self.wake.set_result(None)

    def released(self, holder: Fiber) -> None:
        """Note that a dependant let go; the last one wakes the waiter."""
        self.left.pop(holder, None)
        if not self.left:
            self.look_again()


async def drain(fiber: Fiber, bindings: Sequence[Binding]) -> None:
    """Wait until every dependant that loaded against the bindings let go of them.

    Dependants that cannot (the owner itself, its ancestors, and whoever waits for this very
    disposal) are released.
    """
    if not any(binding.holders for binding in bindings):
        return
    bindings = tuple(bindings)
    wait = Drain()
    released: set[Fiber] = set()
    with wait.of(fiber):
        while _find_holders(fiber, bindings, wait, released):
            wait.wake = asyncio.get_running_loop().create_future()
            await wait.wake


def _find_holders(
    fiber: Fiber, bindings: Sequence[Binding], wait: Drain, released: set[Fiber]
) -> bool:
    wait.left.clear()
    held = {holder for binding in bindings for holder in binding.holders or ()}
    for holder in held - released:
        if holder is fiber or is_ancestor(holder, fiber):
            released.add(holder)
        elif reaches(holder, fiber):
            released.add(holder)
            fiber.kernel.note_release(fiber, holder)
        else:
            wait.left[holder] = None
    return bool(wait.left)
