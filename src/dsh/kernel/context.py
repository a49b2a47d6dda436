"""Contexts: where a plugin stands, and everything it can do from there."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast, overload

from dsh.base.signal import AbortSignal
from dsh.kernel import _hub
from dsh.kernel._dispatch import Dispatcher
from dsh.kernel._reading import Reading
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
_set = object.__setattr__


class Context(Reading, Dispatcher):
    """A place in the plugin tree; ``Context()`` makes a new root.

    Children share the fiber, the services, the data and the labels of their parent, except for
    what ``extend``, ``isolate`` and ``intercept`` change below them. Contexts are cheap.

    Attributes:
        root: The root context.
        parent: The context this one came from; None for the root.
        fiber: The plugin instance that owns what is registered here.
        base_url: What relative names of plugins are resolved against.
    """

    __slots__ = ()

    def __init__(self) -> None:
        kernel = RootState()
        fiber = Fiber(kernel, None, None, None)
        _fill(self, self, None, fiber, None, None, None, None, None)
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
        own = self._meta if not meta else {**(self._meta or {}), **meta}
        url = self.base_url if base_url is None else base_url
        return _derive(self, meta=own, base_url=url)

    def isolate(self, name: object, label: Label | None = None) -> Context:
        """Return a child in which a service name means another scope.

        Args:
            name: The service name, key or class.
            label: Contexts with equal labels share the scope; a fresh one when None.
        """
        key = service_name(name)
        labels = {**(self._labels or {}), key: label if label is not None else Label(key)}
        return _derive(self, labels=labels)

    def intercept(self, name: object, config: Mapping[str, Any]) -> Context:
        """Return a child below which a service gets one more layer of config."""
        key = service_name(name)
        layers = dict(self._intercepts or {})
        layers[key] = (*layers.get(key, ()), config)
        return _derive(self, intercepts=layers)

    @overload
    def __getitem__(self, key: ContextKey[T]) -> T | None: ...
    @overload
    def __getitem__(self, key: object) -> Any: ...
    def __getitem__(self, key: Any) -> Any:
        meta = self._meta
        if meta is not None and key in meta:
            return meta[key]
        return key.default

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
        return _derive(self, labels=reader._labels, reader=reader._reader or reader.fiber)

    def add_intercept(self, name: str, layer: Mapping[str, Any]) -> None:
        """Add a config layer in place, before the plugin's body sees this context."""
        layers = dict(self._intercepts or {})
        layers[name] = (*layers.get(name, ()), layer)
        _set(self, "_intercepts", layers)


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
    labels: Any = _KEEP,
    intercepts: Any = _KEEP,
    meta: Any = _KEEP,
    base_url: Any = _KEEP,
    reader: Fiber | None = None,
) -> Context:
    child: Context = object.__new__(Context)
    return _fill(
        child,
        source.root,
        source,
        source.fiber if fiber is None else fiber,
        source._labels if labels is _KEEP else labels,
        source._intercepts if intercepts is _KEEP else intercepts,
        source._meta if meta is _KEEP else meta,
        source.base_url if base_url is _KEEP else base_url,
        reader if fiber is not None or reader is not None else source._reader,
    )


def _fill(
    ctx: Context,
    root: Context,
    parent: Context | None,
    fiber: Fiber,
    labels: dict[str, Label] | None,
    intercepts: dict[str, tuple[Mapping[str, Any], ...]] | None,
    meta: dict[ContextKey[Any], Any] | None,
    base_url: str | None,
    reader: Fiber | None,
) -> Context:
    _set(ctx, "root", root)
    _set(ctx, "parent", parent)
    _set(ctx, "fiber", fiber)
    _set(ctx, "_labels", labels)
    _set(ctx, "_intercepts", intercepts)
    _set(ctx, "_meta", meta)
    _set(ctx, "base_url", base_url)
    _set(ctx, "_reader", reader)
    _set(ctx, "_views", None)
    return ctx
