"""Giving an active fiber another config."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator
from typing import TYPE_CHECKING, Any

from dsh.kernel._hub import Listener
from dsh.kernel._shapes import Handle
from dsh.kernel._stack import join_fiber
from dsh.kernel._waterfall import run_waterfall
from dsh.kernel.events import (
    INTERNAL_JOIN,
    INTERNAL_UPDATE,
    DisposalJoined,
    UpdateRequested,
)

if TYPE_CHECKING:
    from dsh.kernel.fiber import Fiber


class Transition(Handle, Awaitable[Any]):
    """A restart or update that was requested; awaiting it waits and raises what failed."""

    __slots__ = ("_fiber", "_work")

    def __init__(self, fiber: Fiber, work: asyncio.Task[Any] | None = None) -> None:
        self._fiber = fiber
        self._work = work

    def __await__(self) -> Generator[Any, None, Any]:
        return self._join().__await__()

    async def _join(self) -> Any:
        hub = self._fiber.kernel.hub
        if hub.listens(INTERNAL_JOIN.name):
            hub.emit(INTERNAL_JOIN, DisposalJoined(self._fiber))
        await join_fiber(self._fiber, self._work)
        result = None if self._work is None else self._work.result()
        await self._fiber.wait()
        return result


def update_active(fiber: Fiber, config: Any, no_save: bool) -> Transition:
    """Validate, then let listeners decide whether the fiber restarts; see ``Fiber.update``."""
    resolved = fiber.resolve_config(config)
    fiber.raw_config = config
    request = UpdateRequested(fiber, resolved, no_save)

    def inner() -> Awaitable[Any]:
        fiber.config = request.config
        return fiber.restart()

    listeners = _listeners(fiber)
    if not listeners:
        inner()
        return Transition(fiber)
    # not an effect of this fiber: its unload, which the inner part awaits, would wait for it
    changing = run_waterfall(INTERNAL_UPDATE.name, listeners, request, inner)
    work = fiber.kernel.start_work(changing, "update")
    return Transition(fiber, work)


def _listeners(fiber: Fiber) -> list[Listener]:
    slot = fiber.kernel.hub.slots.get(INTERNAL_UPDATE.name)
    if slot is None:
        return []
    every = slot.snapshot()
    first = [item for item in every if item.everywhere and item.prepend]
    own = [item for item in every if not item.everywhere and item.ctx.fiber is fiber]
    last = [item for item in every if item.everywhere and not item.prepend]
    return [*first, *own, *last]
