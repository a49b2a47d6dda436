"""Names that every expression sees: conversions, ``JSON``, ``URL`` and one builtin module."""

from __future__ import annotations

import json
import math
from typing import Any, Final

from dsh.loader.expr_values import (
    UNDEFINED,
    Function,
    Namespace,
    Url,
    ValueProblem,
    bounded,
    plain,
    to_number,
    to_string,
    truthy,
)


def make_url(*arguments: Any) -> Url:
    """Return ``new URL(reference, base)``.

    Raises:
        ValueProblem: the result is not an absolute URL.
    """
    from urllib.parse import urljoin, urlsplit

    if not 1 <= len(arguments) <= 2:
        raise ValueProblem("new URL() takes a reference and perhaps a base")
    reference, *base = (to_string(item) for item in arguments)
    try:
        href = urljoin(base[0], reference) if base else reference
        absolute = bool(urlsplit(href).scheme)
    except ValueError as error:
        raise ValueProblem("new URL() got an invalid URL") from error
    if not absolute:
        raise ValueProblem("new URL() needs an absolute URL or an absolute base")
    return Url(href)


def file_url_to_path(value: Any) -> str:
    """Return the path of a ``file:`` URL.

    Raises:
        ValueProblem: it is no such URL.
    """
    from urllib.parse import unquote, urlsplit

    href = value.href if isinstance(value, Url) else to_string(value)
    parts = urlsplit(href)
    if parts.scheme != "file":
        raise ValueProblem("fileURLToPath() takes a file: URL")
    return unquote(parts.path)


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


def _json_parse(text: Any) -> Any:
    try:
        return json.loads(to_string(text), parse_constant=_no_constant, parse_float=to_number)
    except (ValueError, RecursionError) as error:
        # The text may be a secret: say that it is wrong, not what it is.
        raise ValueProblem("JSON.parse() got invalid JSON") from error


def _no_constant(name: str) -> Any:
    raise ValueError(name)


def _json_stringify(value: Any = UNDEFINED) -> Any:
    if value is UNDEFINED:
        return UNDEFINED
    try:
        text = json.dumps(_finite(plain(value)), ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueProblem("JSON.stringify() takes data only") from error
    return bounded(text)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


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
