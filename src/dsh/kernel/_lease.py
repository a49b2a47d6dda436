"""Leases: work in flight through a plugin, which its unload lets end first.

A lease knows the plugin whose teardown would end the work, and whoever joins a transition is
known by the leases it holds; so an unload never waits for work that waits for that unload.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from dsh.kernel._drain import Drain
from dsh.kernel._stack import current_lease, current_owner, held_leases, reaches, set_lease
from dsh.kernel.errors import InactiveEffect, LeaseExpired
from dsh.kernel.states import DISPOSED, UNLOADING

if TYPE_CHECKING:
    from types import TracebackType

    from dsh.kernel.fiber import Fiber

LEASE_GRACE_S: Final = 10.0
"""How long an unload waits for the work in flight through its plugin."""


class Lease:
    """Work in flight through a plugin while entered, once; see ``Fiber.lease``."""

    __slots__ = ("aside", "fiber", "label", "outer", "owner")

    def __init__(self, fiber: Fiber, label: str, owner: Fiber | None) -> None:
        self.fiber: Fiber | None = fiber
        self.label = label
        self.owner = owner
        self.outer: Lease | None = None
        self.aside = 0

    def __enter__(self) -> None:
        fiber = self.fiber
        if fiber is None:
            raise RuntimeError(f"lease {self.label!r} is over; take another one")
        if fiber.uid is None or fiber.state in {UNLOADING, DISPOSED}:
            raise InactiveEffect(fiber.title, fiber.state.label)
        if self.owner is None:
            self.owner = current_owner()
        self.outer = current_lease()
        if fiber._leases is None:
            fiber._leases = {}
        fiber._leases[self] = None
        set_lease(self)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        fiber, self.fiber, self.owner = self.fiber, None, None
        set_lease(current_lease())
        leases = fiber._leases if fiber is not None else None
        if fiber is None or leases is None:
            return
        leases.pop(self, None)
        if not leases:
            fiber._leases = None
        fiber.wake_drain()


async def wait_for_leases(fiber: Fiber) -> None:
    """Wait until no work is in flight that can end before this, and not longer than the grace."""
    kernel = fiber.kernel
    if not _counting(fiber):
        return
    loop = asyncio.get_running_loop()
    wait = Drain()
    expired = False

    def expire() -> None:
        nonlocal expired
        expired = True
        wait.look_again()

    timer = loop.call_later(kernel.lease_grace_s, expire)
    try:
        with wait.of(fiber):
            while (left := _counting(fiber)) and not expired:
                wait.wake = loop.create_future()
                await wait.wake
    finally:
        timer.cancel()
    if left:
        error = LeaseExpired(fiber.title, [lease.label for lease in left], kernel.lease_grace_s)
        kernel.report(error, fiber, "lease")


@contextmanager
def standing_aside() -> Iterator[None]:
    """Keep no unload waiting for the current code, while it waits for what may wait for that.

    For waits that the kernel cannot see, as in a queue of changes to the tree.
    """
    leases = held_leases()
    for lease in leases:
        lease.aside += 1
        if lease.fiber is not None:
            lease.fiber.wake_drain()
    try:
        yield
    finally:
        for lease in leases:
            lease.aside -= 1


def _counting(fiber: Fiber) -> list[Lease]:
    """The leases whose work can end while this fiber waits."""
    return [lease for lease in fiber._leases or () if _can_end(lease, fiber)]


def _can_end(lease: Lease, fiber: Fiber) -> bool:
    if lease.aside:
        return False
    for join in fiber.kernel.joins:
        joined = join.target
        if lease in join.leases and (joined is fiber or reaches(joined, fiber)):
            return False
    owner = lease.owner
    while owner is not None:
        if owner.state is UNLOADING:
            # its unload ends the work, unless that waits for this fiber itself
            return not reaches(owner, fiber)
        owner = owner.parent_fiber
    return True
