"""Running the body of a tool: stoppable, and never waited for without a bound."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

from dsh.base.clock import SYSTEM_CLOCK, Clock
from dsh.base.errors import DshError, message_of
from dsh.base.signal import AbortedError
from dsh.execution.tools.service import (
    RESERVED_TOOL_NAME,
    Stray,
    ToolDefinition,
    ToolRunContext,
)

_log = logging.getLogger("dsh.tools")

_GRACE_OF_PROGRAMS = 1.5


class BodyStopped(Exception):
    """A body was told to stop and gave no more specific outcome."""


class BodyCancelledItself(DshError):
    """A body ended in ``CancelledError`` though nobody had cancelled it."""

    code = "TOOL_CANCELLED_ITSELF"

    def __init__(self, tool: str) -> None:
        super().__init__(f"tool {tool!r} cancelled its own work and returned nothing")
        self.tool = tool


class Bodies:
    """Starts bodies, stops them, and owns those that do not stop.

    Args:
        grace_s: How long a body may take to end after it was told to, in seconds.
        clock: For the times of strays.
    """

    def __init__(self, grace_s: float, clock: Clock = SYSTEM_CLOCK) -> None:
        self._grace_s = grace_s
        self._clock = clock
        self._strays: dict[asyncio.Future[Any], Stray] = {}

    async def run(self, definition: ToolDefinition, arguments: Any, run: ToolRunContext) -> Any:
        """Run one body to its end, or stop it when ``run.signal`` aborts.

        Cancelling the caller stops the body too. Either way a body that outlives the grace period
        is kept as a stray.

        A value that the body returned before the abort is kept, whatever happens in the meantime.

        Raises:
            BodyStopped: the signal aborted; the body ended later without an error of its own, or
                did not end.
            BodyCancelledItself: it raised ``CancelledError`` unasked.
            Exception: what the body raised.
        """
        start = partial(definition.execute, arguments, run)
        begin = _in_task if is_async(definition.execute) else _in_thread
        value, late = await self._supervise(begin(start, run), definition, run)
        if inspect.isawaitable(value):
            work = _in_task(lambda: value, run)
            work.add_done_callback(lambda _: _close(value))
            value, late = await self._supervise(work, definition, run)
        if late:
            raise BodyStopped
        return value

    async def _supervise(
        self, work: asyncio.Future[_Ended], definition: ToolDefinition, run: ToolRunContext
    ) -> _Ended:
        """Wait for a body's end, or for the moment to stop it; see `run`."""
        reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def reach(_: object = None) -> None:
            if not reached.done():
                reached.set_result(None)

        work.add_done_callback(reach)
        remove = run.signal.add_listener(reach, now=True)
        try:
            await reached
        except asyncio.CancelledError:
            # nobody has told the signal, so cancelling is the only way to tell the body
            await self._stop(work, run, "cancelled from outside", cancel=True)
            _forget(work)
            raise
        finally:
            remove()
        if not work.done():
            await self._stop(work, run, _cause(run), cancel=definition.cancel == "task")
        return _outcome(work, run)

    async def _stop(
        self, work: asyncio.Future[Any], run: ToolRunContext, cause: str, *, cancel: bool
    ) -> None:
        """Tell a body to stop and wait for its end, up to the grace period."""
        if cancel:
            _cancel(work)
        # A program has calls of its own to stop first, each of which has the same grace.
        calls = _GRACE_OF_PROGRAMS if run.name == RESERVED_TOOL_NAME else 1
        try:
            await asyncio.wait([work], timeout=self._grace_s * calls)
        finally:
            if not work.done():
                self._adopt(work, run, cause)

    def _adopt(self, work: asyncio.Future[Any], run: ToolRunContext, cause: str) -> None:
        self._strays[work] = Stray(run.call_id, run.name, cause, self._clock.now_ms())
        _log.warning(
            "tool %r (call %s) still runs %.1f s after it was told to stop (%s); "
            "its result will be discarded",
            run.name,
            run.call_id,
            self._grace_s,
            cause,
        )
        work.add_done_callback(self._release)

    def _release(self, work: asyncio.Future[Any]) -> None:
        stray = self._strays.pop(work)
        _forget(work)
        _log.info("tool %r (call %s) ended late; its result is discarded", *_named(stray))

    def strays(self) -> tuple[Stray, ...]:
        """Bodies that were given up and still run, oldest first."""
        return tuple(self._strays.values())

    async def join(self, bound_s: float) -> None:
        """Stop every stray once more and wait for the end of all, at most ``bound_s`` seconds."""
        if not self._strays:
            return
        works = list(self._strays)
        for work in works:
            if isinstance(work, asyncio.Task):
                work.cancel()
        await asyncio.wait(works, timeout=bound_s)
        for stray in self._strays.values():
            _log.error("tool %r (call %s) never ended and is left behind", *_named(stray))


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling this gives a coroutine to await, as far as one can tell before."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004  # an object whose call is a coroutine
    )


_Ended: TypeAlias = tuple[Any, bool]
"""What a body returned, and whether its signal was aborted by then."""


def _in_task(start: Callable[[], Any], run: ToolRunContext) -> asyncio.Future[_Ended]:
    async def work() -> _Ended:
        return await start(), run.signal.aborted

    return asyncio.create_task(work(), name=f"tool {run.name} {run.call_id}")


def _close(body: Any) -> None:
    """Close a coroutine whose task may have been cancelled before it awaited it."""
    if inspect.iscoroutine(body):
        body.close()


def _in_thread(function: Callable[[], Any], run: ToolRunContext) -> asyncio.Future[_Ended]:
    """Run a blocking body in a thread of its own, in a copy of the current context.

    The future ends when the thread does, and no task waits for it: neither the loop's shutdown nor
    the interpreter's exit hangs on a body that never returns.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[_Ended] = loop.create_future()
    context = contextvars.copy_context()

    def work() -> None:
        value: Any = None
        error: BaseException | None = None
        try:
            value = context.run(function)
        except (Exception, asyncio.CancelledError) as raised:
            error = raised
        except BaseException as raised:
            error = _as_failure(raised)
        try:
            loop.call_soon_threadsafe(_settle, ended, (value, run.signal.aborted), error)
        except RuntimeError:
            _log.debug("tool %r ended after its event loop", run.name)

    threading.Thread(target=work, name=f"dsh-tool-{run.name}", daemon=True).start()
    return ended


def _as_failure(raised: BaseException) -> RuntimeError:
    """Return what a call fails with whose tool raised what ends a program."""
    return RuntimeError(f"the tool raised {type(raised).__name__}: {message_of(raised)}")


def _settle(ended: asyncio.Future[_Ended], value: _Ended, error: BaseException | None) -> None:
    if error is None:
        ended.set_result(value)
    elif isinstance(error, StopIteration):
        ended.set_exception(RuntimeError(f"the tool raised StopIteration: {error.value!r}"))
    else:
        ended.set_exception(error)


def _outcome(work: asyncio.Future[_Ended], run: ToolRunContext) -> _Ended:
    if not work.done():
        raise BodyStopped
    error = asyncio.CancelledError() if work.cancelled() else work.exception()
    if error is None:
        return work.result()
    if isinstance(error, asyncio.CancelledError):
        raise BodyStopped if run.signal.aborted else BodyCancelledItself(run.name)
    if run.signal.aborted and (isinstance(error, AbortedError) or error is run.signal.reason):
        raise BodyStopped from error
    if not isinstance(error, Exception):
        # The event loop has raised it already; twice would break its own end.
        raise _as_failure(error) from error
    raise error


def _cancel(work: asyncio.Future[Any]) -> None:
    """Cancel a body's task, unless that was done: a second time would hit its cleanup."""
    if isinstance(work, asyncio.Task) and not work.cancelling():
        work.cancel()


def _cause(run: ToolRunContext) -> str:
    reason = run.signal.reason
    return "aborted" if reason is None else message_of(reason)


def _forget(work: asyncio.Future[Any]) -> None:
    """Mark a failure as seen."""
    if work.done() and not work.cancelled():
        work.exception()


def _named(stray: Stray) -> tuple[str, str]:
    return stray.tool, stray.call_id
