"""``@value``: frozen, slotted data classes that are cheap to define.

A program start defines hundreds of them. ``dataclasses`` compiles up to seven functions for
each, which was a fifth of the whole start-up; this compiles one, when the first instance is made,
and shares the others. Type checkers treat it as a dataclass. ``dataclasses.field`` sets what a
field does not share with the others: a default that is made anew, ``repr=False``,
``compare=False``, ``kw_only=True``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, field
from inspect import get_annotations
from typing import Any, NoReturn, TypeVar, dataclass_transform, overload

__all__ = ["changed", "record", "value"]

_T = TypeVar("_T")
_C = TypeVar("_C", bound=type)


@overload
def value(cls: _C, /) -> _C: ...
@overload
def value(*, kw_only: bool = False, eq: bool = True) -> Callable[[_C], _C]: ...
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(cls: Any = None, /, *, kw_only: bool = False, eq: bool = True) -> Any:
    """Make a class whose instances hold what their annotations say, and never change.

    They compare and hash by content, print as a call of their class, and have no ``__dict__``.
    ``__post_init__`` runs if there is one. Fields of base classes come first.

    Args:
        cls: The class, when used without parentheses.
        kw_only: All fields of this class are given by name.
        eq: Compare by content; otherwise by identity.
    """
    if cls is not None:
        return _define(cls, frozen=True, kw_only=kw_only, eq=eq)
    return lambda cls: _define(cls, frozen=True, kw_only=kw_only, eq=eq)


@overload
def record(cls: _C, /) -> _C: ...
@overload
def record(*, kw_only: bool = False) -> Callable[[_C], _C]: ...
@dataclass_transform(field_specifiers=(field,))
def record(cls: Any = None, /, *, kw_only: bool = False) -> Any:
    """Make a class like `value` whose instances may change; these have no hash."""
    if cls is not None:
        return _define(cls, frozen=False, kw_only=kw_only, eq=True)
    return lambda cls: _define(cls, frozen=False, kw_only=kw_only, eq=True)


def changed(instance: _T, **changes: Any) -> _T:
    """Return a copy of a `value` or `record` in which some fields differ."""
    fields = _fields_of(type(instance))
    kept = {name: getattr(instance, name) for name in fields if name not in changes}
    return type(instance)(**kept, **changes)


def _fields_of(cls: Any) -> dict[str, _Spec]:
    fields: dict[str, _Spec] = cls.__fields__
    return fields


class _Spec:
    """One field: how it is given, and what it is otherwise."""

    __slots__ = ("compare", "default", "factory", "kw_only", "repr")

    def __init__(self, given: Any, kw_only: bool) -> None:
        self.kw_only = kw_only
        self.factory: Any = MISSING
        self.default = given
        self.compare = self.repr = True
        if isinstance(given, Field):
            self.compare, self.repr = given.compare, given.repr
            self.default, self.factory = given.default, given.default_factory
            if given.kw_only is True:
                self.kw_only = True

    @property
    def required(self) -> bool:
        return self.default is MISSING and self.factory is MISSING


def _define(cls: Any, *, frozen: bool, kw_only: bool, eq: bool) -> Any:
    own = _own_fields(cls, kw_only)
    fields: dict[str, _Spec] = {}
    for base in reversed(cls.__mro__[1:]):
        fields |= base.__dict__.get("__fields__", {})
    inherited = set(fields)
    fields |= own
    body = {
        name: item
        for name, item in cls.__dict__.items()
        if name not in own and name not in ("__dict__", "__weakref__")
    }
    slots = [name for name in own if name not in inherited]
    positional = tuple(name for name, spec in fields.items() if not spec.kw_only)
    body |= {"__slots__": tuple(slots), "__fields__": fields, "__match_args__": positional}
    body["__shown__"] = tuple(name for name, spec in fields.items() if spec.repr)
    body["__compared__"] = tuple(name for name, spec in fields.items() if spec.compare)
    body["__signature__"] = _Signature()
    for name, method in _methods(frozen, eq).items():
        body.setdefault(name, method)
    made = type(cls)(cls.__name__, cls.__bases__, body)
    made.__qualname__ = cls.__qualname__
    if "__init__" not in cls.__dict__:
        made.__init__ = _init_on_demand(made, fields)
    return made


def _own_fields(cls: Any, kw_only: bool) -> dict[str, _Spec]:
    found = {}
    for name, annotation in get_annotations(cls).items():
        if "ClassVar" not in str(annotation):
            found[name] = _Spec(cls.__dict__.get(name, MISSING), kw_only)
    return found


def _init_on_demand(cls: Any, fields: dict[str, _Spec]) -> Any:
    """Return an ``__init__`` that puts the compiled one in its place when it is first called.

    Most of the classes that a start defines make no instance in that run.
    """

    def init(self: Any, *args: Any, **named: Any) -> None:
        compiled()(self, *args, **named)

    def compiled() -> Any:
        if cls.__init__ is init:
            cls.__init__ = _make_init(cls, fields)
        return cls.__init__

    init.__name__, init.__qualname__ = "__init__", f"{cls.__qualname__}.__init__"
    init.compiled = compiled  # type: ignore[attr-defined]  # for `_Signature`, which has only this
    return init


class _Signature:
    """What ``inspect.signature`` shows of a class: the fields, compiled or not."""

    def __get__(self, _: object, owner: Any) -> Any:
        from inspect import signature

        init = owner.__init__
        shown = signature(init.compiled() if hasattr(init, "compiled") else init)
        return shown.replace(parameters=list(shown.parameters.values())[1:])


def _make_init(cls: Any, fields: dict[str, _Spec]) -> Any:
    scope: dict[str, Any] = {"MISSING": MISSING}
    given: list[str] = []
    named: list[str] = []
    lines: list[str] = []
    for name, spec in fields.items():
        scope[f"set_{name}"] = getattr(cls, name).__set__
        argument, taken = name, name
        if spec.factory is not MISSING:
            scope[f"make_{name}"] = spec.factory
            argument = f"{name}=MISSING"
            taken = f"make_{name}() if {name} is MISSING else {name}"
        elif spec.default is not MISSING:
            scope[f"default_{name}"] = spec.default
            argument = f"{name}=default_{name}"
        (named if spec.kw_only else given).append(argument)
        lines.append(f"    set_{name}(self, {taken})")
    if hasattr(cls, "__post_init__"):
        lines.append("    self.__post_init__()")
    arguments = ", ".join(["self", *given, *(["*", *named] if named else [])])
    exec(f"def __init__({arguments}):\n" + ("\n".join(lines) or "    pass"), scope)
    init = scope["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    return init


def _methods(frozen: bool, eq: bool) -> dict[str, Any]:
    methods: dict[str, Any] = {"__repr__": _repr}
    if eq:
        methods |= {"__eq__": _eq, "__hash__": _hash if frozen else None}
    if frozen:
        methods |= {"__setattr__": _refuse_set, "__delattr__": _refuse_delete}
    return methods


def _repr(self: Any) -> str:
    shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__shown__)
    return f"{type(self).__qualname__}({shown})"


def _eq(self: Any, other: Any) -> Any:
    if type(self) is not type(other):
        return NotImplemented
    return all(getattr(self, name) == getattr(other, name) for name in self.__compared__)


def _hash(self: Any) -> int:
    return hash((type(self), *(getattr(self, name) for name in self.__compared__)))


def _refuse_set(self: Any, name: str, _: object) -> NoReturn:
    raise AttributeError(f"{type(self).__name__} does not change: cannot set {name!r}")


def _refuse_delete(self: Any, name: str) -> NoReturn:
    raise AttributeError(f"{type(self).__name__} does not change: cannot delete {name!r}")
