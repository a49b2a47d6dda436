"""JavaScript's values and conversions, as far as configuration needs them."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

from dsh.loader.expr_lexer import tidy

MAX_STRING: Final = 400_000
"""Longest string an expression may build, in characters."""

MAX_ITEMS: Final = 10_000
"""Longest array an expression may build."""

MAX_WORK: Final = 1_000_000
"""What one evaluation may do: a unit is a step, an item visited, or a character built or read."""

MAX_NESTED: Final = 100
"""How deep a value may nest that expressions turn into text or data."""

SPACE: Final = (
    "\t\n\v\f\r \u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007"
    "\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
)
"""What JavaScript takes for white space at the ends of a text."""

_CONTAINER: Final = 4
"""Work that one more container costs, beside its items: it takes that much more memory."""
_UNSHOWN: Final = "a computed name"
_MAX_DIGITS: Final = 1_000
_DECIMAL = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
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
    """An operation that JavaScript or our bounds refuse; the evaluator adds the position.

    Args:
        text: What is wrong; ``{}`` stands for a name.
        name: The name, when there is one.
    """

    def __init__(self, text: str, name: object = None) -> None:
        shown = repr(name[:40]) if isinstance(name, str) else _UNSHOWN
        super().__init__(text.replace("{}", shown))
        self._text = text

    def masked(self) -> ValueProblem:
        """Return this problem without the name: a computed one may be a secret."""
        return ValueProblem(self._text)


_left: ContextVar[list[int] | None] = ContextVar("dsh.loader.expr_work", default=None)


@contextmanager
def metered() -> Iterator[None]:
    """Give the evaluation inside its own amount of work."""
    token = _left.set([MAX_WORK])
    try:
        yield
    finally:
        _left.reset(token)


def spend(units: int) -> None:
    """Take some work from what this evaluation may do.

    Raises:
        ValueProblem: there is not that much left.
    """
    left = _left.get()
    if left is None:
        return
    left[0] -= units
    if left[0] < 0:
        raise ValueProblem("the expression does too much work")


def check_public(name: str) -> str:
    """Return a name that expressions may use.

    Raises:
        ValueProblem: it begins with ``_``.
    """
    if name.startswith("_"):
        raise ValueProblem("{} is private; no name that begins with _ can be read", name)
    return name


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
    if isinstance(value, (list, tuple)):
        value = to_string(value)
    return _parse_number(value) if isinstance(value, str) else math.nan


def _parse_number(text: str) -> int | float:
    text = text.strip(SPACE)
    if not text:
        return 0
    if len(text) > _MAX_DIGITS:
        raise ValueProblem(f"a number has at most {_MAX_DIGITS} characters")
    if _DECIMAL.fullmatch(text) is not None:
        return tidy(float(text))
    if _RADIX.fullmatch(text) is not None:
        return tidy(int(text, 0))
    return {"Infinity": math.inf, "+Infinity": math.inf, "-Infinity": -math.inf}.get(text, math.nan)


def to_string(value: Any) -> str:
    """Convert as ``String(value)`` does; a path of Python is its text.

    Raises:
        ValueProblem: the value is an object, whose text would say nothing, or too long.
    """
    return _text(value, 0)


def _text(value: Any, depth: int) -> str:
    if isinstance(value, str):
        return value
    if is_nullish(value) or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, (int, float)):
        return number_text(tidy(value))
    if isinstance(value, Url):
        return value.href
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    if isinstance(value, (list, tuple)):
        return join(value, ",", depth)
    raise ValueProblem("an object has no text; use JSON.stringify(...)")


def join(items: Any, mark: str, depth: int = 0) -> str:
    """Return the texts of an array's items with a mark between them.

    Raises:
        ValueProblem: an item has no text, or the text is too long.
    """
    if depth > MAX_NESTED:
        raise ValueProblem("the value is nested too deeply")
    parts: list[str] = []
    length = 0
    for item in items:
        spend(1)
        part = "" if is_nullish(item) else _text(item, depth + 1)
        length += len(part) + len(mark)
        if length - len(mark) > MAX_STRING:
            raise ValueProblem(f"the text is longer than {MAX_STRING} characters")
        parts.append(part)
    spend(length)
    return mark.join(parts)


def number_text(value: float) -> str:
    """Return a number as JavaScript writes it."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value == int(value) and abs(value) < 1e21:
        return str(int(value))
    text = repr(float(value))
    if 1e-6 <= abs(value) < 1e-4:
        # Python goes over to powers of ten earlier than JavaScript.
        digits, _, power = text.partition("e")
        sign, digits = ("-", digits[1:]) if digits.startswith("-") else ("", digits)
        return sign + "0." + "0" * (-int(power) - 1) + digits.replace(".", "")
    return re.sub(r"e([+-])0+", r"e\1", text)


def strictly_equal(left: Any, right: Any) -> bool:
    """Compare as ``===`` does."""
    kind = kind_of(left)
    if kind != kind_of(right):
        return False
    return left is right if kind == "object" else bool(left == right)


def loosely_equal(left: Any, right: Any) -> bool:
    """Compare as ``==`` does; of objects, arrays and URLs are converted to text."""
    kinds = {kind_of(left), kind_of(right)}
    if kinds <= {"null", "undefined"}:
        return True
    if "object" in kinds and kinds & {"string", "number", "boolean"}:
        sides = [to_string(each) if _has_text(each) else each for each in (left, right)]
        return "object" not in map(kind_of, sides) and loosely_equal(*sides)
    if len(kinds) == 1 or "object" in kinds or kinds & {"null", "undefined"}:
        return strictly_equal(left, right)
    return bool(to_number(left) == to_number(right))


def _has_text(value: Any) -> bool:
    return isinstance(value, (list, tuple, Url))


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
    """Return a result as configuration data, which shares no container with what was read.

    ``undefined`` keys vanish, URLs and paths become texts.

    Raises:
        ValueProblem: the value is no data, has a private key, or there is too much of it.
    """
    spend(1)
    if value is None or value is UNDEFINED or isinstance(value, (str, bool)):
        return value
    if isinstance(value, (int, float)):
        return value if isinstance(value, int) and abs(value) <= 2**53 else tidy(value)
    spend(_CONTAINER)
    if depth > MAX_NESTED:
        raise ValueProblem("the value is nested too deeply")
    if isinstance(value, (Url, os.PathLike)):
        return to_string(value)
    if isinstance(value, Mapping):
        items = ((_key(key), plain(value[key], depth + 1)) for key in value)
        return {key: item for key, item in items if item is not UNDEFINED}
    if isinstance(value, (list, tuple)):
        parts = (plain(item, depth + 1) for item in value)
        return [None if item is UNDEFINED else item for item in parts]
    if isinstance(value, (Function, Namespace)) or callable(value):
        raise ValueProblem("code is not a value that configuration can hold")
    raise ValueProblem("an object is not a value that configuration can hold; read a member of it")


def _key(key: Any) -> str:
    if not isinstance(key, (str, int, float)):
        raise ValueProblem("a mapping in configuration has texts for keys")
    text = to_string(key)
    if text.startswith("_"):
        raise ValueProblem("a mapping in configuration has a private key, which begins with _")
    return text
