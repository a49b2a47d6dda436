"""Write configuration as YAML that reads back to the same values, expressions verbatim."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from dsh.loader.expr import Expr
from dsh.loader.rows import ROW_FIELDS
from dsh.loader.say import shown
from dsh.loader.yaml import plain_kind

_PLAIN: Final = re.compile(
    r"[A-Za-z0-9_./$(\\][^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff]*"
)
_UNSAFE: Final = re.compile(r":\s|\s#|[:\s]$")
_SIMPLE: Final = re.compile(r"[A-Za-z0-9_./$-]+")
_BLOCK: Final = re.compile(
    r"[^\s\x00-\x1f\x7f-\x9f\ud800-\udfff\ufeff]"
    r"[^\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff]*"
)


def dump_rows(rows: Sequence[Mapping[str, Any]], comments: Sequence[str] = ()) -> str:
    """Return rows as a YAML list.

    Args:
        rows: What to write; fields come in the order ``id, name, others, config``.
        comments: One a row; a row whose comment equals its predecessor's shares that line.
    """
    if not rows:
        return "[]\n"
    lines: list[str] = []
    former: str | None = None
    for index, row in enumerate(rows):
        comment = comments[index] if index < len(comments) else None
        if comment is not None and comment != former:
            if lines:
                lines.append("")
            # A path may hold line ends, which would end the comment.
            lines.append(f"# == {shown(comment)}")
        former = comment
        lines.extend(_item(ordered_row(row), 0))
    return "\n".join(lines) + "\n"


def dump_yaml(value: Any) -> str:
    """Return any configuration value as a YAML document."""
    return "\n".join(_block(value, 0)) + "\n"


def dump_word(text: str) -> str:
    """Return a text as it is written inside ``{...}``."""
    return text if _SIMPLE.fullmatch(text) and plain_kind(text) == "str" else _quoted(text)


def ordered_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with its fields in the order that files show; nested rows likewise."""
    head = [key for key in ("id", "name") if key in row]
    rest = sorted(key for key in row if key not in {"id", "name", "config"})
    tail = ["config"] if "config" in row else []
    ordered = {key: row[key] for key in (*head, *rest, *tail)}
    config = ordered.get("config")
    if row.get("group") and isinstance(config, list):
        ordered["config"] = [
            ordered_row(each) if isinstance(each, dict) and set(each) & set(ROW_FIELDS) else each
            for each in config
        ]
    return ordered


def _block(value: Any, indent: int) -> Iterator[str]:
    pad = " " * indent
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _entry(f"{pad}{_key(key)}:", item, indent)
    elif isinstance(value, list) and value:
        for item in value:
            yield from _item(item, indent)
    else:
        yield pad + _flow(value)


def _entry(head: str, item: Any, indent: int) -> Iterator[str]:
    if isinstance(item, (dict, list)) and item:
        yield head
        yield from _block(item, indent + 2)
    elif isinstance(item, str) and _fits_block(item):
        yield from _literal(head, item, indent + 2)
    else:
        yield f"{head} {_flow(item)}"


def _item(item: Any, indent: int) -> Iterator[str]:
    pad = " " * indent
    if isinstance(item, (dict, list)) and item:
        lines = _block(item, indent + 2)
        yield f"{pad}- {next(lines).lstrip(' ')}"
        yield from lines
    elif isinstance(item, str) and _fits_block(item):
        yield from _literal(f"{pad}-", item, indent + 2)
    else:
        yield f"{pad}- {_flow(item)}"


def _fits_block(text: str) -> bool:
    """Tell whether a text of several lines can stand as a literal block."""
    lines = text.removesuffix("\n").split("\n")
    if len(lines) < 2 or text.endswith("\n\n"):
        return False
    return all(line == "" or _BLOCK.fullmatch(line.lstrip(" ")) for line in lines) and (
        lines[0] != "" and not lines[0].startswith(" ") and lines[-1] != ""
    )


def _literal(head: str, text: str, indent: int) -> Iterator[str]:
    body = text.removesuffix("\n")
    yield f"{head} {'|' if text.endswith(chr(10)) else '|-'}"
    for line in body.split("\n"):
        yield f"{' ' * indent}{line}" if line else ""


def _key(key: str) -> str:
    return key if _SIMPLE.fullmatch(key) and not key.startswith("-") else _quoted(key)


def _flow(value: Any) -> str:
    if isinstance(value, Expr):
        source = value.source
        return f"!!js {source if _is_plain(source) else _single(source)}"
    if isinstance(value, str):
        return value if _is_plain(value) and plain_kind(value) == "str" else _quoted(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(k)}: {_flow(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_flow, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
    return json.dumps(value)


def _is_plain(text: str) -> bool:
    return (
        _PLAIN.fullmatch(text) is not None
        and _UNSAFE.search(text) is None
        and not text.startswith("...")
    )


def _single(text: str) -> str:
    """Quote a text so that only its quotes change; fall back when that cannot hold it."""
    if re.search(r"[^\x20-\x7e\xa0-\ud7ff\ue000-\ufefe]", text) is not None:
        return _quoted(text)
    return "'" + text.replace("'", "''") + "'"


def _quoted(text: str) -> str:
    # JSON's escapes are YAML's; what YAML may not show raw is escaped.
    shown = json.dumps(text, ensure_ascii=False)
    return re.sub(
        r"[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]|[\U00010000-\U0010ffff]",
        lambda match: f"\\U{ord(match[0]):08x}",
        shown,
    )
