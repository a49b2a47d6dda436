"""Read members of values: the fence between an expression and the Python objects behind it."""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Mapping
from typing import Any, Final

from dsh.base.names import snake
from dsh.loader.expr_values import (
    MAX_ITEMS,
    SPACE,
    UNDEFINED,
    Function,
    Namespace,
    Url,
    ValueProblem,
    bounded,
    check_public,
    is_nullish,
    join,
    spend,
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
        ValueProblem: the value has no members, the member is out of bounds for expressions, or
            reading it failed.
    """
    spend(1)
    if isinstance(key, str):
        check_public(key)
    if is_nullish(value):
        raise ValueProblem(f"cannot read {{}} of {_nullish(value)}", key)
    if isinstance(value, (str, list, tuple)):
        return _read_sequence(value, key)
    name = check_public(to_string(key))
    if isinstance(value, (bool, int, float, Function)):
        return UNDEFINED
    if isinstance(value, Url):
        return _read_url(value, name)
    if isinstance(value, Namespace):
        return value.read(name)
    return reading(name, lambda: _read_object(value, name))


def reading(name: str, read: Callable[[], Any]) -> Any:
    """Run code of the host for an expression; whatever it raises is the expression's problem.

    Raises:
        ValueProblem: it failed. The text has the kind of failure alone: its own may be a secret.
    """
    try:
        return read()
    except ValueProblem:
        raise
    except (Exception, SystemExit) as error:
        raise ValueProblem(f"reading {{}} failed: {type(error).__name__}", name) from None


def _read_sequence(value: Any, key: Any) -> Any:
    if isinstance(key, (list, tuple)):
        key = check_public(to_string(key))
    if key == "length":
        return len(value)
    if isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 16:
        key = int(key)
    if isinstance(key, int) and not isinstance(key, bool):
        return _admit(value[key], str(key)) if 0 <= key < len(value) else UNDEFINED
    fields = getattr(value, "_fields", ()) if isinstance(value, tuple) else ()
    for spelling in (snake(key), key) if isinstance(key, str) and fields else ():
        if spelling in fields:
            return _admit(getattr(value, spelling), key)
    methods = _STRING_METHODS if isinstance(value, str) else _ARRAY_METHODS
    method = methods.get(key) if isinstance(key, str) else None
    return UNDEFINED if method is None else Function(key, lambda *args: method(value, *args))


def _read_object(value: Any, name: str) -> Any:
    if isinstance(value, Mapping):
        found = value[name] if name in value else value.get(snake(name), UNDEFINED)
        return _admit(found, name)
    if _is_machinery(value):
        raise ValueProblem("cannot read {}: expressions see data only", name)
    for spelling in (snake(name), name):
        # `snake` may take a hump off, but must never lead to a private name.
        if spelling.isidentifier() and not spelling.startswith("_"):
            found = getattr(value, spelling, UNDEFINED)
            if found is not UNDEFINED:
                return _admit(found, name)
    return UNDEFINED


def _is_machinery(value: Any) -> bool:
    """Tell whether a value is Python's machinery or the kernel's, and no data."""
    if isinstance(value, _CLOSED):
        return True
    # By name: this module is there before the kernel is, and without it.
    home = type(value).__module__
    return isinstance(home, str) and home.startswith(("dsh.kernel", "asyncio"))


def _admit(value: Any, name: str) -> Any:
    if _is_machinery(value) or (callable(value) and not isinstance(value, Function)):
        raise ValueProblem("{} is code; expressions read data only", name)
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


def _text(value: Any, method: str) -> str:
    if not isinstance(value, str):
        raise ValueProblem(f"{method}() takes a text")
    return value


def _split(value: str, separator: Any = UNDEFINED) -> list[str]:
    if separator is UNDEFINED:
        return [value]
    mark = _text(separator, "split")
    spend(len(value))
    parts = list(value[: MAX_ITEMS + 1]) if mark == "" else value.split(mark, MAX_ITEMS)
    spend(len(parts))
    return bounded(parts)  # type: ignore[no-any-return]


def _join(value: Any, separator: Any = UNDEFINED) -> str:
    return join(value, "," if separator is UNDEFINED else _text(separator, "join"))


def _scanned(value: str, method: Callable[[str], Any]) -> Any:
    spend(len(value))
    return method(value)


def _includes(value: Any, item: Any) -> bool:
    spend(len(value))
    # JavaScript's includes() finds NaN, which equals nothing.
    return any(strictly_equal(item, each) or (_is_nan(item) and _is_nan(each)) for each in value)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


_STRING_METHODS: Final[dict[str, Callable[..., Any]]] = {
    "endsWith": lambda value, end: value.endswith(_text(end, "endsWith")),
    "includes": lambda value, part: _text(part, "includes") in _scanned(value, str),
    "split": _split,
    "startsWith": lambda value, start: value.startswith(_text(start, "startsWith")),
    "toLowerCase": lambda value: _scanned(value, str.lower),
    "toUpperCase": lambda value: _scanned(value, str.upper),
    "trim": lambda value: _scanned(value, lambda text: text.strip(SPACE)),
}
_ARRAY_METHODS: Final[dict[str, Callable[..., Any]]] = {
    "includes": _includes,
    "join": _join,
}
