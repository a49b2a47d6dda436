"""How a context reads, provides and replaces services."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, overload

from dsh.kernel._services import Binding
from dsh.kernel.effect import Effect
from dsh.kernel.errors import (
    InactiveService,
    NotServiceOwner,
    ServiceNotProvided,
    UndeclaredService,
    WrongLoop,
)
from dsh.kernel.keys import Label, ServiceKey, service_name
from dsh.kernel.service import Service, service_check, view_of
from dsh.kernel.states import ACTIVE

if TYPE_CHECKING:
    from dsh.kernel._place import Place
    from dsh.kernel.context import Context
    from dsh.kernel.fiber import Fiber

S = TypeVar("S")


class Reading:
    """The part of a context that deals with services; holds the state of a context."""

    __slots__ = (
        "__weakref__",
        "_place",
        "_reader",
        "_views",
        "fiber",
        "parent",
        "root",
    )

    accepts_listener: ClassVar[None] = None
    """A context filters nobody; saying so spares carriers a failing look-up."""
    root: Context
    parent: Context | None
    fiber: Fiber
    _place: Place | None
    _reader: Fiber | None
    _views: dict[str, tuple[Binding, Any]] | None

    def label_of(self, name: str) -> Label | None:
        """Return the scope that a service name means here; None is the root's scope."""
        place = self._place
        if place is None or place.labels is None:
            return None
        return place.labels.get(name)

    def intercepts(self, name: str) -> tuple[Mapping[str, Any], ...]:
        """Return the config layers for a service here, root first."""
        place = self._place
        if place is None or place.layers is None:
            return ()
        return place.layers.get(name, ())

    @overload
    def get(self, key: ServiceKey[S], *, strict: bool = True) -> S | None: ...
    @overload
    def get(self, key: Callable[..., S], *, strict: bool = True) -> S | None: ...
    @overload
    def get(self, key: str, *, strict: bool = True) -> Any: ...
    def get(self, key: Any, *, strict: bool = True) -> Any:
        """Return a service, or None while it is not there; declaring it is not needed.

        Args:
            key: The service's class, ``ServiceKey`` or name.
            strict: Also answer None while its provider is loading, unloading or says that it
                is not available. What this plugin itself provides or loaded against is there.
        """
        binding = self._find(key if isinstance(key, str) else service_name(key), strict)
        return None if binding is None else self._value(binding)

    @overload
    def require(self, key: ServiceKey[S]) -> S: ...
    @overload
    def require(self, key: Callable[..., S]) -> S: ...
    @overload
    def require(self, key: str) -> Any: ...
    def require(self, key: Any) -> Any:
        """Return a service that this plugin declared, or that an ancestor provides.

        Raises:
            InactiveService: declared, but this plugin does not run against it now.
            UndeclaredService: neither declared nor provided by an ancestor.
            ServiceNotProvided: read on the root's own context, and nobody provides it.
        """
        name = key if isinstance(key, str) else service_name(key)
        return self._value(self._demand(name))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._value(self._demand(name))

    def provide(
        self, key: object, value: object, *, check: Callable[[], bool] | None = None
    ) -> Effect:
        """Provide a service here until this plugin unloads or the effect is disposed.

        Others see it while this plugin is active. Disposing the effect awaits the dependants.

        Args:
            key: The service's name, class or ``ServiceKey``.
            value: What readers get; a ``Service`` is seen through views.
            check: Whether dependants may load against it; asked when something changes.

        Raises:
            DuplicateService: the name is taken in this scope.
            InactiveEffect: this plugin is unloading or gone.
            WrongLoop: plugins wait for it, and no event loop runs that could start them.
        """
        guard = None if check is None else lambda _ctx: check()
        return self._provide(service_name(key), value, guard)[1]

    def provide_service(self, service: Service) -> Binding:
        """Provide a service under its own name; its ``check`` sees who asks."""
        return self._provide(service_name(type(service)), service, service_check(service))[0]

    def set(self, key: object, value: object) -> None:
        """Replace a provided value for everyone; dependants are not woken.

        Raises:
            ServiceNotProvided: nobody provides the name here.
            NotServiceOwner: another plugin does.
        """
        name = service_name(key)
        binding = self._table_find(name)
        if binding is None:
            raise ServiceNotProvided(name, "set")
        if binding.owner is not self.fiber:
            raise NotServiceOwner(name, binding.owner.title, self.fiber.title)
        binding.value = value

    def _provide(
        self, name: str, value: object, check: Callable[[Context], bool] | None
    ) -> tuple[Binding, Effect]:
        fiber = self.fiber
        fiber.check_active()
        services = fiber.kernel.services
        binding = services.add(name, self, value, check)  # type: ignore[arg-type]  # it is one
        effect = Effect(fiber, f'ctx.provide("{name}")', binding.withdraw)
        if fiber.state is ACTIVE:
            try:
                services.notify(name, binding.label)
            except WrongLoop:
                binding.live = False
                services.remove(binding)
                effect.forget()
                raise
        return binding, effect

    def _table_find(self, name: str) -> Binding | None:
        return self.fiber.kernel.services.find(name, self.label_of(name))

    def _find(self, name: str, strict: bool) -> Binding | None:
        label = self.label_of(name)
        reader = self._reader or self.fiber
        store = reader._store
        if store is not None and name in store and reader.ctx.label_of(name) is label:
            return store[name]
        binding = self.fiber.kernel.services.find(name, label)
        if binding is None or binding.owner is reader or not strict:
            return binding
        return binding if binding.available(self.fiber.ctx) else None

    def _demand(self, name: str) -> Binding:
        label = self.label_of(name)
        binding = self.fiber.kernel.services.find(name, label)
        fiber: Fiber = self._reader or self.fiber
        if fiber.parent_fiber is None:
            if binding is None:
                raise ServiceNotProvided(name)
            return binding
        while True:
            store = fiber._store
            if store is not None and name in store and fiber.ctx.label_of(name) is label:
                return store[name]
            if binding is not None and binding.owner is fiber:
                return binding
            above = fiber.parent_fiber
            if above is None:
                break
            if fiber._inject and name in fiber._inject and fiber.ctx.label_of(name) is label:
                raise InactiveService(name, fiber.title)
            if fiber.parent.label_of(name) is not label:
                break
            fiber = above
        provider = None if binding is None else binding.owner.title
        raise UndeclaredService(name, self.fiber.title, provider)

    def _value(self, binding: Binding) -> Any:
        value = binding.value
        if not isinstance(value, Service):
            return value
        views = self._views
        if views is None:
            views = {}
            object.__setattr__(self, "_views", views)
        cached = views.get(binding.name)
        if cached is not None and cached[0] is binding and cached[1] == value:
            return cached[1]
        view = view_of(value, self)  # type: ignore[arg-type]  # only contexts have this part
        views[binding.name] = (binding, view)
        return view
