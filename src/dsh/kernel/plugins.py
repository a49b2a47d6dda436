"""The shapes of a plugin and what is read from them."""

from __future__ import annotations

import inspect as _inspect
from collections.abc import Callable, Iterable, Mapping
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from dsh.kernel.errors import InvalidPlugin
from dsh.kernel.keys import ServiceKey, service_name

if TYPE_CHECKING:
    from dsh.kernel.context import Context

F = TypeVar("F", bound=Callable[..., Any])

Plugin: TypeAlias = Any
"""A module or object with ``apply``, a function ``(ctx[, config])``, or a class."""

_UNNAMED = frozenset({"apply", "<lambda>"})
_MARK = "__dsh_inject__"


class OptionalNeed:
    """A declared service that does not gate; the plugin reloads when its provider changes."""

    __slots__ = ("config", "key")

    def __init__(self, key: object, config: Mapping[str, Any] | None = None) -> None:
        self.key = key
        self.config = config

    def __repr__(self) -> str:
        return f"Inject.optional({service_name(self.key)!r})"


InjectKey: TypeAlias = "str | type[Any] | ServiceKey[Any] | OptionalNeed"
InjectLike: TypeAlias = "Iterable[InjectKey] | Mapping[Any, Any] | str | type[Any] | None"


class Inject:
    """Ways to declare services beyond a plain sequence or mapping of them."""

    @staticmethod
    def optional(
        key: str | type[Any] | ServiceKey[Any], config: Mapping[str, Any] | None = None
    ) -> OptionalNeed:
        """Declare a service that the plugin can do without; read it with ``ctx.get``."""
        return OptionalNeed(key, config)


def read_inject(declared: InjectLike) -> dict[str, Any]:
    """Normalise a declaration to a mapping from service name to intercept config.

    The value is an ``OptionalNeed`` where the service does not gate.
    """
    needs: dict[str, Any] = {}
    if declared is None:
        return needs
    if isinstance(declared, (str, ServiceKey, OptionalNeed, type)):
        declared = (declared,)
    if isinstance(declared, Mapping):
        for key, config in declared.items():
            needs[service_name(key)] = config
        return needs
    for key in declared:
        if isinstance(key, OptionalNeed):
            needs[service_name(key.key)] = key
        else:
            needs[service_name(key)] = None
    return needs


def plugin(
    *,
    name: str | None = None,
    inject: InjectLike = None,
    config: Any = None,
    cancel_setup: bool = False,
) -> Callable[[F], F]:
    """Give a function plugin its name, services and config model.

    Args:
        name: What messages call it.
        inject: Services it needs.
        config: What its config is validated by.
        cancel_setup: Cancel the body as soon as it is not wanted any more, instead of after the
            grace for work in flight.
    """

    def mark(function: F) -> F:
        if name is not None:
            function.name = name  # type: ignore[attr-defined]
        if inject is not None:
            function.inject = inject  # type: ignore[attr-defined]
        if config is not None:
            function.Config = config  # type: ignore[attr-defined]
        if cancel_setup:
            function.cancel_setup = True  # type: ignore[attr-defined]
        return function

    return mark


def inject(
    key: str | type[Any] | ServiceKey[Any], config: Mapping[str, Any] | None = None
) -> Callable[[F], F]:
    """Run a method of a class plugin as a child plugin whenever a service is there.

    The method may take the child's context; what it returns is its cleanup. Stacked
    decorators wait for all their services.
    """

    def mark(method: F) -> F:
        needs = dict(getattr(method, _MARK, {}))
        needs[service_name(key)] = config
        setattr(method, _MARK, needs)
        return method

    return mark


class Runtime:
    """What the kernel knows of a plugin, shared by all its fibers."""

    __slots__ = (
        "_takes_config",
        "callback",
        "cancel_setup",
        "config_model",
        "deleted",
        "fibers",
        "inject",
        "kind",
        "methods",
        "name",
        "provides",
    )

    def __init__(self, plugin: Plugin, callback: Callable[..., Any]) -> None:
        self.callback = callback
        source = plugin if plugin is not callback or isinstance(callback, type) else callback
        self.name = _name_of(source, callback)
        self.cancel_setup = bool(getattr(source, "cancel_setup", False))
        self.config_model = getattr(source, "Config", None)
        self.kind = "class" if isinstance(callback, type) else "function"
        self.methods: tuple[tuple[str, dict[str, Any]], ...] = ()
        if isinstance(callback, type):
            declared: Any = _class_inject(callback)
            self.methods = _injected_methods(callback)
        else:
            declared = getattr(source, "inject", None)
        self.inject: dict[str, Any] = read_inject(declared) if declared else _NO_NEEDS
        self.provides = _provides(source, callback)
        self._takes_config = _takes_config(callback)
        self.fibers: dict[Any, None] = {}
        self.deleted = False

    @property
    def origin(self) -> str:
        """Where the body is written: its module and its name there."""
        found = self.callback
        if not hasattr(found, "__qualname__"):
            found = type(found)
        return f"{found.__module__}.{found.__qualname__}"

    def run(self, ctx: Context, config: Any) -> Any:
        """Run the body; returns what its cleanup is made of."""
        args = (ctx, config) if self._takes_config else (ctx,)
        made = self.callback(*args)
        if self.kind != "class":
            return made
        for name, needs in self.methods:
            _mount_method(ctx, needs, getattr(made, name))
        start = getattr(made, "start", None)
        return start() if start is not None else None


_NO_NEEDS: dict[str, Any] = {}


def callable_of(plugin: Plugin) -> Callable[..., Any]:
    """Return what a plugin is keyed by: the function, the class, or its ``apply``.

    Raises:
        InvalidPlugin: the value has no plugin shape.
    """
    if isinstance(plugin, (FunctionType, type)):
        return plugin
    apply = getattr(plugin, "apply", None)
    if callable(apply):
        return apply  # type: ignore[no-any-return]
    if callable(plugin):
        return plugin  # type: ignore[no-any-return]
    raise InvalidPlugin(plugin)


def _name_of(source: Any, callback: Callable[..., Any]) -> str | None:
    name = getattr(source, "name", None)
    if not isinstance(name, str):
        name = getattr(callback, "__name__", None)
    return None if name is None or name in _UNNAMED else name


def _provides(source: Any, callback: Callable[..., Any]) -> tuple[str, ...]:
    """Return the services that a plugin says it provides; a service class, that of its name."""
    declared = getattr(source, "provide", None)
    if declared is None or callable(declared):
        name = getattr(callback, "name", None) if getattr(callback, "is_service", False) else None
        return (name,) if isinstance(name, str) else ()
    return tuple(read_inject(declared))


def _class_inject(cls: type) -> dict[str, Any]:
    needs: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        declared = vars(base).get("inject")
        if declared is not None and not callable(declared):
            needs.update(read_inject(declared))
    return needs


def _injected_methods(cls: type) -> tuple[tuple[str, dict[str, Any]], ...]:
    found: dict[str, dict[str, Any]] = {}
    for base in reversed(cls.__mro__):
        for name, member in vars(base).items():
            needs = getattr(member, _MARK, None)
            if needs:
                found[name] = needs
            else:
                found.pop(name, None)
    return tuple(found.items())


def _mount_method(ctx: Context, needs: dict[str, Any], method: Callable[..., Any]) -> None:
    if _positional_count(method) >= 1:
        ctx.inject(needs, method)
    else:
        call = lambda _ctx: method()  # noqa: E731  # a name would become the plugin's
        call.__module__, call.__qualname__ = method.__module__, method.__qualname__
        ctx.inject(needs, call)


def _takes_config(callback: Callable[..., Any]) -> bool:
    if isinstance(callback, type):
        init: Any = getattr(callback, "__init__", None)
        if init is object.__init__:
            return False
        return _positional_count(init) >= 3
    return _positional_count(callback) >= 2


def _positional_count(function: Any) -> int:
    bound = 0
    if isinstance(function, MethodType):
        function, bound = function.__func__, 1
    code = getattr(function, "__code__", None)
    if code is not None and getattr(function, "__wrapped__", None) is None:
        if code.co_flags & _inspect.CO_VARARGS:
            return 99
        return int(code.co_argcount) - bound
    kinds = (_inspect.Parameter.POSITIONAL_ONLY, _inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        parameters = _inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 2
    if any(parameter.kind is _inspect.Parameter.VAR_POSITIONAL for parameter in parameters):
        return 99
    return sum(parameter.kind in kinds for parameter in parameters)
