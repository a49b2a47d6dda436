"""Which rows are in transition, and who waits until none is."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import suppress
from contextvars import copy_context
from typing import TYPE_CHECKING, Final

from dsh.kernel import Fiber, FiberState, live_frames
from dsh.loader.entry import Entry
from dsh.loader.errors import EntryError

if TYPE_CHECKING:
    from dsh.loader.loader import Loader

_log = logging.getLogger("dsh.loader")
_MOST_ROUNDS: Final = 1_000
_MOVING: Final = (FiberState.LOADING, FiberState.UNLOADING)
_RUNS: Final = (FiberState.LOADING, FiberState.ACTIVE)


class Loading:
    """Knows when the rows of a loader have come to rest."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._recheck: asyncio.Task[None] | None = None
        self._overdue: set[Fiber] = set()
        # Nobody waits for what is begun in it.
        self._context = copy_context()

    def may_start(self, fiber: Fiber) -> bool:
        """Whether a plugin that waits for the others may start; if not, it is asked again.

        Once it runs it goes on: rows that load later are none of its business. Rows that wait
        for services count as loaded.
        """
        if fiber.state in _RUNS:
            return True
        if not self._loader.queue.busy and not self._moving(around=fiber):
            return True
        if self._recheck is None or self._recheck.done():
            self._recheck = self._loader.ctx.spawn(self._check_again(), "loader: check again")
        return False

    def is_overdue(self, entry: Entry) -> bool:
        """Whether a row has been in transition for so long that nothing waits for it any more."""
        return entry.fiber in self._overdue

    def note_overdue(self, entry: Entry, fiber: Fiber, waited_s: float) -> None:
        """Tell that nothing waits for a row's plugin any more, until that has come to rest."""
        if fiber in self._overdue:
            return
        self._overdue.add(fiber)
        _log.warning(
            'row "%s" (%s) is still %s after %g s, and is not waited for any longer; if it never '
            "ends, correct its plugin, or disable or remove the row",
            entry.full_id,
            entry.name,
            fiber.state.label,
            waited_s,
        )
        self._context.copy().run(
            self._loader.ctx.spawn, self._forget_overdue(fiber), "loader: overdue row"
        )

    async def _forget_overdue(self, fiber: Fiber) -> None:
        try:
            with suppress(Exception):
                await fiber
        finally:
            self._overdue.discard(fiber)

    async def quiesce(self) -> None:
        """See `Loader.quiesce`."""
        # Bounded: a fiber whose driver died stays in between for ever.
        for _ in range(_MOST_ROUNDS):
            moving = self._moving()
            await _settle(moving)
            if (again := self._recheck) is not None and not again.done():
                await asyncio.wait([again])
            elif not moving:
                return
            await asyncio.sleep(0)

    async def _check_again(self) -> None:
        await self._loader.queue.idle()
        await _settle(self._moving())
        self._recheck = None
        self._loader.refresh()

    def _moving(self, around: Fiber | None = None) -> list[Entry]:
        """Return the rows in transition, without those around a fiber or the calling code."""
        inside = set(_ancestry(around))
        for frame in live_frames():
            inside.update(_ancestry(frame.fiber))
        return [
            entry
            for entry in self._loader.entries()
            if entry.fiber is not None
            and entry.fiber.state in _MOVING
            and entry.fiber not in inside
            and entry.fiber not in self._overdue
        ]


async def _settle(entries: list[Entry]) -> None:
    since = asyncio.get_running_loop().time()
    for entry in entries:
        with suppress(EntryError):
            await entry.settle(since)


def _ancestry(fiber: Fiber | None) -> Iterator[Fiber]:
    while fiber is not None:
        yield fiber
        fiber = fiber.parent_fiber
