"""Small questions about values: can it be awaited, entered, closed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager
from functools import partial
from types import CoroutineType
from typing import Any

from dsh.kernel.errors import InvalidEffect


class Handle:
    """Marks awaitables that stand for a registration or request; nobody must await them."""

    __slots__ = ()


def is_awaitable(value: object) -> bool:
    """Tell whether ``await value`` works."""
    return type(value) is CoroutineType or hasattr(type(value), "__await__")


def is_work(value: object) -> bool:
    """Tell whether a result that nobody waits for must be run, and owned while it runs."""
    return is_awaitable(value) and not isinstance(value, Handle)


def being_cancelled() -> bool:
    """Tell whether the current task is asked to stop, as at the end of a loop."""
    if asyncio._get_running_loop() is None:
        return False
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def enter_into(undos: list[Any], manager: AbstractContextManager[Any]) -> Any:
    """Enter a context manager and append its exit to ``undos``; the exit gets no exception."""
    value = manager.__enter__()
    undos.append(partial(manager.__exit__, None, None, None))
    return value


def is_fiber(value: object) -> bool:
    return getattr(type(value), "is_fiber", False)


def close(items: Iterator[Any]) -> None:
    close = getattr(items, "close", None)
    if close is not None:
        close()


async def aclose(items: AsyncIterator[Any]) -> None:
    close = getattr(items, "aclose", None)
    if close is not None:
        await close()


def resume(items: Iterator[Any], label: str) -> None:
    for item in items:
        close(items)
        raise InvalidEffect(f"{label}: second bare yield", item)


async def resume_async(items: AsyncIterator[Any], label: str) -> None:
    async for item in items:
        await aclose(items)
        raise InvalidEffect(f"{label}: second bare yield", item)


def close_coroutine(work: object) -> None:
    """Close a coroutine that has not begun; any other is left as it is."""
    if type(work) is CoroutineType and not work.cr_running and not work.cr_suspended:
        work.close()


def discard(value: Any) -> None:
    """Close a coroutine that will not be awaited."""
    close = getattr(value, "close", None)
    if close is not None:
        close()
