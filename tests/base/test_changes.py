from __future__ import annotations

import asyncio

from dsh.base.changes import Changes
from dsh.base.signal import AbortController


async def test_a_change_wakes_all_that_wait() -> None:
    changes = Changes()
    waiting = [asyncio.create_task(changes.next(3600)) for _ in range(2)]
    await asyncio.sleep(0)
    assert changes.waiting == 2

    changes.announce()
    changes.announce()
    await asyncio.gather(*waiting)

    assert changes.waiting == 0


async def test_a_wait_ends_with_its_time() -> None:
    changes = Changes()
    await changes.next(0.001)
    assert changes.waiting == 0


async def test_a_wait_ends_with_its_signal() -> None:
    changes, abort = Changes(), AbortController()
    waiting = asyncio.create_task(changes.next(3600, abort.signal))
    await asyncio.sleep(0)
    abort.abort("enough")
    await waiting
    await changes.next(3600, abort.signal)
    assert changes.waiting == 0


async def test_a_wait_that_is_cancelled_leaves_nothing() -> None:
    changes = Changes()
    waiting = asyncio.create_task(changes.next(3600))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert changes.waiting == 0
