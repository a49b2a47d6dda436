"""Values as YAML text: plain where every reader agrees on the meaning, quoted elsewhere."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from dsh.loader.yaml import plain_kind

__all__ = ["block", "inline", "key_text"]

_PLAIN: Final = re.compile(r"[A-Za-z_./][A-Za-z0-9_./@+-]*")
_OTHER_DIALECTS: Final = frozenset(("y", "n", "yes", "no", "on", "off", "true", "false", "null"))
_UNPRINTABLE: Final = re.compile(r"[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


def block(value: Mapping[str, Any] | list[Any], column: int) -> list[str]:
    """Return the lines of a container that is not empty, indented by ``column``."""
    pad = " " * column
    if isinstance(value, list):
        return [f"{pad}- {inline(item)}" for item in value]
    lines: list[str] = []
    for key, member in value.items():
        if isinstance(member, (dict, list)) and member:
            lines += [f"{pad}{key_text(key)}:", *block(member, column + 2)]
        else:
            lines.append(f"{pad}{key_text(key)}: {inline(member)}")
    return lines


def inline(value: Any) -> str:
    """Return a value on one line."""
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, dict):
        members = (f"{key_text(key)}: {inline(member)}" for key, member in value.items())
        return "{" + ", ".join(members) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(inline, value)) + "]"
    return json.dumps(value)


def key_text(key: str) -> str:
    """Return a key of a mapping."""
    return _text(key)


def _text(text: str) -> str:
    if (
        _PLAIN.fullmatch(text) is not None
        and plain_kind(text) == "str"
        and text.lower() not in _OTHER_DIALECTS
    ):
        return text
    quoted = json.dumps(text, ensure_ascii=False)
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", quoted)
