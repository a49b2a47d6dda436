"""Waterfalls: listeners nested around an inner operation, each deciding whether to go on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from functools import partial
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from dsh.kernel._stray import as_failure, told_to_stop

if TYPE_CHECKING:
    from dsh.kernel._hub import Listener


def run_waterfall(
    name: str, listeners: Sequence[Listener], payload: Any, inner: Callable[[], Any]
) -> Any:
    """Call the first listener with a ``next`` for the rest; each ``next`` may be called again.

    Returns:
        An awaitable of the outermost result.
    """
    if not listeners:
        return _as_awaitable(inner)
    noted = _Inner(inner)
    run: Callable[[], Any] = noted
    for listener in reversed(listeners):
        run = partial(_as_awaitable, listener.call, payload, run)
    try:
        work = run()
    except Exception:
        raise
    except BaseException as error:
        raise noted.judge(error, name, listeners) from error
    return _outermost(work, noted, name, listeners)


def run_waterfall_sync(
    name: str, listeners: Sequence[Listener], payload: Any, inner: Callable[[], Any]
) -> Any:
    """The synchronous form of ``run_waterfall``."""
    if not listeners:
        return inner()
    noted = _Inner(inner)
    run: Callable[[], Any] = noted.call_sync
    for listener in reversed(listeners):
        run = partial(listener.call, payload, run)
    try:
        return run()
    except Exception:
        raise
    except BaseException as error:
        raise noted.judge(error, name, listeners) from error


async def _outermost(
    work: Awaitable[Any], noted: _Inner, name: str, listeners: Sequence[Listener]
) -> Any:
    try:
        return await work
    except Exception:
        raise
    except BaseException as error:
        if told_to_stop(error):
            raise
        raise noted.judge(error, name, listeners) from error


class _Inner:
    """The inner operation, with a note of what it raised: that is the dispatcher's own."""

    __slots__ = ("call", "raised")

    def __init__(self, call: Callable[[], Any]) -> None:
        self.call = call
        self.raised: BaseException | None = None

    def __call__(self) -> Any:
        result = self.call_sync()
        if type(result) is CoroutineType or hasattr(type(result), "__await__"):
            return _Noted(self, result)
        return _Ready(result)

    def call_sync(self) -> Any:
        try:
            return self.call()
        except BaseException as error:
            self.raised = error
            raise

    def judge(
        self, error: BaseException, name: str, listeners: Sequence[Listener]
    ) -> BaseException:
        """Return what the dispatcher gets for an exception that means to end it."""
        if type(error) is type(self.raised):
            return error
        return as_failure(error, listeners[0].ctx.fiber, f'waterfall "{name}"')


class _Noted:
    """An awaitable of the inner operation."""

    __slots__ = ("noted", "work")

    def __init__(self, noted: _Inner, work: Awaitable[Any]) -> None:
        self.noted = noted
        self.work = work

    def __await__(self) -> Generator[Any, Any, Any]:
        try:
            return (yield from self.work.__await__())
        except BaseException as error:
            self.noted.raised = error
            raise


def _as_awaitable(call: Callable[..., Any], *args: Any) -> Any:
    result = call(*args)
    if type(result) is CoroutineType or hasattr(type(result), "__await__"):
        return result
    return _Ready(result)


class _Ready:
    """An awaitable that has its value already."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __await__(self) -> Generator[None, None, Any]:
        return self.value
        yield
