"""How a context subscribes to events and dispatches them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, overload

from dsh.kernel import _hub
from dsh.kernel.effect import Effect
from dsh.kernel.errors import ModeError
from dsh.kernel.events import (
    Bail,
    Emit,
    Event,
    Next,
    Parallel,
    Serial,
    SyncNext,
    Waterfall,
    WaterfallSync,
)

if TYPE_CHECKING:
    from dsh.kernel.fiber import Fiber

T = TypeVar("T")
R = TypeVar("R")


class Dispatcher:
    """The part of a context that deals with events.

    ``target`` routes a dispatch: a carrier of a scope, or a service, lets only the listeners
    of its scope through, and those registered ``everywhere``. None reaches all. Each dispatch
    raises ``WrongLoop`` in another thread or loop than the root's.
    """

    __slots__ = ()
    if TYPE_CHECKING:
        fiber: Fiber

    @overload
    def on(
        self,
        event: Emit[T] | Parallel[T],
        listener: Callable[[T], object],
        *,
        prepend: bool = ...,
        everywhere: bool = ...,
    ) -> Effect: ...
    @overload
    def on(
        self,
        event: Serial[T, R],
        listener: Callable[[T], Awaitable[R | None] | R | None],
        *,
        prepend: bool = ...,
        everywhere: bool = ...,
    ) -> Effect: ...
    @overload
    def on(
        self,
        event: Bail[T, R],
        listener: Callable[[T], R | None],
        *,
        prepend: bool = ...,
        everywhere: bool = ...,
    ) -> Effect: ...
    @overload
    def on(
        self,
        event: Waterfall[T, R],
        listener: Callable[[T, Next[R]], Awaitable[R] | R],
        *,
        prepend: bool = ...,
        everywhere: bool = ...,
    ) -> Effect: ...
    @overload
    def on(
        self,
        event: WaterfallSync[T, R],
        listener: Callable[[T, SyncNext[R]], R],
        *,
        prepend: bool = ...,
        everywhere: bool = ...,
    ) -> Effect: ...
    @overload
    def on(
        self,
        event: str,
        listener: Callable[..., object],
        *,
        prepend: bool = ...,
        everywhere: bool = ...,
    ) -> Effect: ...
    def on(
        self,
        event: Any,
        listener: Callable[..., Any],
        *,
        prepend: bool = False,
        everywhere: bool = False,
    ) -> Effect:
        """Listen until this plugin unloads or the effect is disposed.

        Args:
            event: The declaration, or its wire name.
            listener: Takes the payload; for waterfalls also ``next``.
            prepend: Run before all present listeners.
            everywhere: Hear dispatches to any target.

        Raises:
            InactiveEffect: this plugin is unloading or gone.
        """
        fiber = self.fiber
        fiber.check_active()
        name = event if isinstance(event, str) else event.name
        entry = _hub.Listener(listener, self, prepend, everywhere)  # type: ignore[arg-type]
        return Effect(fiber, f'ctx.on("{name}")', fiber.kernel.hub.add(name, entry))

    def once(
        self,
        event: Event[T] | str,
        listener: Callable[..., Any],
        *,
        prepend: bool = False,
        everywhere: bool = False,
    ) -> Effect:
        """Listen for one dispatch; the listener is removed before it is called."""
        holder: list[Effect] = []
        call = _hub.once(holder, listener)
        on: Callable[..., Effect] = self.on
        holder.append(on(event, call, prepend=prepend, everywhere=everywhere))
        return holder[0]

    def emit(self, event: Emit[T], payload: T = ..., target: object = None) -> None:  # type: ignore[assignment]
        """Tell listeners, without waiting for the coroutines they return.

        Such a coroutine runs in a task of the listener's plugin, which awaits it when it
        unloads; its error is reported. ``Emit.errors`` says what other failures do.
        """
        kernel = self.fiber.kernel
        kernel.check_dispatch(event)
        kernel.hub.emit(event, None if payload is ... else payload, target)

    def prepare(self, event: Emit[T], payload: T, target: object = None) -> Callable[[], None]:
        """Resolve who gets an ``emit`` now, and return what runs it.

        Invariant checks have passed and the listeners are fixed when this returns, so the
        caller can commit in between.
        """
        if event.mode != "emit":
            raise ModeError(event.name, event.mode, "prepare")
        hub = self._hub(event)
        listeners = tuple(hub.select(event, payload, target))
        return partial(hub.run_emit, event, payload, listeners)

    def listening(self, event: Event[Any], target: object = None) -> tuple[Fiber, ...]:
        """Return the plugins whose listeners a dispatch to ``target`` would reach, in order."""
        listeners = self._hub(event).reached(event.name, target)
        return tuple([listener.ctx.fiber for listener in listeners])

    def _hub(self, event: Event[Any]) -> _hub.Hub:
        kernel = self.fiber.kernel
        kernel.check_dispatch(event)
        return kernel.hub

    async def parallel(self, event: Parallel[T], payload: T, target: object = None) -> None:
        """Run all listeners at once and wait for all.

        Raises:
            BaseExceptionGroup: what failed, after all have ended.
        """
        await self._hub(event).parallel(event, payload, target)

    async def serial(self, event: Serial[T, R], payload: T, target: object = None) -> R | None:
        """Ask listeners in order; the first answer that is not None or False ends it."""
        result: R | None = await self._hub(event).serial(event, payload, target)
        return result

    def bail(self, event: Bail[T, R], payload: T, target: object = None) -> R | None:
        """Ask listeners in order, synchronously; the first answer ends it.

        Raises:
            TypeError: a listener returned an awaitable.
        """
        result: R | None = self._hub(event).bail(event, payload, target)
        return result

    def waterfall(
        self,
        event: Waterfall[T, R],
        payload: T,
        inner: Callable[[], Awaitable[R] | R],
        target: object = None,
    ) -> Awaitable[R]:
        """Run ``inner`` with the listeners nested around it, the first one outermost.

        A listener that does not call ``next`` replaces everything after it. Must be awaited.
        """
        work: Awaitable[R] = self._hub(event).waterfall(event, payload, inner, target)
        return work

    def waterfall_sync(
        self,
        event: WaterfallSync[T, R],
        payload: T,
        inner: Callable[[], R],
        target: object = None,
    ) -> R:
        """The synchronous form of ``waterfall``."""
        result: R = self._hub(event).waterfall_sync(event, payload, inner, target)
        return result
