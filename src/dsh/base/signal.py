"""Cooperative cancellation: a signal that code can ask, wait for, and chain."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from dsh.base.errors import DshError, message_of

_T = TypeVar("_T")
_log = logging.getLogger("dsh.signal")


class AbortedError(DshError):
    """Work stopped because its signal was aborted."""

    code = "ABORTED"

    def __init__(self, reason: object = None) -> None:
        detail = f": {message_of(reason)}" if reason is not None else ""
        super().__init__(f"the operation was aborted{detail}")
        self.reason = reason


class AbortSignal:
    """Says whether work should stop, and why.

    Loop-thread affine, except that reading ``aborted`` and ``reason`` is safe anywhere.
    """

    __slots__ = ("__weakref__", "_listeners", "_reason", "aborted")

    def __init__(self) -> None:
        self.aborted = False
        self._reason: object = None
        self._listeners: dict[object, Callable[[], object]] | None = None

    @property
    def reason(self) -> object:
        """What the aborter gave; ``None`` before the abort."""
        return self._reason

    def throw_if_aborted(self) -> None:
        """Raise when aborted.

        Raises:
            AbortedError: the reason is not an exception; otherwise the reason itself is raised.
        """
        if self.aborted:
            raise self.error()

    def error(self) -> BaseException:
        """Return the exception that stands for this abort."""
        if isinstance(self._reason, BaseException):
            return self._reason
        return AbortedError(self._reason)

    def add_listener(
        self, listener: Callable[[], object], *, now: bool = False
    ) -> Callable[[], None]:
        """Call ``listener`` once, when the signal aborts; listeners run in the order added.

        Args:
            listener: Synchronous; its exception is logged and does not starve the next one.
            now: Call it at once when the signal is aborted already, instead of never.

        Returns:
            Removes the listener; harmless when it has run.
        """
        if self.aborted:
            if now:
                _call(listener)
            return _nothing
        if self._listeners is None:
            self._listeners = {}
        listeners, token = self._listeners, object()
        listeners[token] = listener
        return lambda: _discard(listeners, token)

    async def wait(self) -> None:
        """Return when the signal is aborted."""
        if self.aborted:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        remove = self.add_listener(lambda: None if future.done() else future.set_result(None))
        try:
            await future
        finally:
            remove()

    async def until(self, task: asyncio.Future[_T]) -> bool:
        """Wait until a task is done or the signal aborts, and leave the task as it is.

        Returns:
            Whether the task is done.
        """
        settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def settle(_: object = None) -> None:
            if not settled.done():
                settled.set_result(None)

        task.add_done_callback(settle)
        remove = self.add_listener(settle, now=True)
        try:
            await settled
        finally:
            remove()
            task.remove_done_callback(settle)
        return task.done()

    async def run(self, work: Awaitable[_T]) -> _T:
        """Await ``work`` in a task of its own; on abort cancel the task and await its end.

        Raises:
            AbortedError: the signal aborted first (or its reason, when that is an exception).
        """
        task = asyncio.ensure_future(work)
        if self.aborted:
            task.cancel()
        remove = self.add_listener(task.cancel)
        try:
            return await task
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if self.aborted and not (current is not None and current.cancelling()):
                raise self.error() from None
            raise
        finally:
            remove()

    @staticmethod
    def any_of(*signals: AbortSignal) -> tuple[AbortSignal, Callable[[], None]]:
        """Return a signal that aborts with the first of ``signals``, and an unlink function."""
        controller = AbortController()
        removers: list[Callable[[], None]] = []
        for signal in signals:
            if signal.aborted:
                controller.abort(signal.reason)
                break
            removers.append(signal.add_listener(partial(_forward, signal, controller)))

        def unlink() -> None:
            for remove in removers:
                remove()

        return controller.signal, unlink

    def _fire(self, reason: object) -> None:
        if self.aborted:
            return
        self._reason = reason
        self.aborted = True
        listeners, self._listeners = self._listeners, None
        for listener in list(listeners.values()) if listeners else ():
            _call(listener)


class AbortController:
    """Owns a signal and may abort it; the first reason wins."""

    __slots__ = ("_loop", "signal")

    def __init__(self) -> None:
        self.signal = AbortSignal()
        self._loop = _running_loop()

    def abort(self, reason: object = None) -> None:
        """Abort the signal; later calls change nothing.

        From another thread than the loop's, the listeners run on the loop soon after.
        """
        if (
            self._loop is not None
            and _running_loop() is not self._loop
            and not self._loop.is_closed()
        ):
            self._loop.call_soon_threadsafe(self.signal._fire, reason)
            return
        self.signal._fire(reason)


class Deadline:
    """A signal fused from a parent and a timer; ``expired`` tells which came first."""

    __slots__ = ("_controller", "expired")

    def __init__(self, controller: AbortController) -> None:
        self._controller = controller
        self.expired = False

    @property
    def signal(self) -> AbortSignal:
        """Aborts with the parent or with the timer."""
        return self._controller.signal

    def _expire(self, reason: object) -> None:
        if not self._controller.signal.aborted:
            self.expired = True
            self._controller.abort(reason)


@contextmanager
def deadline(
    parent: AbortSignal | None, seconds: float | None, reason: object = "deadline"
) -> Iterator[Deadline]:
    """Yield a signal that aborts with ``parent`` or after ``seconds``, whichever is first.

    Args:
        parent: Outer signal, or ``None``.
        seconds: Time from now; ``None`` sets no timer.
        reason: The reason the timer gives.
    """
    controller = AbortController()
    fused = Deadline(controller)
    remove = _nothing
    if parent is not None:
        remove = parent.add_listener(partial(_forward, parent, controller), now=True)
    timer = None
    if seconds is not None:
        timer = asyncio.get_running_loop().call_later(seconds, fused._expire, reason)
    try:
        yield fused
    finally:
        remove()
        if timer is not None:
            timer.cancel()


def _call(listener: Callable[[], object]) -> None:
    try:
        listener()
    except Exception:
        _log.exception("a listener of an abort signal failed")


def _discard(listeners: dict[object, Callable[[], object]], token: object) -> None:
    listeners.pop(token, None)


def _forward(source: AbortSignal, controller: AbortController) -> None:
    controller.abort(source.reason)


def _nothing() -> None:
    return None


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
