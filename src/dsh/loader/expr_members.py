"""Read members of values: the fence between an expression and the Python objects behind it."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Any, Final

from dsh.base.names import snake
from dsh.loader.expr_values import (
    UNDEFINED,
    Function,
    Namespace,
    Url,
    ValueProblem,
    bounded,
    is_nullish,
    strictly_equal,
    to_string,
)

_CLOSED: Final = (
    type,
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.CodeType,
    types.FrameType,
    types.TracebackType,
    types.GeneratorType,
    types.CoroutineType,
    types.AsyncGeneratorType,
)
"""Python machinery: an expression neither reads it nor gets it as a value."""


def read_member(value: Any, key: Any) -> Any:
    """Return ``value.key``; what is not there is ``undefined``.

    Raises:
        ValueProblem: the value has no members, or the member is out of bounds for expressions.
    """
    name = key if isinstance(key, str) else None
    if name is not None and name.startswith("_"):
        raise ValueProblem(f"the name {name[:40]!r} is private")
    if is_nullish(value):
        raise ValueProblem(f"cannot read {_shown(key)} of {_nullish(value)}")
    if isinstance(value, (str, list, tuple)):
        return _read_sequence(value, key)
    name = to_string(key)
    if name.startswith("_"):
        raise ValueProblem(f"the name {name[:40]!r} is private")
    if isinstance(value, Namespace):
        return value.read(name)
    if isinstance(value, Mapping):
        return _admit(_read_mapping(value, name), name)
    if isinstance(value, Url):
        return _read_url(value, name)
    if isinstance(value, (bool, int, float, Function)):
        return UNDEFINED
    return _read_attribute(value, name)


def _read_sequence(value: Any, key: Any) -> Any:
    if key == "length":
        return len(value)
    if isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 16:
        key = int(key)
    if isinstance(key, int) and not isinstance(key, bool):
        return value[key] if 0 <= key < len(value) else UNDEFINED
    methods = _STRING_METHODS if isinstance(value, str) else _ARRAY_METHODS
    method = methods.get(key) if isinstance(key, str) else None
    return UNDEFINED if method is None else Function(key, lambda *args: method(value, *args))


def _read_mapping(value: Mapping[Any, Any], name: str) -> Any:
    return value[name] if name in value else value.get(snake(name), UNDEFINED)


def _read_attribute(value: Any, name: str) -> Any:
    if isinstance(value, _CLOSED):
        raise ValueProblem(f"cannot read {name[:40]!r}: expressions see data only")
    for spelling in (snake(name), name):
        if spelling.isidentifier() and not spelling.startswith("_"):
            found = getattr(value, spelling, UNDEFINED)
            if found is not UNDEFINED:
                return _admit(found, name)
    return UNDEFINED


def _admit(value: Any, name: str) -> Any:
    if isinstance(value, _CLOSED) or (callable(value) and not isinstance(value, Function)):
        raise ValueProblem(f"{name[:40]!r} is code; expressions read data only")
    return value


def _read_url(value: Url, name: str) -> Any:
    from urllib.parse import urlsplit

    parts = urlsplit(value.href)
    members = {
        "href": value.href,
        "protocol": f"{parts.scheme}:",
        "host": parts.netloc,
        "hostname": parts.hostname or "",
        "pathname": parts.path,
        "search": f"?{parts.query}" if parts.query else "",
        "hash": f"#{parts.fragment}" if parts.fragment else "",
    }
    return members.get(name, UNDEFINED)


def _nullish(value: Any) -> str:
    return "null" if value is None else "undefined"


def _shown(key: Any) -> str:
    return repr(key[:40]) if isinstance(key, str) else repr(key)[:40]


def _text(value: Any, method: str) -> str:
    if not isinstance(value, str):
        raise ValueProblem(f"{method}() takes a text")
    return value


def _split(value: str, separator: Any = UNDEFINED) -> list[str]:
    if separator is UNDEFINED:
        return [value]
    mark = _text(separator, "split")
    parts: list[str] = bounded(list(value) if mark == "" else value.split(mark))
    return parts


def _join(value: Any, separator: Any = UNDEFINED) -> str:
    mark = "," if separator is UNDEFINED else _text(separator, "join")
    parts = ["" if is_nullish(item) else to_string(item) for item in value]
    if sum(map(len, parts)) + len(mark) * len(parts) > 10**6:
        raise ValueProblem("the text is longer than 1000000 characters")
    return mark.join(parts)


_STRING_METHODS: Final[dict[str, Callable[..., Any]]] = {
    "endsWith": lambda value, end: value.endswith(_text(end, "endsWith")),
    "includes": lambda value, part: _text(part, "includes") in value,
    "split": _split,
    "startsWith": lambda value, start: value.startswith(_text(start, "startsWith")),
    "toLowerCase": lambda value: value.lower(),
    "toUpperCase": lambda value: value.upper(),
    "trim": lambda value: value.strip(),
}
_ARRAY_METHODS: Final[dict[str, Callable[..., Any]]] = {
    "includes": lambda value, item: any(strictly_equal(item, each) for each in value),
    "join": _join,
}
