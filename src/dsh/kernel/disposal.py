"""Requested undos, and how effects are described."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator
from typing import TYPE_CHECKING, Any, NamedTuple

from dsh.kernel._shapes import Handle
from dsh.kernel._stack import join_fiber, join_undo, wait_task
from dsh.kernel.events import INTERNAL_JOIN, DisposalJoined

if TYPE_CHECKING:
    from dsh.kernel.effect import Effect
    from dsh.kernel.fiber import Fiber


class EffectInfo(NamedTuple):
    """A live, labelled effect and the labelled effects collected into it."""

    label: str
    children: tuple[EffectInfo, ...] = ()

    def __str__(self) -> str:
        inner = f" ({', '.join(map(str, self.children))})" if self.children else ""
        return self.label + inner


class Disposal(Handle, Awaitable[None]):
    """An undo that was requested; awaiting it joins what is left of it, and never is a must."""

    __slots__ = ("_effect", "_fiber", "_task")

    def __init__(
        self,
        *,
        fiber: Fiber | None = None,
        effect: Effect | None = None,
        task: asyncio.Task[None] | None = None,
    ) -> None:
        self._fiber = fiber
        self._effect = effect
        self._task = task

    @property
    def done(self) -> bool:
        """Whether nothing is left to wait for."""
        if self._fiber is not None:
            return self._fiber._driver is None
        return self._task is None or self._task.done()

    def __await__(self) -> Generator[Any, None, None]:
        return self._join().__await__()

    async def _join(self) -> None:
        if self._fiber is not None:
            hub = self._fiber.kernel.hub
            if hub.listens(INTERNAL_JOIN.name):
                hub.emit(INTERNAL_JOIN, DisposalJoined(self._fiber))
            await join_fiber(self._fiber)
        elif self._task is not None:
            if self._effect is not None:
                await join_undo(self._effect, self._task)
            else:
                await wait_task(self._task)


SETTLED = Disposal()
