"""The listeners of a root and the six ways to reach them."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from dsh.kernel._shapes import close_coroutine, discard, is_awaitable, is_work
from dsh.kernel._stray import as_failure, told_to_stop
from dsh.kernel._waterfall import run_waterfall, run_waterfall_sync
from dsh.kernel.effect import Effect
from dsh.kernel.errors import ModeError
from dsh.kernel.events import INTERNAL_DISPATCH, Dispatching, Event
from dsh.kernel.scope import Carrier

if TYPE_CHECKING:
    from dsh.kernel._root import RootState
    from dsh.kernel.context import Context

_NO_LISTENERS: tuple[Listener, ...] = ()
_ROUTES = 256
"""For how many carriers at most an event remembers whom they reach."""


class Listener:
    """One registration of a callable for one event."""

    __slots__ = ("call", "ctx", "everywhere", "prepend")

    def __init__(
        self, call: Callable[..., Any], ctx: Context, prepend: bool, everywhere: bool
    ) -> None:
        self.call = call
        self.ctx = ctx
        self.prepend = prepend
        self.everywhere = everywhere


class _Slot:
    """The listeners of one event: changed in place, dispatched from a cached tuple."""

    __slots__ = ("back", "cached", "front", "links", "routes")

    def __init__(self) -> None:
        self.routes: dict[int, tuple[weakref.ref[object], tuple[Listener, ...]]] = {}
        self.links = -1
        self.front: dict[Listener, None] = {}
        self.back: dict[Listener, None] = {}
        self.cached: tuple[Listener, ...] | None = _NO_LISTENERS

    def snapshot(self) -> tuple[Listener, ...]:
        cached = self.cached
        if cached is None:
            cached = self.cached = (*reversed(self.front), *self.back)
        return cached

    def reached(self, target: object) -> tuple[Listener, ...]:
        """Return the listeners that a target lets through; those of a carrier are remembered."""
        if type(target) is not Carrier or not target.steady:
            return filtered(self.snapshot(), target)
        if self.links != Carrier.links:
            self.routes.clear()
            self.links = Carrier.links
        # Without a base the scope alone decides, and dispatches often make a carrier each.
        anchor = target if target.base is not None or target.key is None else target.key
        number, routes = id(anchor), self.routes
        known = routes.get(number)
        if known is not None and known[0]() is anchor:
            return known[1]
        if len(routes) >= _ROUTES:
            routes.clear()
        listeners = filtered(self.snapshot(), target)
        routes[number] = (weakref.ref(anchor, lambda _: routes.pop(number, None)), listeners)
        return listeners

    def add(self, listener: Listener) -> None:
        (self.front if listener.prepend else self.back)[listener] = None
        self._changed()

    def remove(self, listener: Listener) -> None:
        (self.front if listener.prepend else self.back).pop(listener, None)
        self._changed()

    def _changed(self) -> None:
        self.cached = None
        if self.routes:
            self.routes.clear()


class Hub:
    """All listeners of one root, by wire name."""

    __slots__ = ("kernel", "slots", "watched")

    def __init__(self, kernel: RootState) -> None:
        self.kernel = kernel
        self.slots: dict[str, _Slot] = {}
        self.watched = False

    def listens(self, name: str) -> bool:
        """Whether anyone listens to an event."""
        slot = self.slots.get(name)
        return slot is not None and bool(slot.front or slot.back)

    def count(self, name: str | None = None) -> int:
        """Count the listeners of one event, or of all."""
        slots = self.slots.values() if name is None else filter(None, [self.slots.get(name)])
        return sum(len(slot.front) + len(slot.back) for slot in slots)

    def add(self, name: str, listener: Listener) -> Callable[[], None]:
        """Register a listener; the returned callable removes it."""
        slot = self.slots.get(name)
        if slot is None:
            slot = self.slots[name] = _Slot()
        slot.add(listener)
        if name == INTERNAL_DISPATCH.name:
            self.watched = True
        return partial(self._remove, name, slot, listener)

    def _remove(self, name: str, slot: _Slot, listener: Listener) -> None:
        slot.remove(listener)
        if not slot.front and not slot.back and self.slots.get(name) is slot:
            del self.slots[name]
            if name == INTERNAL_DISPATCH.name:
                self.watched = False

    def forget_routes(self) -> None:
        """Forget whom carriers reach, because contexts have other scopes or data now."""
        for slot in self.slots.values():
            slot.routes.clear()

    def select(self, event: Event[Any], payload: Any, target: object) -> Sequence[Listener]:
        """Announce a dispatch and return the listeners it reaches."""
        if self.watched and not event.name.startswith("internal/"):
            self.emit(INTERNAL_DISPATCH, Dispatching(event.mode, event.name, payload, target))
        slot = self.slots.get(event.name)
        if slot is None:
            return _NO_LISTENERS
        return slot.snapshot() if target is None else slot.reached(target)

    def reached(self, name: str, target: object) -> Sequence[Listener]:
        """Return the listeners that a dispatch would reach, without announcing one."""
        slot = self.slots.get(name)
        if slot is None:
            return _NO_LISTENERS
        return slot.snapshot() if target is None else slot.reached(target)

    def emit(self, event: Any, payload: Any, target: object = None) -> None:
        """Dispatch by ``emit``; see ``Emit.errors`` for what happens to failures."""
        if event.mode != "emit":
            raise ModeError(event.name, event.mode, "emit")
        if self.watched or target is not None:
            listeners = self.select(event, payload, target)
        else:
            slot = self.slots.get(event.name)
            if slot is None:
                return
            listeners = slot.cached or slot.snapshot()
        self.run_emit(event, payload, listeners)

    def run_emit(self, event: Any, payload: Any, listeners: Sequence[Listener]) -> None:
        """Call the listeners that were selected."""
        failures: list[Exception] | None = None
        for listener in listeners:
            try:
                result = listener.call(payload)
                if result is not None and is_work(result):
                    self._supervise(event, listener, result)
            except BaseException as error:
                # a call that awaits nothing is never what a cancellation is delivered to
                failure = as_failure(error, listener.ctx.fiber, _label(event.name))
                if event.errors == "veto":
                    raise failure from failure.__cause__
                if event.errors == "contain":
                    self.kernel.report(failure, listener.ctx.fiber, _label(event.name))
                elif failures is None:
                    failures = [failure]
                else:
                    failures.append(failure)
        if failures:
            raise_all(f"listeners of {event.name} failed", failures)

    def _supervise(self, event: Any, listener: Listener, work: Awaitable[Any]) -> None:
        """Run what an emit listener returned, owned by the listener's fiber."""
        fiber = listener.ctx.fiber
        fiber.own_task(work, _label(event.name), cancel=False, bounded=True)

    async def parallel(self, event: Any, payload: Any, target: object) -> None:
        """Run all, wait for all, raise all failures together."""
        if event.mode != "parallel":
            raise ModeError(event.name, event.mode, "parallel")
        label = _label(event.name)
        failures: list[Exception] = []
        tasks: dict[asyncio.Future[BaseException | None], Listener] = {}
        works: list[Awaitable[Any]] = []
        for listener in self.select(event, payload, target):
            try:
                result = listener.call(payload)
                if result is not None and is_awaitable(result):
                    works.append(result)
                    tasks[asyncio.ensure_future(_outcome(result))] = listener
            except BaseException as error:
                failures.append(as_failure(error, listener.ctx.fiber, label))
        if tasks:
            try:
                await _wait_all(tasks)
            except asyncio.CancelledError:
                for work in works:
                    close_coroutine(work)
                raise
            for task, listener in tasks.items():
                raised = _failure_of(task)
                if raised is not None:
                    failures.append(as_failure(raised, listener.ctx.fiber, label))
        if failures:
            raise ExceptionGroup(f"listeners of {event.name} failed", failures)

    async def serial(self, event: Any, payload: Any, target: object) -> Any:
        """Ask one after the other; the first answer ends it."""
        if event.mode != "serial":
            raise ModeError(event.name, event.mode, "serial")
        for listener in self.select(event, payload, target):
            try:
                result = listener.call(payload)
                if result is not None and is_awaitable(result):
                    result = await result
            except Exception:
                raise
            except BaseException as error:
                if told_to_stop(error):
                    raise
                raise as_failure(error, listener.ctx.fiber, _label(event.name)) from error
            if result is not None and result is not False:
                return result
        return None

    def bail(self, event: Any, payload: Any, target: object) -> Any:
        """Ask one after the other, synchronously."""
        if event.mode != "bail":
            raise ModeError(event.name, event.mode, "bail")
        for listener in self.select(event, payload, target):
            try:
                result = listener.call(payload)
            except Exception:
                raise
            except BaseException as error:
                raise as_failure(error, listener.ctx.fiber, _label(event.name)) from error
            if result is None or result is False:
                continue
            if is_awaitable(result):
                discard(result)
                raise TypeError(
                    f"a listener of {event.name!r} returned an awaitable; bail is synchronous"
                )
            return result
        return None

    def waterfall(self, event: Any, payload: Any, inner: Callable[[], Any], target: object) -> Any:
        """Nest listeners around ``inner``; returns an awaitable of the outermost result."""
        if event.mode != "waterfall":
            raise ModeError(event.name, event.mode, "waterfall")
        return run_waterfall(event.name, self.select(event, payload, target), payload, inner)

    def waterfall_sync(
        self, event: Any, payload: Any, inner: Callable[[], Any], target: object
    ) -> Any:
        """Nest listeners around ``inner``, synchronously."""
        if event.mode != "waterfall_sync":
            raise ModeError(event.name, event.mode, "waterfall_sync")
        return run_waterfall_sync(event.name, self.select(event, payload, target), payload, inner)


def filtered(listeners: tuple[Listener, ...], target: object) -> tuple[Listener, ...]:
    """Keep the listeners that a dispatch target lets through."""
    accepts = getattr(type(target), "accepts_listener", None)
    if accepts is None:
        return listeners
    return tuple([item for item in listeners if item.everywhere or accepts(target, item.ctx)])


def once(effect_of: list[Effect], call: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a listener so that it removes itself before its only call."""

    def fire(payload: Any, *rest: Callable[[], Any]) -> Any:
        effect = effect_of[0]
        if effect.done:
            return rest[0]() if rest else None
        effect.dispose()
        return call(payload, *rest)

    return fire


def raise_all(message: str, failures: Sequence[Exception]) -> None:
    """Raise one failure as it is, several as a group."""
    if len(failures) == 1:
        raise failures[0]
    raise ExceptionGroup(message, failures)


async def _outcome(work: Awaitable[Any]) -> BaseException | None:
    """Await a listener; returns what it raised, unless it was cancelled with the dispatch."""
    try:
        await work
    except BaseException as error:
        if told_to_stop(error):
            raise
        return error
    return None


def _failure_of(task: asyncio.Future[BaseException | None]) -> BaseException | None:
    return asyncio.CancelledError("it cancelled itself") if task.cancelled() else task.result()


def _label(name: str) -> str:
    return f'ctx.on("{name}")'


async def _wait_all(tasks: Iterable[asyncio.Future[Any]]) -> None:
    try:
        await asyncio.wait(tasks)
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        raise
