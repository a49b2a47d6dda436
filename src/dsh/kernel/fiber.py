"""Fibers: running instances of plugins, and the requests that move them between states."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar

from dsh.base.signal import AbortSignal
from dsh.kernel import _drain, _transition
from dsh.kernel._explain import Missing, explain
from dsh.kernel._lease import Lease
from dsh.kernel._shapes import Handle, discard, is_work
from dsh.kernel._stack import join_fiber
from dsh.kernel._stray import as_failure
from dsh.kernel._tasks import own_task
from dsh.kernel._update import Transition, update_active
from dsh.kernel.disposal import SETTLED, Disposal, EffectInfo
from dsh.kernel.effect import Effect
from dsh.kernel.errors import InactiveEffect, WrongLoop
from dsh.kernel.events import (
    INTERNAL_CONFIG,
    INTERNAL_PLUGIN,
    INTERNAL_STATUS,
    ConfigResolving,
    FiberAnnounced,
    StatusChanged,
)
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
from dsh.kernel.validation import validate_config

if TYPE_CHECKING:
    from dsh.kernel._overdue import Patience
    from dsh.kernel._root import RootState
    from dsh.kernel._services import Binding
    from dsh.kernel._stack import Join
    from dsh.kernel.context import Context
    from dsh.kernel.plugins import Runtime

Target: TypeAlias = "int | tuple[int, ...] | None"
_GONE: Target = (-1,)
T = TypeVar("T")


class Fiber(Handle, Awaitable["Fiber"]):
    """One mounted plugin: its state, its config, and all that it registered.

    Awaiting a fiber waits until no transition is in flight and raises a failed body's error;
    a fiber that waits for services counts as settled.

    Attributes:
        uid: 0 for the root; None once disposal was requested.
        parent: The context it was mounted on; the root's own context for the root.
        ctx: The context its body gets.
        runtime: What is known of its plugin; None for the root.
        entry: The loader's row, if it has one; the kernel does not look at it.
        raw_config: As given; resolved and validated again on each activation.
        config: What the body got.
        error: What the last body raised, until it is tried again.
    """

    __slots__ = (
        "__weakref__",
        "_activated",
        "_body",
        "_dirty",
        "_drains",
        "_driver",
        "_effects",
        "_failed",
        "_group",
        "_inject",
        "_leases",
        "_loaded",
        "_patience",
        "_provided",
        "_revision",
        "_serial",
        "_setup",
        "_stale",
        "_stop",
        "_store",
        "_target",
        "_waits",
        "config",
        "ctx",
        "entry",
        "error",
        "kernel",
        "parent",
        "parent_fiber",
        "raw_config",
        "runtime",
        "site",
        "state",
        "uid",
    )
    is_fiber: ClassVar[bool] = True

    def __init__(
        self, kernel: RootState, parent: Context | None, runtime: Runtime | None, config: Any
    ) -> None:
        self.kernel = kernel
        self.runtime = runtime
        self.parent_fiber: Fiber | None = None if parent is None else parent.fiber
        self.parent: Context = parent  # type: ignore[assignment]  # the root sets its own context
        self.ctx: Context
        self.entry: Any = None
        self.site: tuple[Any, int] | None = None
        self.raw_config = self.config = config
        self.error: BaseException | None = None
        self.state = PENDING
        self.uid: int | None = kernel.uids
        kernel.uids += 1
        kernel.serial += 1
        self._serial = kernel.serial
        self._effects: dict[int, Any] = {}
        self._inject: dict[str, Any] | None = runtime.inject if runtime is not None else None
        self._store: dict[str, Binding] | None = None
        self._provided: list[Binding] | None = None
        self._target: Target = None
        self._loaded: Target = None
        self._failed: Target = None
        self._revision = 0
        self._dirty = False
        self._stale = False
        self._activated = False
        self._driver: asyncio.Task[None] | None = None
        self._body: Effect | None = None
        self._setup: asyncio.Task[Any] | None = None
        self._patience: Patience | None = None
        self._stop: _transition.Stop | None = None
        self._leases: dict[Lease, None] | None = None
        self._waits: dict[Join, None] | None = None
        self._group: Sequence[Fiber] | None = None
        self._drains: list[_drain.Drain] | None = None

    def __repr__(self) -> str:
        return f"<Fiber {self.name} uid={self.uid} {self.state.label}>"

    def __await__(self) -> Generator[Any, None, Fiber]:
        return self.wait().__await__()

    @property
    def name(self) -> str:
        """The plugin's name, else that of the nearest ancestor that has one, else ``root``."""
        fiber: Fiber | None = self
        while fiber is not None:
            if fiber.runtime is not None and fiber.runtime.name is not None:
                return fiber.runtime.name
            fiber = fiber.parent_fiber
        return "root"

    @property
    def title(self) -> str:
        """What messages call it: its plugin's name, or where a plugin without one is written."""
        runtime = self.runtime
        if runtime is None:
            return "root"
        return runtime.name or runtime.origin

    @property
    def inject(self) -> dict[str, Any]:
        """Declared services with intercept configs; may be added to until first activation."""
        own = self._inject
        if own is None:
            own = self._inject = {}
        elif self.runtime is not None and own is self.runtime.inject:
            own = self._inject = dict(own)
        return own

    @property
    def stop(self) -> AbortSignal:
        """Aborts as soon as this activation is stale, its own or an ancestor's.

        While work is in flight under a lease, that is when the wait for the work is over.
        """
        return _transition.stop_controller(self).signal

    def effects(self) -> list[EffectInfo]:
        """List the live, labelled effects, oldest first."""
        shown: list[EffectInfo] = []
        for item in self._effects.values():
            if isinstance(item, Fiber):
                if item.state is not DISPOSED:
                    shown.append(EffectInfo("ctx.plugin()"))
            elif item.label != "anonymous" and not item.done:
                shown.append(item.info())
        return shown

    async def wait(self) -> Fiber:
        """Wait until the fiber is settled.

        Raises:
            ReentrantAwait: called from inside the transition that it would wait for.
            Exception: what the body raised, when the fiber is FAILED; a ``StrayExit`` in
                place of what would end the awaiting task or the process.
        """
        await join_fiber(self)
        if self.error is not None and self.state is FAILED:
            raise self.error
        return self

    def dispose(self) -> Disposal:
        """Request disposal; await the result to join it.

        It acts at once (``uid`` is None, registrations are refused) and only once; later calls
        join. Disposing of the root undoes all that it holds and leaves it active.
        """
        if self.runtime is None:
            if self._driver is None and not self._effects:
                _transition.mark_stale(self)
                self._stop, self._stale = None, False
                return SETTLED
            self.kernel.check_loop("the root context")
            self._revision += 1
            self.refresh()
        elif self.uid is not None:
            self.kernel.check_loop("the plugin")
            self._retire()
        return Disposal(fiber=self)

    def restart(self) -> Transition:
        """Request that the body is undone and run again; await the result to join it.

        Raises:
            InactiveEffect: the fiber is disposed of.
            WrongLoop: the root belongs to another loop or thread.
        """
        self._check_alive()
        self._revision += 1
        self._forget_error()
        self.refresh()
        return Transition(self)

    def update(self, config: Any, *, no_save: bool = False) -> Transition:
        """Give the fiber another config; an active one restarts unless a listener takes it live.

        Args:
            config: The new raw config.
            no_save: For listeners: do not write it back.

        Returns:
            Awaits the restart; its value is what ``internal/update`` answered.

        Raises:
            InactiveEffect: the fiber is disposed of.
            ValidationError: the config does not fit; the fiber stays as it was.
        """
        self._check_alive()
        if self.state is ACTIVE:
            return update_active(self, config, no_save)
        self.raw_config = config
        if self.state is LOADING:
            self._revision += 1
        self._forget_error()
        self.refresh()
        return Transition(self)

    def lease(self, label: str, *, owner: Fiber | None = None) -> AbstractContextManager[None]:
        """Return what marks work in flight through this plugin, for one ``with`` statement.

        An unload or reload of the plugin waits for it, for a grace at most (see
        ``Context.set_lease_grace``); what is left then is reported. Until then the plugin works
        on as if nothing were: it stays active and so do its dependants, what it holds of others
        stays readable, effects may be registered on it, and its stop signal is silent. The wait
        leaves out work that itself waits for that unload, from tasks started inside, too, and
        work that only a teardown can end that waits for this plugin.

        Args:
            label: What is going on, for whoever reads why an unload takes its time.
            owner: The plugin whose unload would end the work; when None, the one that owns the
                task or transition that enters.

        Raises:
            InactiveEffect: on entering, when the plugin is unloading, gone, or told to go.
        """
        return Lease(self, label, owner)

    @property
    def leases(self) -> tuple[str, ...]:
        """The labels of the work in flight, oldest first."""
        return tuple(lease.label for lease in self._leases or ())

    def explain(self) -> list[Missing]:
        """Say, for each declared service that is not there, why."""
        return explain(self)

    # what the kernel's other parts use

    def check_active(self) -> None:
        """Refuse registrations while unloading and after disposal, but for work in flight.

        Raises:
            InactiveEffect: the fiber takes no registrations now.
            WrongLoop: the root belongs to another loop or thread.
        """
        if not _transition.takes_registrations(self):
            state = self.state if self.uid is not None else DISPOSED
            raise InactiveEffect(self.title, state.label)
        self.kernel.check_loop("the context")

    def undo_for_owner(self) -> Awaitable[None] | None:
        """Dispose for the owner's unload; ``None`` when nothing is left to wait for."""
        self.dispose()
        return join_fiber(self) if self._driver is not None else None

    def activate(self) -> None:
        """Start to follow the declared services, after the mount was announced."""
        if self.uid is None or self._activated:
            return
        self._activated = True
        if self._inject:
            for name, need in self._inject.items():
                self.kernel.services.watch(self, name)
                layer = need.config if isinstance(need, OptionalNeed) else need
                if layer is not None:
                    self.ctx.add_intercept(name, layer)
        self.refresh()

    def refresh(self) -> None:
        """Compute what the fiber should run against, and start a transition if that changed."""
        target = _transition.compute_target(self)
        if self._failed is not None:
            if target == self._failed:
                target = None
            elif target is None:
                self._failed = _GONE
            else:
                self._forget_error()
        if target == self._target:
            if self.state is FAILED and self.error is None:
                self.kick()
            return
        self._target = target
        if self._dirty and target != self._loaded:
            _transition.mark_stale(self)
        try:
            self.kick()
        except WrongLoop:
            self._target = None
            raise

    def kick(self) -> None:
        """Start the driver if there is something to do and none runs."""
        if self._driver is not None or self.state is DISPOSED:
            return
        alive = self.uid is not None
        if not alive and not self._effects and not self._dirty:
            self.set_state(DISPOSED)
            _transition.detach(self)
            return
        if alive and self._target is None and not self._dirty:
            self.set_state(FAILED if self.error is not None else PENDING)
            return
        work = _transition.drive(self)
        self._driver = self.kernel.start(work, f"fiber {self.name}", forgets=True)
        if alive and not self._dirty:
            self.set_state(LOADING)
        elif self._leases is None or self.runtime is None:
            self.set_state(UNLOADING)

    def set_state(self, state: FiberState) -> None:
        """Enter a state, tell listeners, and let dependants look at what this fiber provides."""
        old = self.state
        if old is state:
            return
        self.state = state
        kernel = self.kernel
        if kernel.hub.listens(INTERNAL_STATUS.name):
            kernel.hub.emit(INTERNAL_STATUS, StatusChanged(self, old))
        if self._provided is not None and (old is ACTIVE or state is ACTIVE):
            for binding in tuple(self._provided):
                kernel.services.notify(binding.name, binding.label)

    def resolve_config(self, raw: Any) -> Any:
        """Let listeners transform a raw config, then validate it."""
        hub = self.kernel.hub
        if hub.listens(INTERNAL_CONFIG.name):
            request = ConfigResolving(self, raw)
            raw = hub.waterfall_sync(INTERNAL_CONFIG, request, lambda: request.config, None)
        model = self.runtime.config_model if self.runtime is not None else None
        return raw if model is None else validate_config(model, raw)

    def own_task(
        self,
        work: Awaitable[T],
        label: str,
        *,
        cancel: bool,
        critical: bool = False,
        bounded: bool = False,
    ) -> asyncio.Task[T]:
        """Run ``work`` in a task that this fiber's unload cancels (or not) and awaits.

        An error is reported; with ``critical`` it also fails the fiber. What is not cancelled at
        once may be ``bounded``: it is when the grace of leases is over.
        """
        return own_task(self, work, label, cancel, critical, bounded)

    def run_supervised(self, call: Callable[[], object], label: str) -> None:
        """Call a function nobody waits for: errors are reported, coroutines become tasks."""
        try:
            result = call()
            if result is not None and is_work(result):
                self.own_task(result, label, cancel=False, bounded=True)  # type: ignore[arg-type]
        except BaseException as error:
            self.kernel.report(as_failure(error, self, label), self, label)

    def fail(self, error: BaseException) -> None:
        """Put an active fiber into FAILED, because something essential of it died."""
        _transition.fail_from_outside(self, error)

    def drain(self, bindings: Sequence[Binding]) -> Awaitable[None]:
        """Wait until dependants let go of these bindings."""
        return _drain.drain(self, bindings)

    def wake_drain(self) -> None:
        """Let a waiting ``drain`` look again."""
        for drain in self._drains or ():
            drain.look_again()

    def announce(self) -> list[Exception]:
        """Tell ``internal/plugin`` listeners; returns what they raised, after all ran."""
        hub = self.kernel.hub
        if not hub.listens(INTERNAL_PLUGIN.name):
            return []
        payload, errors = FiberAnnounced(self), []
        for listener in hub.select(INTERNAL_PLUGIN, payload, None):
            try:
                result = listener.call(payload)
                if result is not None and is_work(result):
                    owner = listener.ctx.fiber
                    owner.own_task(result, "internal/plugin", cancel=False, bounded=True)
            except BaseException as error:
                errors.append(as_failure(error, listener.ctx.fiber, INTERNAL_PLUGIN.name))
        return errors

    def _retire(self) -> None:
        self._forget_mount()
        _transition.mark_stale(self)
        for error in self.announce():
            self.kernel.report(error, self, "internal/plugin at disposal")
        self.kick()

    def _forget_mount(self) -> None:
        self.uid = None
        runtime = self.runtime
        if runtime is not None:
            runtime.fibers.pop(self, None)
            self.kernel.registry.drop_if_unused(runtime)
        if self._activated and self._inject:
            for name in self._inject:
                self.kernel.services.unwatch(self, name)
        self._target = None

    def abandon(self) -> None:
        """Take back a mount that could not begin, for want of a loop."""
        self._forget_mount()
        for effect in reversed(tuple(self._effects.values())):
            discard(effect.undo_for_owner())
        self._effects.clear()
        self.state = DISPOSED
        _transition.detach(self)

    def _check_alive(self) -> None:
        if self.uid is None:
            raise InactiveEffect(self.title, DISPOSED.label)
        self.kernel.check_loop("the plugin")

    def _forget_error(self) -> None:
        self._failed = None
        self.error = None
