"""JavaScript's values and conversions, as far as configuration needs them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from dsh.loader.expr_lexer import tidy

MAX_STRING: Final = 1_000_000
"""Longest string an expression may build, in characters."""

MAX_ITEMS: Final = 10_000
"""Longest array an expression may build."""

_DECIMAL = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?")
_RADIX = re.compile(r"0[xX][0-9a-fA-F]+|0[oO][0-7]+|0[bB][01]+")


class Undefined:
    """The type of `UNDEFINED`: there is one, and it is falsy."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "undefined"

    def __bool__(self) -> bool:
        return False


UNDEFINED: Final = Undefined()
"""No value at all, which is not ``null``."""


class ValueProblem(Exception):
    """An operation that JavaScript or our bounds refuse; the evaluator adds the position."""


class Function:
    """Something an expression may call."""

    __slots__ = ("call", "name")

    def __init__(self, name: str, call: Callable[..., Any]) -> None:
        self.name, self.call = name, call


class Namespace:
    """A value with members and nothing else, such as ``process``."""

    __slots__ = ("name", "read")

    def __init__(self, name: str, read: Callable[[str], Any] | Mapping[str, Any]) -> None:
        self.name = name
        self.read = read if callable(read) else lambda key: read.get(key, UNDEFINED)


class Url:
    """A resolved URL."""

    __slots__ = ("href",)

    def __init__(self, href: str) -> None:
        self.href = href


def is_nullish(value: Any) -> bool:
    """Tell whether ``??`` and ``?.`` pass over a value."""
    return value is None or value is UNDEFINED


def truthy(value: Any) -> bool:
    """Tell whether JavaScript takes a value for true: empty containers count as true."""
    if is_nullish(value) or value is False:
        return False
    if isinstance(value, (int, float)):
        return bool(value) and not math.isnan(value)
    return value != "" if isinstance(value, str) else True


def kind_of(value: Any) -> str:
    """Return the class of a value as comparisons see it."""
    if value is None:
        return "null"
    if value is UNDEFINED:
        return "undefined"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, (int, float)):
        return "number"
    return "string" if isinstance(value, str) else "object"


def to_number(value: Any) -> int | float:
    """Convert as ``Number(value)`` does; what is not a number is NaN."""
    if value is None:
        return 0
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, (int, float)):
        return tidy(value)
    return _parse_number(value.strip()) if isinstance(value, str) else math.nan


def _parse_number(text: str) -> int | float:
    if not text:
        return 0
    if _DECIMAL.fullmatch(text) is not None:
        return tidy(float(text))
    if _RADIX.fullmatch(text) is not None:
        return tidy(int(text, 0))
    return {"Infinity": math.inf, "+Infinity": math.inf, "-Infinity": -math.inf}.get(text, math.nan)


def to_string(value: Any) -> str:
    """Convert as ``String(value)`` does.

    Raises:
        ValueProblem: the value is an object, whose text would say nothing.
    """
    if isinstance(value, str):
        return value
    if is_nullish(value) or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, (int, float)):
        return _number_text(value)
    if isinstance(value, Url):
        return value.href
    if isinstance(value, (list, tuple)):
        text: str = bounded(",".join("" if is_nullish(each) else to_string(each) for each in value))
        return text
    raise ValueProblem("an object has no text; use JSON.stringify(...)")


def _number_text(value: float) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value == int(value) and abs(value) < 1e21:
        return str(int(value))
    return re.sub(r"e([+-])0+", r"e\1", repr(float(value)))


def strictly_equal(left: Any, right: Any) -> bool:
    """Compare as ``===`` does."""
    kind = kind_of(left)
    if kind != kind_of(right):
        return False
    return left is right if kind == "object" else bool(left == right)


def loosely_equal(left: Any, right: Any) -> bool:
    """Compare as ``==`` does, without converting objects."""
    kinds = {kind_of(left), kind_of(right)}
    if kinds <= {"null", "undefined"}:
        return True
    if len(kinds) == 1 or "object" in kinds or kinds & {"null", "undefined"}:
        return strictly_equal(left, right)
    return bool(to_number(left) == to_number(right))


def bounded(value: Any) -> Any:
    """Return a string or array that is not longer than expressions may build.

    Raises:
        ValueProblem: it is longer.
    """
    if isinstance(value, str) and len(value) > MAX_STRING:
        raise ValueProblem(f"the text is longer than {MAX_STRING} characters")
    if isinstance(value, (list, dict)) and len(value) > MAX_ITEMS:
        raise ValueProblem(f"the value has more than {MAX_ITEMS} items")
    return value


def plain(value: Any, depth: int = 0) -> Any:
    """Return a result as configuration data: ``undefined`` keys vanish, functions are refused.

    Raises:
        ValueProblem: a function or namespace is not a value of configuration.
    """
    if depth > 100:
        raise ValueProblem("the value is nested too deeply")
    if isinstance(value, (Function, Namespace)) or callable(value):
        raise ValueProblem("code is not a value that configuration can hold")
    if isinstance(value, Url):
        return value.href
    if isinstance(value, dict):
        items = ((key, plain(item, depth + 1)) for key, item in value.items())
        return {key: item for key, item in items if item is not UNDEFINED}
    if isinstance(value, (list, tuple)):
        items_ = (plain(item, depth + 1) for item in value)
        return [None if item is UNDEFINED else item for item in items_]
    return value
