"""Contexts: where a plugin stands, and everything it can do from there."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast, overload

from dsh.base.signal import AbortSignal
from dsh.kernel import _hub
from dsh.kernel._dispatch import Dispatcher
from dsh.kernel._place import Place, joined
from dsh.kernel._reading import Reading
from dsh.kernel._rebase import rebase
from dsh.kernel._root import Census, Reporter, RootState
from dsh.kernel._shapes import enter_into
from dsh.kernel.disposal import Disposal
from dsh.kernel.effect import Effect, EffectLike
from dsh.kernel.errors import ContextReadOnly, InvalidEffect, WrongLoop
from dsh.kernel.fiber import Fiber
from dsh.kernel.keys import AGENT, ContextKey, Label, service_name
from dsh.kernel.plugins import InjectLike, Plugin, Runtime
from dsh.kernel.states import ACTIVE

if TYPE_CHECKING:
    from dsh.kernel.registry import Registry

T = TypeVar("T")
Ctx = TypeVar("Ctx", bound="Context")
_NOTHING: Mapping[str, Any] = MappingProxyType({})
_set = object.__setattr__


class Context(Reading, Dispatcher):
    """A place in the plugin tree; ``Context()`` makes a new root.

    Children share the fiber, the services, the data and the labels of their parent, except for
    what ``extend``, ``isolate`` and ``intercept`` change below them. Contexts are cheap.

    Attributes:
        root: The root context.
        parent: The context this one came from; None for the root.
        fiber: The plugin instance that owns what is registered here.
    """

    __slots__ = ()

    def __init__(self) -> None:
        kernel = RootState()
        fiber = Fiber(kernel, None, None, None)
        _fill(self, self, None, None, None)
        _set(self, "fiber", fiber)
        fiber.parent = fiber.ctx = self
        fiber._target = fiber._loaded = fiber._revision
        fiber._dirty = True
        fiber.state = ACTIVE
        kernel.root_fiber = fiber

    def __repr__(self) -> str:
        return f"Context <{self.fiber.name}>"

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise ContextReadOnly(name)

    @staticmethod
    def is_(value: object) -> bool:
        """Whether a value is a context."""
        return isinstance(value, Context)

    # derivation

    def extend(
        self, *, meta: Mapping[ContextKey[Any], Any] | None = None, base_url: str | None = None
    ) -> Context:
        """Return a child with more data; this context is left as it is."""
        if not meta and base_url is None:
            return _derive(self)
        return _derive(self, place=Place(self._place, meta=meta, base_url=base_url))

    def isolate(self, name: object, label: Label | None = None) -> Context:
        """Return a child in which a service name means another scope.

        Args:
            name: The service name, key or class.
            label: Contexts with equal labels share the scope; a fresh one when None.
        """
        key = service_name(name)
        own = {key: label if label is not None else Label(key)}
        return _derive(self, place=Place(self._place, labels=own))

    def intercept(self, name: object, config: Mapping[str, Any]) -> Context:
        """Return a child below which a service gets one more layer of config."""
        layers = {service_name(name): (config,)}
        return _derive(self, place=Place(self._place, layers=layers))

    def anchor(self) -> Context:
        """Return a child whose place in the tree ``rebase`` can change later.

        All that is derived from it, and the plugins mounted there, follow each change.
        """
        return _anchored(self, None, Place(self._place, movable=True))

    def rebase(
        self,
        *,
        parent: Context | None = None,
        isolate: Mapping[str, Label] = _NOTHING,
        intercept: Mapping[str, Mapping[str, Any]] = _NOTHING,
    ) -> None:
        """Give an anchor another place, and all below it with it, without a restart.

        What is provided below goes to the scopes that its names mean from now on. Plugins
        anywhere reload when the service that they would get is another one, and only then.
        Plugins that are mounted on the anchor become children of ``parent``'s plugin, the
        youngest ones; what else was registered on the anchor itself, and plugins that an effect
        collected, stay with their owner. Data and base address are the new place's; what was
        registered by way of such data, as in a scope, stays where it is.

        Args:
            parent: The context that it is a child of from now on; as it is when None.
            isolate: The scopes of service names, in place of the anchor's own so far.
            intercept: Config layers of services, in place of the anchor's own so far.

        Raises:
            RebaseError: this is no anchor, or ``parent`` is below it or of another root.
            DuplicateService: what is provided below would go to a scope that has another such
                service; nothing has changed.
            InactiveEffect: the plugin of ``parent`` is unloading or gone.
            WrongLoop: the root belongs to another loop or thread.
        """
        rebase(self, parent, isolate, intercept)

    @overload
    def __getitem__(self, key: ContextKey[T]) -> T | None: ...
    @overload
    def __getitem__(self, key: object) -> Any: ...
    def __getitem__(self, key: Any) -> Any:
        place = self._place
        if place is not None and place.meta is not None and key in place.meta:
            return place.meta[key]
        return key.default

    @property
    def base_url(self) -> str | None:
        """What relative names of plugins are resolved against."""
        return None if self._place is None else self._place.base_url

    @property
    def agent(self) -> Any:
        """Whose context this is; None on a plain one."""
        return self[AGENT]

    @property
    def registry(self) -> Registry:
        """The plugins of this root."""
        return self.fiber.kernel.registry

    @property
    def stop(self) -> AbortSignal:
        """Aborts as soon as the current activation of this plugin is stale."""
        return self.fiber.stop

    # plugins

    def plugin(self, plugin: Plugin, config: Any = None) -> Fiber:
        """Mount a plugin here; await the fiber to wait until it runs, or waits for services.

        Raises:
            InvalidPlugin: the value has no plugin shape.
            InactiveEffect: this context's plugin is unloading or gone.
            WrongLoop: its body cannot run, because no event loop does, or not the root's.
        """
        self.fiber.check_active()
        registry = self.fiber.kernel.registry
        return self._mount(registry.obtain(plugin), config)

    def inject(self, deps: InjectLike, body: Callable[[Context], Any]) -> Fiber:
        """Run ``body`` as a plugin of its own whenever the services are there."""
        self.fiber.check_active()
        runtime = Runtime(_Injected(deps, body), body)
        return self._mount(runtime, None)

    def dispose(self) -> Disposal:
        """Dispose of this context's plugin; on a root, of all that it holds."""
        return self.fiber.dispose()

    def _mount(self, runtime: Runtime, config: Any) -> Fiber:
        owner = self.fiber
        fiber = Fiber(owner.kernel, self, runtime, config)
        fiber.ctx = _derive(self, fiber=fiber)
        frame = sys._getframe(2)
        fiber.site = (frame.f_code, frame.f_lineno)
        owner._effects[fiber._serial] = fiber
        runtime.fibers[fiber] = None
        if errors := fiber.announce():
            fiber.dispose()
            _hub.raise_all("internal/plugin listeners refused the mount", errors)
        try:
            fiber.activate()
        except WrongLoop:
            fiber.abandon()
            raise
        return fiber

    # effects

    def effect(self, setup: Callable[[], EffectLike], label: str = "anonymous") -> Effect:
        """Run a setup and own how to undo it.

        Args:
            setup: Called at once. What it returns says how to undo: a callable, a context
                manager (entered now), an iterator of undo callables, or an awaitable or
                asynchronous iterator or context manager, which go on in a task.
            label: Shown by ``Fiber.effects``.

        Returns:
            The effect; await it to wait for an asynchronous setup.

        Raises:
            InactiveEffect: this context's plugin is unloading or gone.
            InvalidEffect: the setup returned none of these; what it collected is undone.
        """
        self.fiber.check_active()
        if not callable(setup):
            raise InvalidEffect(label, setup)
        effect = Effect(self.fiber, label)
        effect.run_setup(setup)
        return effect

    def defer(self, undo: Callable[[], object], label: str = "anonymous") -> Effect:
        """Own an undo for something that is set up already; it may be a coroutine function."""
        self.fiber.check_active()
        if not callable(undo):
            raise InvalidEffect(label, undo)
        return Effect(self.fiber, label, undo)

    def enter(self, cm: AbstractContextManager[T], label: str = "ctx.enter()") -> T:
        """Enter a context manager and leave it when this plugin unloads."""
        self.fiber.check_active()
        undos: list[Any] = []
        value = enter_into(undos, cm)
        Effect(self.fiber, label, undos[0])
        return cast("T", value)

    async def enter_async(
        self, cm: AbstractAsyncContextManager[T], label: str = "ctx.enter_async()"
    ) -> T:
        """Enter an asynchronous context manager and leave it when this plugin unloads."""
        entered: list[T] = []

        async def setup() -> Callable[[], object]:
            entered.append(await cm.__aenter__())
            return partial(cm.__aexit__, None, None, None)

        await self.effect(setup, label)
        return entered[0]

    def spawn(
        self, coro: Coroutine[Any, Any, T], name: str, *, critical: bool = False
    ) -> asyncio.Task[T]:
        """Run a coroutine in a task that is cancelled and awaited when this plugin unloads.

        Args:
            coro: The work. An error it ends with is reported.
            name: The task's name.
            critical: Let such an error put the plugin into FAILED.
        """
        try:
            self.fiber.check_active()
            label = f'ctx.spawn("{name}")'
            return self.fiber.own_task(coro, label, cancel=True, critical=critical)
        except BaseException:
            coro.close()
            raise

    # errors and diagnosis

    def report(self, error: BaseException, owner: Fiber | None = None, label: str = "") -> None:
        """Hand over an error that is contained here; the default writes it to the log."""
        fiber = self.fiber
        fiber.kernel.report(error, owner if owner is not None else fiber, label or "error")

    def set_reporter(self, reporter: Reporter) -> Effect:
        """Let a function get all contained errors of this root until the effect is undone."""
        kernel = self.fiber.kernel

        def setup() -> Callable[[], None]:
            previous, kernel.reporter = kernel.reporter, reporter

            def undo() -> None:
                if kernel.reporter is reporter:
                    kernel.reporter = previous

            return undo

        return self.effect(setup, "ctx.set_reporter()")

    def set_lease_grace(self, seconds: float) -> None:
        """Set how long unloads of this root wait for work in flight; see ``Fiber.lease``.

        A setup that is not wanted any more has as long to end by itself.
        """
        self.fiber.kernel.lease_grace_s = seconds

    def listener_count(self, name: str | None = None) -> int:
        """Count the root's listeners of one event, or of all."""
        return self.fiber.kernel.hub.count(name)

    def census(self) -> Census:
        """Count what is alive under this root."""
        kernel = self.fiber.kernel
        fibers, effects = 0, 0
        stack = [kernel.root_fiber]
        while stack:
            fiber = stack.pop()
            fibers += 1
            for item in fiber._effects.values():
                if isinstance(item, Fiber):
                    stack.append(item)
                else:
                    effects += 1
        return Census(
            fibers=fibers,
            effects=effects,
            listeners=kernel.hub.count(),
            services=kernel.services.count(),
            dependants=sum(map(len, kernel.services.dependants.values())),
            runtimes=len(kernel.registry),
            tasks=len(kernel.tasks),
        )

    # what the kernel's other parts use

    def reading_as(self, reader: Context) -> Context:
        """Return a context that owns as this one and reads services as ``reader``."""
        if reader.fiber is self.fiber and self._reader is None:
            return self
        place = joined(self._place, reader._place)
        return _derive(self, place=place, reader=reader._reader or reader.fiber)

    def add_intercept(self, name: str, layer: Mapping[str, Any]) -> None:
        """Add a config layer in place, before the plugin's body sees this context."""
        _set(self, "_place", Place(self._place, layers={name: (layer,)}))


class Anchored(Context):
    """An anchor, or a context derived from one: its plugin is that of where the anchor is."""

    __slots__ = ("_anchor",)
    _anchor: Anchored | None

    @property
    def fiber(self) -> Fiber:  # type: ignore[override]  # read-only here, and in effect everywhere
        """The plugin instance that owns what is registered here."""
        above = (self if self._anchor is None else self._anchor).parent
        assert above is not None
        return above.fiber


class _Injected:
    """The plugin behind ``Context.inject``: a body with services, without a name."""

    def __init__(self, deps: InjectLike, body: Callable[[Context], Any]) -> None:
        self.inject = deps
        self.apply = body


_KEEP: Any = object()


def _derive(
    source: Context,
    *,
    fiber: Fiber | None = None,
    place: Any = _KEEP,
    reader: Fiber | None = None,
) -> Context:
    where = source._place if place is _KEEP else place
    if fiber is None:
        reader = reader or source._reader
        if isinstance(source, Anchored):
            own = _anchored(source, source._anchor or source, where)
            _set(own, "_reader", reader)
            return own
        fiber = source.fiber
    child = _fill(object.__new__(Context), source.root, source, where, reader)
    _set(child, "fiber", fiber)
    return child


def _anchored(source: Context, anchor: Anchored | None, place: Place | None) -> Context:
    child = _fill(object.__new__(Anchored), source.root, source, place, source._reader)
    _set(child, "_anchor", anchor)
    return child


def _fill(
    ctx: Ctx, root: Context, parent: Context | None, place: Place | None, reader: Fiber | None
) -> Ctx:
    _set(ctx, "root", root)
    _set(ctx, "parent", parent)
    _set(ctx, "_place", place)
    _set(ctx, "_reader", reader)
    _set(ctx, "_views", None)
    return ctx
