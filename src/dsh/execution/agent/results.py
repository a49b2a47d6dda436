"""Following what an operation returned, until the work behind it has settled."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextvars import Context
from inspect import CO_ITERABLE_COROUTINE
from types import GeneratorType, NoneType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from dsh.execution.agent.lazy import BoundAsyncGenerator, BoundCoroutine, BoundGenerator

if TYPE_CHECKING:
    from dsh.execution.agent.frames import Frame, Run

T = TypeVar("T")

_PLAIN: frozenset[type] = frozenset({NoneType, bool, int, float, str, bytes, dict, list, tuple})
"""Results that hold no work, recognised without asking abstract classes."""


def follow(result: T, frame: Frame, suspend: Callable[[Run], None]) -> T:
    """Keep a run active until its result has settled; return what the caller gets.

    Futures and tasks are returned as they are. A lazy object has not begun: its run is suspended,
    and what is returned stands in for it, step by step.
    """
    if type(result) in _PLAIN:
        frame.run.release()
    elif asyncio.isfuture(result):
        _release_with(result, frame.run)
    elif isinstance(result, concurrent.futures.Future):
        _release_with_thread(result, frame.run)
    elif (bound := _bind(result, frame)) is not None:
        suspend(frame.run)
        return cast("T", bound)
    else:
        frame.run.release()
    return result


def _bind(result: object, frame: Frame) -> object | None:
    if isinstance(result, Coroutine) or _is_generator_coroutine(result):
        return BoundCoroutine(cast("Coroutine[Any, Any, Any]", result), frame)
    if isinstance(result, AsyncGenerator):
        return BoundAsyncGenerator(result, frame)
    if isinstance(result, Generator):
        return BoundGenerator(result, frame)
    return None


def _is_generator_coroutine(value: object) -> bool:
    return isinstance(value, GeneratorType) and bool(value.gi_code.co_flags & CO_ITERABLE_COROUTINE)


def _release_with(future: asyncio.Future[Any], run: Run) -> None:
    def follow_home() -> None:
        # The context is empty: a callback must not keep the frames of whoever registers it.
        try:
            future.add_done_callback(lambda _: run.release(), context=Context())
        except Exception:
            run.release()

    try:
        if future.done():
            run.release()
            return
        home = future.get_loop()
        if home is _running_loop():
            follow_home()
        else:
            home.call_soon_threadsafe(follow_home, context=Context())
    except Exception:
        run.release()


def _release_with_thread(future: concurrent.futures.Future[Any], run: Run) -> None:
    try:
        future.add_done_callback(lambda _: run.release())
    except Exception:
        run.release()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
