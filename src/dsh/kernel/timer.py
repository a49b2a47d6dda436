"""Timers that belong to whoever asks for them. Delays are in seconds; a negative one is none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from math import isnan
from typing import Any, Generic, ParamSpec

from dsh.base.signal import AbortedError
from dsh.kernel.context import Context
from dsh.kernel.disposal import Disposal
from dsh.kernel.effect import Effect
from dsh.kernel.service import Service

P = ParamSpec("P")


class Timer(Service):
    """Schedules functions and sleeps; what is pending goes with the plugin that asked."""

    name = "timer"

    def timeout(self, delay: float, call: Callable[[], object]) -> Effect:
        """Call a function once, after ``delay`` seconds; a coroutine it returns is supervised."""
        return _Schedule(self.caller, "ctx.timeout()", call, repeat=False).begin(delay)

    def interval(self, delay: float, call: Callable[[], object]) -> Effect:
        """Call a function every ``delay`` seconds, first after one delay.

        What a blocked or suspended process missed is skipped, not made up for.

        Raises:
            ValueError: ``delay`` is not above 0, so that it would never let go of the loop.
        """
        return _Schedule(self.caller, "ctx.interval()", call, repeat=True).begin(delay)

    async def sleep(self, delay: float) -> None:
        """Wait ``delay`` seconds.

        Raises:
            AbortedError: the calling plugin unloads first.
        """
        waker = _Waker()
        effect = _Schedule(self.caller, "ctx.sleep()", waker.wake, repeat=False).begin(delay)
        undo = self.caller.defer(waker.stop)
        try:
            await waker.wait()
        finally:
            undo.dispose()
            effect.dispose()

    async def ticks(self, delay: float) -> AsyncIterator[None]:
        """Yield every ``delay`` seconds; ticks that a slow consumer missed are not lost.

        Raises:
            AbortedError: the calling plugin unloads.
            ValueError: ``delay`` is not above 0.
        """
        waker = _Waker()
        effect = _Schedule(self.caller, "ctx.ticks()", waker.wake, repeat=True).begin(delay)
        undo = self.caller.defer(waker.stop)
        try:
            while True:
                await waker.wait()
                yield
        finally:
            undo.dispose()
            effect.dispose()

    def throttle(
        self, call: Callable[P, object], delay: float, *, trailing: bool = True
    ) -> Limited[P]:
        """Return a function that runs ``call`` at most once in ``delay`` seconds.

        The first call runs at once. Later ones within the delay run once, at its end, with the
        last arguments; without ``trailing`` they are dropped. After disposal only a leading
        call runs.
        """
        return _Throttled(self.caller, call, delay, trailing)

    def debounce(self, call: Callable[P, object], delay: float) -> Limited[P]:
        """Return a function that runs ``call`` once ``delay`` seconds passed without a call."""
        return _Debounced(self.caller, call, delay)


class Limited(Generic[P]):
    """A rate-limited function; it ends with the plugin that made it."""

    def __init__(self, ctx: Context, call: Callable[P, object], delay: float, label: str) -> None:
        if isnan(delay):
            raise ValueError(f"{label} needs a delay, got {delay!r}")
        self._ctx = ctx
        self._call = call
        self._delay = delay
        self._pending: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        self._handle: asyncio.TimerHandle | None = None
        self._disposed = False
        self._effect = ctx.defer(self._cancel, label)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Ask for a run."""
        raise NotImplementedError

    def dispose(self) -> Disposal:
        """Drop what is pending and schedule nothing more."""
        return self._effect.dispose()

    def _cancel(self) -> None:
        self._disposed = True
        self._pending = None
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        _supervised(self._ctx, self._effect.label, lambda: self._call(*args, **kwargs))

    def _later(self, delay: float, call: Callable[[], None]) -> None:
        self._handle = asyncio.get_running_loop().call_later(delay, call)


class _Throttled(Limited[P]):
    def __init__(
        self, ctx: Context, call: Callable[P, object], delay: float, trailing: bool
    ) -> None:
        super().__init__(ctx, call, delay, "ctx.throttle()")
        self._trailing = trailing
        self._last: float | None = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        now = asyncio.get_running_loop().time()
        if self._last is None or (now - self._last >= self._delay and self._handle is None):
            self._last = now
            self._run(args, kwargs)
        elif self._trailing and not self._disposed:
            self._pending = (args, kwargs)
            if self._handle is None:
                self._later(self._last + self._delay - now, self._at_end)

    def _at_end(self) -> None:
        self._handle = None
        pending, self._pending = self._pending, None
        if pending is not None:
            self._last = asyncio.get_running_loop().time()
            self._run(*pending)


class _Debounced(Limited[P]):
    def __init__(self, ctx: Context, call: Callable[P, object], delay: float) -> None:
        super().__init__(ctx, call, delay, "ctx.debounce()")

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        if self._disposed:
            return
        if self._handle is not None:
            self._handle.cancel()
        self._later(self._delay, lambda: self._at_end(args, kwargs))

    def _at_end(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._handle = None
        self._run(args, kwargs)


class _Schedule:
    """One timer of the loop, owned as an effect; due times do not drift."""

    def __init__(
        self, ctx: Context, label: str, call: Callable[[], object], *, repeat: bool
    ) -> None:
        self._ctx = ctx
        self._label = label
        self._call = call
        self._repeat = repeat
        self._handle: asyncio.TimerHandle
        self._effect: Effect

    def begin(self, delay: float) -> Effect:
        # A NaN would sort nowhere and so upset every other timer of the loop.
        if isnan(delay) or (self._repeat and delay <= 0):
            raise ValueError(f"{self._label} needs a delay above 0, got {delay!r}")
        self._delay = delay
        self._loop = asyncio.get_running_loop()
        self._due = self._loop.time() + delay
        self._effect = self._ctx.defer(lambda: self._handle.cancel(), self._label)
        self._handle = self._loop.call_at(self._due, self._fire)
        return self._effect

    def _fire(self) -> None:
        if self._repeat:
            late = self._loop.time() - self._due
            self._due += self._delay * (1 + max(0, late // self._delay))
            self._handle = self._loop.call_at(self._due, self._fire)
        else:
            self._effect.forget()
        _supervised(self._ctx, self._label, self._call)


class _Waker:
    """Counts wake-ups for one waiter, and ends the wait when the owner unloads."""

    def __init__(self) -> None:
        self._count = 0
        self._stopped = False
        self._future: asyncio.Future[None] | None = None

    def wake(self) -> None:
        self._count += 1
        self._resolve()

    def stop(self) -> None:
        self._stopped = True
        self._resolve()

    async def wait(self) -> None:
        while not self._count:
            if self._stopped:
                raise AbortedError("the plugin that waits is unloading")
            self._future = asyncio.get_running_loop().create_future()
            await self._future
        self._count -= 1

    def _resolve(self) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(None)


def _supervised(ctx: Context, label: str, call: Callable[[], object]) -> None:
    """Run a timer's function: errors are reported, coroutines become tasks of the owner."""
    ctx.fiber.run_supervised(call, label)
