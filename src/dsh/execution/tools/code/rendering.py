"""What the model reads of a program's output."""

from __future__ import annotations

from collections.abc import Sequence

from dsh.base.json import JsonValue, dumps_str

NOTHING = "The program completed with no output."

_INDENT = "  "
_DEEPEST_INDENT = 10


def render_output(logs: Sequence[str], result: JsonValue) -> str:
    """Return logs and result as one text.

    Args:
        logs: What the program printed.
        result: What it returned; ``None`` for nothing.
    """
    parts = list(logs)
    if result is not None:
        parts.append(result if isinstance(result, str) else _indented(result))
    return "\n".join(parts) or NOTHING


def _indented(value: JsonValue, indent: str = "") -> str:
    """Return JSON that is indented near its root and compact where that would waste space."""
    inner = indent + _INDENT
    if len(inner) > _DEEPEST_INDENT or not isinstance(value, dict | list) or not value:
        return dumps_str(value)
    if isinstance(value, dict):
        members = [f"{dumps_str(key)}: {_indented(each, inner)}" for key, each in value.items()]
    else:
        members = [_indented(each, inner) for each in value]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    separator = f",\n{inner}"
    return f"{opening}\n{inner}{separator.join(members)}\n{indent}{closing}"
