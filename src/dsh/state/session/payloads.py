"""Does the data of an event have the shape that its type declares?

For tests and for `state.session.invariants`: an append itself checks only what readers of any log
rely on. The declarations are read when they are first needed.
"""

from __future__ import annotations

import builtins
import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import or_
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Literal,
    NotRequired,
    TypeAlias,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

if TYPE_CHECKING:
    from dsh.state.session.events import EventType

Checker: TypeAlias = "Callable[[Any, str], str | None]"
"""Takes a value and its path; returns what is wrong, path first."""

_WORDS_FROM: Final = ("dsh.model.chunks", "dsh.model.messages", "dsh.model.llm.service")
"""Where the names come from that declarations import for type checkers only."""
_SCALARS: Final[dict[Any, tuple[tuple[type, ...], str]]] = {
    str: ((str,), "text"),
    bool: ((bool,), "true or false"),
    int: ((int,), "an integer"),
    float: ((int, float), "a number"),
    NoneType: ((NoneType,), "null"),
}


def payload_problem(event_type: EventType[Any], data: Mapping[str, Any]) -> str | None:
    """Return what is wrong with the data of an event, or ``None``.

    Fields that the declaration does not have are wrong, too. Blocks of an unknown ``type`` are
    not: that union is open.
    """
    return _checker(reduce(or_, event_type.payloads))(data, "data")


_known: dict[Any, Checker] = {}


def _checker(kind: Any) -> Checker:
    if kind not in _known:
        # A shape may hold itself, as the content of a result does: it is looked up when needed.
        _known[kind] = lambda value, path: _known[kind](value, path)
        _known[kind] = _made(kind)
    return _known[kind]


def _made(kind: Any) -> Checker:
    origin = get_origin(kind)
    if is_typeddict(kind):
        return _object_checker(kind)
    if origin is Literal:
        return _literal_checker(get_args(kind))
    if origin in (Union, UnionType):
        return _union_checker(get_args(kind))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping_checker(get_args(kind)[1])
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return _list_checker(get_args(kind)[0])
    if kind in _SCALARS:
        return _scalar_checker(*_SCALARS[kind])
    if (supertype := getattr(kind, "__supertype__", None)) is not None:
        return _checker(supertype)
    if kind in (Any, object):
        return lambda value, path: None
    raise TypeError(f"a declaration uses {kind!r}, which is no shape of logged data")


def _scalar_checker(kinds: tuple[type, ...], word: str) -> Checker:
    def check(value: Any, path: str) -> str | None:
        return None if type(value) in kinds else f"{path} is not {word}"

    return check


def _literal_checker(choices: tuple[Any, ...]) -> Checker:
    def check(value: Any, path: str) -> str | None:
        if any(value == choice and type(value) is type(choice) for choice in choices):
            return None
        return f"{path} is {value!r}, not {' or '.join(map(repr, choices))}"

    return check


def _list_checker(item: Any) -> Checker:
    inner = _checker(item)

    def check(value: Any, path: str) -> str | None:
        if not isinstance(value, list):
            return f"{path} is not a list"
        found = (inner(entry, f"{path}[{index}]") for index, entry in enumerate(value))
        return next(filter(None, found), None)

    return check


def _mapping_checker(item: Any) -> Checker:
    inner = _checker(item)

    def check(value: Any, path: str) -> str | None:
        if not isinstance(value, Mapping):
            return f"{path} is not an object"
        found = (inner(entry, f"{path}.{key}") for key, entry in value.items())
        return next(filter(None, found), None)

    return check


def _object_checker(kind: Any) -> Checker:
    fields = fields_of(kind)
    required = {name for name, (_, needed) in fields.items() if needed}

    def check(value: Any, path: str) -> str | None:
        if not isinstance(value, Mapping):
            return f"{path} is not an object"
        if missing := sorted(required - value.keys()):
            return f"{path}.{missing[0]} is missing"
        for key, entry in value.items():
            if key not in fields:
                return f"{path}.{key} is not a field of {kind.__name__}"
            if (problem := _checker(fields[key][0])(entry, f"{path}.{key}")) is not None:
                return problem
        return None

    return check


def _union_checker(members: tuple[Any, ...]) -> Checker:
    if all(map(is_typeddict, members)) and (tag := _tag_of(members)) is not None:
        return _tagged_checker(tag, members)
    checkers = [_checker(member) for member in members]

    def check(value: Any, path: str) -> str | None:
        problems = [found for checker in checkers if (found := checker(value, path)) is not None]
        return problems[0] if len(problems) == len(checkers) else None

    return check


def _tagged_checker(tag: str, members: Sequence[Any]) -> Checker:
    cases = {choice: member for member in members for choice in get_args(fields_of(member)[tag][0])}

    def check(value: Any, path: str) -> str | None:
        if not isinstance(value, Mapping):
            return f"{path} is not an object"
        if not isinstance(word := value.get(tag), str):
            return f"{path}.{tag} is not text"
        if word in cases:
            return _checker(cases[word])(value, path)
        if tag == "type":
            return None
        return f"{path}.{tag} is {word!r}, not {' or '.join(map(repr, cases))}"

    return check


def _tag_of(members: Sequence[Any]) -> str | None:
    """Return the field by which all members differ."""
    for name, (hint, _) in fields_of(members[0]).items():
        if get_origin(hint) is Literal and all(
            get_origin(fields_of(member).get(name, (None, False))[0]) is Literal
            for member in members
        ):
            choices = [
                choice for member in members for choice in get_args(fields_of(member)[name][0])
            ]
            if len(set(choices)) == len(choices):
                return name
    return None


def fields_of(kind: Any) -> dict[str, tuple[Any, bool]]:
    """Return the type of each field of a ``TypedDict``, and whether it must be there."""
    fields: dict[str, tuple[Any, bool]] = {}
    for name, hint in get_type_hints(kind, localns=_names(kind), include_extras=True).items():
        optional = get_origin(hint) is NotRequired
        inner = get_args(hint)[0] if optional else hint
        fields[name] = (inner, not optional and name in kind.__required_keys__)
    return fields


def _names(kind: Any) -> _Names:
    names = _Names()
    for module in _WORDS_FROM:
        names.update(vars(importlib.import_module(module)))
    for base in (*getattr(kind, "__orig_bases__", ()), kind):
        names.update(vars(sys.modules.get(base.__module__, builtins)))
    return names


class _Names(dict[str, Any]):
    """The names of a module; one that only type checkers get to see stands for anything."""

    def __missing__(self, name: str) -> Any:
        return getattr(builtins, name, Any)
