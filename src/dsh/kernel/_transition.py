"""The driver of a fiber: one task that loads and unloads until the fiber is where it should be."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from dsh.base.signal import AbortController, AbortedError
from dsh.kernel._drain import drain
from dsh.kernel._lease import wait_for_leases
from dsh.kernel._overdue import Patience
from dsh.kernel._shapes import being_cancelled, close_coroutine
from dsh.kernel._stack import begin, enter_frame, rests_on, wait_task
from dsh.kernel._stray import as_failure, guarded, is_close, told_to_stop
from dsh.kernel.effect import LIVE, SETUP, Effect
from dsh.kernel.errors import InactiveEffect
from dsh.kernel.plugins import OptionalNeed
from dsh.kernel.states import (
    ACTIVE,
    DISPOSED,
    FAILED,
    LOADING,
    PENDING,
    UNLOADING,
    FiberState,
)

if TYPE_CHECKING:
    from dsh.kernel._services import Binding
    from dsh.kernel.fiber import Fiber, Target


def compute_target(fiber: Fiber) -> Target:
    """Return what the fiber should run against: generations and revision, or None."""
    if fiber.uid is None:
        return None
    needs = fiber._inject
    if not needs:
        return fiber._revision
    services, ctx = fiber.kernel.services, fiber.ctx
    generations = [fiber._revision]
    for name, need in needs.items():
        binding = services.find(name, ctx.label_of(name))
        optional = type(need) is OptionalNeed
        if binding is not None and _usable(fiber, binding, optional):
            generations.append(binding.generation)
        elif optional:
            generations.append(0)
        else:
            return None
    return tuple(generations)


def _usable(fiber: Fiber, binding: Binding, optional: bool) -> bool:
    """Whether a fiber may load against a binding now.

    An optional service that rests on the fiber itself does not count: taking it would unload
    its provider, whose return would reload the fiber, for ever. One that came to rest on the
    fiber only after it was taken is kept.
    """
    if not binding.available(fiber.ctx):
        return False
    if not optional or (fiber._store or {}).get(binding.name) is binding:
        return True
    return not rests_on(binding.owner, fiber)


def mark_stale(fiber: Fiber, *, over: bool = False) -> None:
    """Tell a running activation that it is not wanted any more.

    The stop signal is held back while work is in flight, until the wait for that is ``over``.
    """
    if fiber._body is not None:
        fiber._body._stop = True
    if fiber._setup is not None:
        fiber._setup.cancel()
    if fiber._patience is not None:
        fiber._patience.begin()
    if fiber._leases is not None and not over:
        return
    if fiber._stop is not None and not fiber._stop.signal.aborted:
        fiber._stale = True
        fiber._stop.abort(f"plugin {fiber.title!r} is being unloaded")


class Stop(AbortController):
    """The stop signal of an activation, which follows the one of the plugin above."""

    __slots__ = ("unlink",)
    unlink: Callable[[], object] | None


def stop_controller(fiber: Fiber) -> Stop:
    """Return the controller of this activation's stop signal, linked to the ancestors'."""
    controller = fiber._stop
    if controller is None:
        controller = fiber._stop = Stop()
        controller.unlink = None
        if not takes_registrations(fiber):
            controller.abort(f"plugin {fiber.title!r} is being unloaded")
        elif fiber.parent_fiber is not None:
            link_stop(fiber, controller)
    return controller


def link_stop(fiber: Fiber, controller: Stop) -> None:
    """Let a stop signal follow the one of the plugin above, and no other from now on."""
    if controller.unlink is not None:
        controller.unlink()
    if fiber.parent_fiber is None or controller.signal.aborted:
        return
    above = stop_controller(fiber.parent_fiber).signal

    def follow() -> None:
        # else the unload that comes says so, after the work in flight
        if fiber._leases is None:
            controller.abort(above.reason)

    if controller.unlink is None:
        controller.signal.add_listener(lambda: controller.unlink and controller.unlink())
    controller.unlink = above.add_listener(follow, now=True)


def takes_registrations(fiber: Fiber) -> bool:
    """Whether anything may be registered: a plugin that was told to go may, for work in flight."""
    if fiber.uid is None and fiber._leases is None:
        return False
    return fiber.state is not UNLOADING and fiber.state is not DISPOSED


async def drive(fiber: Fiber) -> None:
    """Load and unload until the fiber is settled."""
    frame = enter_frame(fiber)
    state = fiber.state
    try:
        await begin()
        state = await _settle(fiber)
    except asyncio.CancelledError:
        try:
            await _give_up(fiber)
        finally:
            state = DISPOSED if fiber.uid is None else PENDING
        raise
    except BaseException as raised:
        if is_close(raised):
            state = fiber.state
            raise
        # only a defect of the kernel comes here; it must not leave the fiber in between
        error = as_failure(raised, fiber, "transition")
        fiber.kernel.report(error, fiber, "transition")
        fiber.error = error
        state = DISPOSED if fiber.uid is None else FAILED
    finally:
        frame.alive = False
        fiber.kernel.tasks.discard(fiber._driver)
        fiber._driver = None
        fiber.set_state(state)
        if state is DISPOSED:
            detach(fiber)


async def _settle(fiber: Fiber) -> FiberState:
    ticked, waited = True, False
    while True:
        target = fiber._target
        if fiber._leases is not None and not waited and _may_wait(fiber):
            waited = True
            await wait_for_leases(fiber)
            continue
        waited = False
        if fiber.uid is None:
            if fiber._dirty or fiber._effects:
                await unload(fiber)
            return DISPOSED
        if fiber._dirty:
            if target is not None and target == fiber._loaded and not fiber._stale:
                return ACTIVE
            await unload(fiber)
            ticked = False
        elif target is None and fiber.state is LOADING and fiber._effects:
            await unload(fiber)
        elif target is None:
            return FAILED if fiber.error is not None else PENDING
        else:
            await load(fiber, target, ticked)


def _may_wait(fiber: Fiber) -> bool:
    """Whether what it holds is to be undone now, and may wait for work in flight.

    The root may not: it goes with everything that could end such work.
    """
    if fiber.runtime is None:
        return False
    if fiber.uid is None or not fiber._dirty:
        return fiber.uid is None
    return fiber._stale or fiber._target is None or fiber._target != fiber._loaded


async def _give_up(fiber: Fiber) -> None:
    """The loop is ending: undo what is held as far as that goes."""
    if fiber._dirty or fiber._effects:
        fiber._target = None
        await unload(fiber)


async def load(fiber: Fiber, target: Target, ticked: bool) -> None:
    """Run the body against ``target``; a failure is kept and clears the target."""
    fiber._dirty = True
    fiber._stale = False
    fiber._loaded = target
    fiber.set_state(LOADING)
    if not ticked:
        await asyncio.sleep(0)
    if fiber._target != target:
        return
    runtime = fiber.runtime
    if runtime is None:
        return
    if fiber._inject and not _take_snapshot(fiber):
        fiber.refresh()
        return
    try:
        fiber.config = fiber.resolve_config(fiber.raw_config)
        serial = fiber.kernel.serial
        result = runtime.run(fiber.ctx, fiber.config)
        if result is not None and not _is_own_registration(fiber, result):
            await _finish_body(fiber, result, serial)
    except BaseException as error:
        if told_to_stop(error):
            raise
        _body_failed(fiber, error, target)


async def _finish_body(fiber: Fiber, result: Any, serial: int) -> None:
    """Wait for the rest of a body; one that is unwanted meanwhile gets no more than the grace."""
    patience = fiber._patience = Patience(fiber)
    if fiber.uid is None or fiber._target != fiber._loaded:
        patience.begin()
    cancel_setup = fiber.runtime is not None and fiber.runtime.cancel_setup
    try:
        while type(result) is CoroutineType:
            result = await (_cancellable(fiber, result) if cancel_setup else result)
        if result is not None and not _is_own_registration(fiber, result):
            await _adopt_body(fiber, result, serial)
    finally:
        fiber._patience = None
        patience.end()


async def _cancellable(fiber: Fiber, body: Coroutine[Any, Any, Any]) -> Any:
    """Run a body that asked to be cancelled when its activation is stale."""
    setup = fiber._setup = asyncio.ensure_future(guarded(body, fiber, "apply"))
    try:
        return await setup
    finally:
        fiber._setup = None
        if setup.cancelled():
            close_coroutine(body)


def _take_snapshot(fiber: Fiber) -> bool:
    """Hold the bindings that the target names; False when one has gone since."""
    services, ctx = fiber.kernel.services, fiber.ctx
    store: dict[str, Binding] = {}
    for name, need in (fiber._inject or {}).items():
        binding = services.find(name, ctx.label_of(name))
        optional = type(need) is OptionalNeed
        if binding is not None and _usable(fiber, binding, optional):
            store[name] = binding
        elif not optional:
            return False
    for binding in store.values():
        binding.hold(fiber)
    fiber._store = store
    return True


def _is_own_registration(fiber: Fiber, result: Any) -> bool:
    """Whether a body returned what its fiber owns already; waiting for it could hang."""
    if isinstance(result, Effect):
        return result._fiber is fiber
    if getattr(type(result), "is_fiber", False):
        return bool(result.parent_fiber is fiber)
    return isinstance(result, asyncio.Task) and result in fiber.kernel.owned


async def _adopt_body(fiber: Fiber, result: Any, serial: int) -> None:
    """Own what a body returned; it is undone after all that the body registered."""
    body = Effect(fiber, "anonymous")
    body._state = SETUP
    fiber._effects.pop(body._serial)
    later = {key: item for key, item in fiber._effects.items() if key > serial}
    for key in later:
        del fiber._effects[key]
    fiber._effects[body._serial] = body
    fiber._effects.update(later)
    body._stop = fiber.uid is None or fiber._target != fiber._loaded
    fiber._body = body
    try:
        rest = body.adopt(result)
        if rest is not None:
            await rest
    finally:
        fiber._body = None
        body._state = LIVE


def _body_failed(fiber: Fiber, raised: BaseException, target: Target) -> None:
    stale = fiber.uid is None or fiber._target != target
    gave_up = isinstance(raised, (AbortedError, InactiveEffect, asyncio.CancelledError))
    if stale and gave_up:
        fiber._stale = True
        return
    error = as_failure(raised, fiber, "apply")
    _note_site(fiber, error)
    fiber.kernel.report(error, fiber, "apply")
    if stale and fiber._target is not None:
        fiber._stale = True
        return
    fiber.error = error
    fiber._failed = target
    if stale:
        fiber._failed = (-1,)
    fiber._target = None


def fail_from_outside(fiber: Fiber, error: BaseException) -> None:
    """Turn an active fiber into a FAILED one, because something essential of it died."""
    if fiber.uid is None or fiber._target is None:
        return
    fiber.error = error
    fiber._failed = fiber._target
    fiber._target = None
    mark_stale(fiber)
    fiber.kick()


def _note_site(fiber: Fiber, error: BaseException) -> None:
    where = f"in plugin {fiber.title!r}"
    if fiber.site is not None:
        code, line = fiber.site
        where += f", mounted at {code.co_filename}:{line}"
    notes: list[str] = getattr(error, "__notes__", [])
    if where not in notes:
        error.add_note(where)


async def unload(fiber: Fiber) -> None:
    """Undo all that the fiber holds: dependants first, then its effects, last first."""
    mark_stale(fiber, over=True)
    fiber.set_state(UNLOADING)
    cancelled: asyncio.CancelledError | None = None
    try:
        if fiber._provided is not None:
            await drain(fiber, fiber._provided)
    except asyncio.CancelledError as error:
        cancelled = error
    while fiber._effects:
        try:
            await _undo_last(fiber)
        except asyncio.CancelledError as error:
            cancelled = error
    if fiber._store is not None:
        for binding in fiber._store.values():
            binding.release(fiber)
        fiber._store = None
    fiber._loaded = fiber._leases = None
    fiber._dirty = fiber._stale = False
    fiber._stop = None
    if cancelled is not None and being_cancelled():
        raise cancelled


async def _undo_last(fiber: Fiber) -> None:
    effects = fiber._effects
    key = next(reversed(effects))
    last = effects[key]
    if isinstance(last, Effect):
        rest = last.undo_for_owner()
        try:
            if rest is not None:
                await rest
        finally:
            effects.pop(key, None)
        return
    group: list[Fiber] = []
    for item in reversed(effects.values()):
        if isinstance(item, Effect):
            break
        group.append(item)
    await _dispose_together(fiber, group)


async def _dispose_together(fiber: Fiber, group: list[Fiber]) -> None:
    """Tear down neighbouring children at once, and wait for all of them."""
    fiber._group = group
    try:
        for child in group:
            child.dispose()
        fiber.kernel.recheck_waits()
        for child in group:
            while (driver := child._driver) is not None and not driver.done():
                await wait_task(driver)
            fiber._effects.pop(child._serial, None)
    finally:
        fiber._group = None


def detach(fiber: Fiber) -> None:
    """Take a disposed fiber out of its owner."""
    if fiber.parent_fiber is not None:
        fiber.parent_fiber._effects.pop(fiber._serial, None)
    fiber._stop = None
