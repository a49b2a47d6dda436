"""JSON as text: one encoder and one decoder, fast where orjson is installed."""

from __future__ import annotations

import json as _stdlib
from collections.abc import Callable
from functools import partial
from math import isfinite
from typing import Any, Final, NoReturn

from dsh.base.json.deep import encode_deep, read_deep

_ENCODER: Final = _stdlib.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), allow_nan=False, check_circular=False
)
_CANONICAL: Final = _stdlib.JSONEncoder(
    ensure_ascii=True, separators=(",", ":"), allow_nan=False, check_circular=False, sort_keys=True
)
_PRETTY: Final = _stdlib.JSONEncoder(
    ensure_ascii=False, indent=2, allow_nan=False, check_circular=False
)
# The longest run of digits that is sure to be no integer beyond 64 bits, and a table to find one.
_LONG_NUMBER: Final = b"0" * 19
_DIGITS_ALIKE: Final = bytes.maketrans(b"123456789", b"000000000")


def dumps(value: object) -> bytes:
    r"""Encode as compact UTF-8; a lone surrogate is written as its ``\\udXXX`` escape.

    Raises:
        ValueError: the value holds NaN or an infinity.
        TypeError: the value holds something that is not JSON.
    """
    if _orjson_dumps is not None:
        try:
            data = _orjson_dumps(value)
        except TypeError:
            pass  # a lone surrogate, a huge integer or great depth: the precise encoder decides
        else:
            # orjson writes null for what is no number; only then is it worth to look.
            if b"null" not in data or _is_finite(value):
                return data
    return dumps_str(value).encode("utf-8", "backslashreplace")


def pretty(value: object) -> bytes:
    r"""Encode for files that people may read: indented by two spaces, with a newline at the end.

    Raises:
        ValueError: the value holds NaN or an infinity.
        TypeError: the value holds something that is not JSON.
    """
    if _orjson_pretty is not None:
        try:
            data = _orjson_pretty(value)
        except TypeError:
            pass  # as in `dumps`
        else:
            if b"null" not in data or _is_finite(value):
                return data
    try:
        text = _PRETTY.encode(value)
    except RecursionError:
        text = dumps_str(value)  # so deep that nobody reads it
    return (text + "\n").encode("utf-8", "backslashreplace")


def dumps_str(value: object) -> str:
    """Encode as compact text; the text may hold lone surrogates.

    Raises:
        ValueError: the value holds NaN or an infinity.
        TypeError: the value holds something that is not JSON.
    """
    return _encode(_ENCODER, value)


def canonical(value: object) -> str:
    """Return one text per value: keys sorted, no spaces.

    Raises:
        ValueError: the value holds NaN or an infinity.
        TypeError: the value holds something that is not JSON.
    """
    return _encode(_CANONICAL, value)


def loads(data: bytes | str) -> Any:
    """Decode JSON text, however deep it is nested.

    Raises:
        ValueError: the text is not JSON.
    """
    if _orjson_loads is not None:
        try:
            raw = data if isinstance(data, bytes) else data.encode("utf-8")
            if _LONG_NUMBER not in raw.translate(_DIGITS_ALIKE):
                return _orjson_loads(raw)
        except ValueError:
            pass  # a lone surrogate or great depth, unless it is no JSON: the next one decides
    if isinstance(data, bytes):
        data = data.decode("utf-8", "surrogatepass")
    try:
        return _loads_precisely(data)
    except RecursionError:
        return read_deep(data, _loads_precisely)


def _encode(encoder: _stdlib.JSONEncoder, value: object) -> str:
    try:
        return encoder.encode(value)
    except RecursionError:
        return "".join(encode_deep(value, encoder))


def _is_finite(value: object) -> bool:
    """Whether all numbers of an encodable value are JSON numbers."""
    work: list[Any] = [value]
    while work:
        item = work.pop()
        if isinstance(item, dict):
            work += item.values()
        elif isinstance(item, (list, tuple)):
            work += item
        elif isinstance(item, float) and not isfinite(item):
            return False
    return True


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if not isfinite(number):
        raise ValueError(f"the number {digits[:40]} is too large")
    return number


_loads_precisely: Final = partial(_stdlib.loads, parse_constant=_no_constant, parse_float=_finite)

_orjson_dumps: Callable[[object], bytes] | None
_orjson_loads: Callable[[bytes], Any] | None
_orjson_pretty: Callable[[object], bytes] | None
try:
    import orjson as _orjson
except (
    ImportError
):  # the wheel is missing on some systems; the standard library does the same, slower
    _orjson_dumps = _orjson_loads = _orjson_pretty = None
else:

    def _orjson_dumps(value: object) -> bytes:
        return _orjson.dumps(
            value, option=_orjson.OPT_PASSTHROUGH_DATACLASS | _orjson.OPT_PASSTHROUGH_DATETIME
        )

    def _orjson_pretty(value: object) -> bytes:
        plain = _orjson.OPT_PASSTHROUGH_DATACLASS | _orjson.OPT_PASSTHROUGH_DATETIME
        shape = _orjson.OPT_INDENT_2 | _orjson.OPT_APPEND_NEWLINE
        return _orjson.dumps(value, option=plain | shape)

    _orjson_loads = _orjson.loads
