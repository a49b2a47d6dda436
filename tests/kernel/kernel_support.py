"""What the kernel's tests share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from dsh.kernel import Context, Fiber


@dataclass
class Reports:
    """The errors that a root contained, in order."""

    errors: list[BaseException] = field(default_factory=list)
    owners: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)

    def __call__(self, error: BaseException, owner: Fiber | None, label: str) -> None:
        self.errors.append(error)
        self.owners.append(owner.name if owner is not None else "")
        self.labels.append(label)

    @property
    def texts(self) -> list[str]:
        return [str(error) for error in self.errors]


async def ticks(count: int = 12) -> None:
    """Let the loop run what is ready."""
    for _ in range(count):
        await asyncio.sleep(0)


async def join(work: Awaitable[Any]) -> None:
    """Await something, as a coroutine."""
    await work


async def quiet(fiber: Fiber) -> None:
    """Wait until a fiber is settled, whatever became of it."""
    try:
        await fiber
    except Exception:
        return


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop run until a condition holds, within a bound."""
    for _ in range(20_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("the condition never held")


def provider(value: object, name: str = "foo") -> Callable[[Context], None]:
    """A plugin that provides one service."""

    def provide(ctx: Context) -> None:
        ctx.provide(name, value)

    return provide
