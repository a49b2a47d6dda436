"""Values that every OTLP receiver takes: valid text, numbers that fit, and no endless depth."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from dsh.base.json import dumps_str

__all__ = ["safe_attributes", "safe_body", "safe_text"]

_DEEPEST: Final = 20
"""Levels of a body; receivers refuse a whole batch that is nested about thirty deep."""

_SMALLEST: Final = -(2**63)
_LARGEST: Final = 2**63 - 1


def safe_text(text: str) -> str:
    """Return a text in which lone surrogates are written as escapes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()
    return text


def safe_attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes that can be sent."""
    return {
        safe_text(name): safe_text(item) if isinstance(item, str) else item
        for name, item in attributes.items()
    }


def safe_body(body: Any, level: int = 0) -> Any:
    """Return a copy of a body that can be sent; what is nested too deep becomes JSON text.

    Raises:
        TypeError: it is not JSON.
    """
    if isinstance(body, str):
        return safe_text(body)
    if body is None or isinstance(body, bool):
        return body
    if isinstance(body, int):
        return body if _SMALLEST <= body <= _LARGEST else str(body)
    if isinstance(body, float):
        return body if math.isfinite(body) else str(body)
    if not isinstance(body, (Mapping, list, tuple)):
        raise TypeError(f"{type(body).__name__} is not JSON")
    if level >= _DEEPEST:
        return safe_text(dumps_str(body))
    if isinstance(body, Mapping):
        return {safe_text(str(key)): safe_body(item, level + 1) for key, item in body.items()}
    return [safe_body(item, level + 1) for item in body]
