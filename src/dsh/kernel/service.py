"""The base of services: provided under a name, seen by each caller through its own view."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from dsh.kernel.effect import EffectLike

if TYPE_CHECKING:
    from dsh.kernel._services import Binding
    from dsh.kernel.context import Context
    from dsh.kernel.plugins import InjectLike


class Service:
    """A plugin class whose instance is a service.

    Constructing it provides it at once; other plugins see it when ``start`` has finished. What
    a reader gets is a *view*: the same attributes, with ``caller`` being the reader.

    Attributes:
        name: The service key.
        inject: Services it needs itself.
        Config: What its config is validated by.
        ctx: The owner's context: effects made on it die with the service.
        config: The validated config.
    """

    __slots__ = ("__dict__", "__weakref__", "_caller", "_via")

    is_service: ClassVar[bool] = True
    name: ClassVar[str]
    inject: ClassVar[InjectLike] = ()
    Config: ClassVar[Any] = None
    ctx: Context
    config: Any
    if TYPE_CHECKING:
        _caller: Context | None
        _via: Context | None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if any(slot not in Service.__slots__ for slot in _own_slots(cls)):
            raise TypeError(f"service class {cls.__name__} has __slots__, which views cannot share")

    def __init__(self, ctx: Context, config: Any = None) -> None:
        self.ctx = ctx
        self.config = config
        self._binding: Binding = ctx.provide_service(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Service) and other.__dict__ is self.__dict__

    def __hash__(self) -> int:
        return id(self.__dict__)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} service {getattr(self, 'name', '?')!r}>"

    @property
    def caller(self) -> Context:
        """Who holds this reference: effects made here are the caller's, reads are ``ctx``'s."""
        caller: Context | None = getattr(self, "_caller", None)
        if caller is None:
            via = self._via_or_none()
            caller = self._caller = self.ctx if via is None else via.reading_as(self.ctx)
        return caller

    def start(self) -> EffectLike:
        """Set up; the service becomes visible to others when this has finished.

        May be a coroutine or a generator, and may return how to undo it.
        """
        return None

    def check(self) -> bool:
        """Whether dependants may load against it; ``caller`` is the one that asks."""
        return True

    def refresh(self) -> None:
        """Ask dependants to look at ``check`` again."""
        binding = self._binding
        if binding.live:
            binding.table.notify(binding.name, binding.label)

    def resolve_config(
        self, base: Mapping[str, Any] | None = None, head: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Merge config layers for the caller: ``base``, then intercepts root first, then ``head``.

        ``Config.merge(layers)`` decides how when it exists; else later keys win.
        """
        via: Context = self._via_or_none() or self.ctx
        layers = [layer for layer in (base, *via.intercepts(self._binding.name), head) if layer]
        merge = getattr(self.Config, "merge", None)
        if merge is not None:
            return dict(merge(layers))
        return {key: value for layer in layers for key, value in layer.items()}

    def same_scope(self, ctx: Context) -> bool:
        """Whether a context reads this service's name in the scope this service lives in."""
        binding = self._binding
        return ctx.label_of(binding.name) is binding.label

    def _via_or_none(self) -> Context | None:
        return getattr(self, "_via", None)

    def accepts_listener(self, ctx: Context) -> bool:
        """Filter listeners when the service is the target of a dispatch."""
        return self.same_scope(ctx)


def view_of(service: Service, via: Context) -> Service:
    """Make the view of a service that a reading context gets."""
    view = object.__new__(type(service))
    view.__dict__ = service.__dict__
    view._via = via
    return view


def service_check(service: Service) -> Any:
    """Return the availability check of a service class that overrides ``check``."""
    if type(service).check is Service.check:
        return None
    return lambda ctx: view_of(service, ctx).check()


def _own_slots(cls: type) -> tuple[str, ...]:
    slots = vars(cls).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)
