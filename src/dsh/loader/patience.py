"""How long a change of the tree waits for plugins: as long as they take, within reason.

A plugin whose setup or undo never ends must not hold up every later change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from dsh.base.signal import AbortSignal

SETTLE_GRACE_S: Final = 15.0
"""How long a change waits for a plugin to load or unload.

Longer than the kernel lets a setup run that nobody wants any more.
"""
START_GRACE_S: Final = 60.0
"""The same for the start of a host, for the rows that it cannot do without."""


async def wait_within(work: Awaitable[object], until: float, stop: AbortSignal | None) -> bool:
    """Wait for something that goes on by itself when it is not waited for any more.

    Args:
        work: What to wait for; cancelling the wait must leave it alone.
        until: The loop's time at which to give up.
        stop: Gives up when it aborts.

    Returns:
        Whether it has ended.
    """
    loop = asyncio.get_running_loop()
    limit = asyncio.timeout_at(until)

    def give_up() -> None:
        if not limit.expired():
            limit.reschedule(loop.time())

    try:
        async with limit:
            remove = stop.add_listener(give_up, now=True) if stop is not None else None
            try:
                await work
            finally:
                if remove is not None:
                    remove()
    except TimeoutError:
        # It may have raised one of its own.
        if not limit.expired():
            raise
        return False
    return True
