"""Names that every expression sees: conversions, ``JSON``, ``URL`` and one builtin module."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any, Final

from dsh.loader.expr_lexer import tidy
from dsh.loader.expr_values import (
    MAX_STRING,
    UNDEFINED,
    Function,
    Namespace,
    Url,
    ValueProblem,
    number_text,
    plain,
    spend,
    to_number,
    to_string,
    truthy,
)

_MAX_URL: Final = 8_192


def make_url(*arguments: Any) -> Url:
    """Return ``new URL(reference, base)``.

    Raises:
        ValueProblem: the result is not an absolute URL.
    """
    from urllib.parse import urljoin, urlsplit

    if not 1 <= len(arguments) <= 2:
        raise ValueProblem("new URL() takes a reference and perhaps a base")
    reference, *base = (to_string(item) for item in arguments)
    if len(reference) + sum(map(len, base)) > _MAX_URL:
        raise ValueProblem(f"new URL() takes at most {_MAX_URL} characters")
    try:
        href = urljoin(base[0], reference) if base else reference
        absolute = bool(urlsplit(href).scheme)
    except ValueError:
        raise ValueProblem("new URL() got an invalid URL") from None
    if not absolute:
        raise ValueProblem("new URL() needs an absolute URL or an absolute base")
    return Url(href)


def file_url_to_path(value: Any) -> str:
    """Return the path of a ``file:`` URL.

    Raises:
        ValueProblem: it is no such URL.
    """
    from urllib.parse import unquote, urlsplit

    href = value.href if isinstance(value, Url) else make_url(value).href
    parts = urlsplit(href)
    if parts.scheme != "file":
        raise ValueProblem("fileURLToPath() takes a file: URL")
    if parts.netloc not in {"", "localhost"}:
        raise ValueProblem("fileURLToPath() takes a URL without a host")
    path = unquote(parts.path)
    if "\0" in path or "%2f" in parts.path.lower():
        raise ValueProblem("fileURLToPath() takes no encoded slash or NUL")
    return path


def builtin_module(name: Any) -> Namespace:
    """Return ``process.getBuiltinModule(name)``; only ``node:url`` exists here.

    Raises:
        ValueProblem: another module is asked for.
    """
    if name not in {"node:url", "url"}:
        raise ValueProblem("getBuiltinModule() knows 'node:url' only")
    return Namespace("node:url", {"fileURLToPath": Function("fileURLToPath", file_url_to_path)})


def version() -> str:
    """Return ``process.version``: the version of dsh, written as a version tag."""
    from dsh import __version__

    return f"v{__version__}"


def _json_parse(value: Any) -> Any:
    text = to_string(value)
    if len(text) > MAX_STRING:
        raise ValueProblem(f"JSON.parse() takes at most {MAX_STRING} characters")
    # A value in JSON takes two characters at least, and some ten times their memory.
    spend(len(text))
    try:
        return json.loads(text, parse_constant=_no_constant, parse_float=_number, parse_int=_number)
    except (ValueError, RecursionError):
        # The text may be a secret: say that it is wrong, not what it is.
        raise ValueProblem("JSON.parse() got invalid JSON") from None


def _number(text: str) -> int | float:
    return tidy(float(text))


def _no_constant(name: str) -> Any:
    raise ValueError(name)


def _json_stringify(value: Any = UNDEFINED) -> Any:
    if value is UNDEFINED:
        return UNDEFINED
    parts: list[str] = []
    length = 0
    for part in _json_parts(plain(value)):
        length += len(part)
        if length > MAX_STRING:
            raise ValueProblem(f"the text is longer than {MAX_STRING} characters")
        parts.append(part)
    spend(length)
    return "".join(parts)


def _json_parts(value: Any) -> Iterator[str]:
    """Yield the JSON text of plain data piece by piece, with numbers as JavaScript has them."""
    if isinstance(value, dict):
        yield "{"
        for position, (key, item) in enumerate(value.items()):
            yield f"{',' if position else ''}{json.dumps(key, ensure_ascii=False)}:"
            yield from _json_parts(item)
        yield "}"
    elif isinstance(value, list):
        yield "["
        for position, item in enumerate(value):
            if position:
                yield ","
            yield from _json_parts(item)
        yield "]"
    elif isinstance(value, bool) or not isinstance(value, (int, float)):
        yield json.dumps(value, ensure_ascii=False)
    else:
        number = tidy(value)
        yield number_text(number) if math.isfinite(number) else "null"


BUILTINS: Final[dict[str, Any]] = {
    "Boolean": Function("Boolean", lambda value=UNDEFINED: truthy(value)),
    "JSON": Namespace(
        "JSON",
        {
            "parse": Function("JSON.parse", _json_parse),
            "stringify": Function("JSON.stringify", _json_stringify),
        },
    ),
    "Number": Function("Number", lambda value=0: to_number(value)),
    "String": Function("String", lambda value="": to_string(value)),
}
"""Free names that need no scope."""
