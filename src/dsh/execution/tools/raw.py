"""The text that a model gave as the arguments of a call, as far as it can be read."""

from __future__ import annotations

import re
from typing import Final

from dsh.base.json import JsonValue, freeze, loads

MAX_VALUES: Final = 20_000
"""How many members, items and containers the arguments of a call may have.

More than any model means, and about what can be read before other agents notice.
"""

MAX_DEPTH: Final = 500
"""How deep the arguments of a call may be nested."""

_STRUCTURE = re.compile(
    r'(?:[^"\[\]{},]++|"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\Z|\\\Z))*+([\[\]{},]|\Z)', re.DOTALL
)
"""The next bracket or comma that stands outside of strings."""


def parse_call(raw: str) -> JsonValue:
    """Turn the raw arguments of a model's call into what `ToolInput.arguments` takes.

    No text at all means no arguments. Text that cannot be read, that has no measure (see
    `excess_of`) or that holds a JSON string, stays the raw text, so that the runtime can tell the
    model what is wrong with it.
    """
    if not raw or raw.isspace():
        return freeze({})  # type: ignore[no-any-return]  # freeze keeps the JSON shape
    if excess_of(raw) is not None:
        return raw
    try:
        value: JsonValue = freeze(loads(raw))
    except (ValueError, RecursionError):
        return raw
    return raw if isinstance(value, str) else value


def excess_of(raw: str) -> str | None:
    """Say in which way a text is without measure, if it is: reading it would hold up the loop."""
    if raw.count(",") + raw.count("[") + raw.count("{") <= MAX_DEPTH:
        return None
    if raw.lstrip()[:1] not in ("{", "["):
        return None
    depth = values = 0
    for found in _STRUCTURE.finditer(raw):
        if found[1] in ("]", "}"):
            depth -= 1
            if depth <= 0:
                return None  # the end, or no JSON: the reader sees that soon enough
            continue
        values += 1
        depth += found[1] != ","
        if depth > MAX_DEPTH:
            return "the JSON is nested too deeply to be read"
        if values > MAX_VALUES:
            return f"the JSON has too many parts to be read: more than {MAX_VALUES} values"
    return None
