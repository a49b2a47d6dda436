"""What of an event can be searched, and what it means that a text is in another.

The scan over logs and the index both use this, so that they agree on every hit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from dsh.base.text import replace_surrogates

_ELLIPSIS: Final = "..."


def searchable_text(event: Mapping[str, Any]) -> str | None:
    """Return the text of an event; ``None`` when nobody would search for it.

    That is what people and models wrote and what tools answered. Reasoning is left out.
    """
    reader = _READERS.get(event["type"])
    if reader is None:
        return None
    try:
        return reader(event["data"]) or None
    except (LookupError, TypeError, AttributeError):
        # Another writer's payload may not be as declared; the rest of its log still counts.
        return None


def plain(text: str) -> str:
    """Return a text on one line: runs of white space are one space, and all of it encodes."""
    # Readers in C take NUL for the end.
    return " ".join(replace_surrogates(text).replace("\0", "\ufffd").split())


def folded(text: str) -> str:
    """Return a plain text as it is compared: without case, and exactly as long as before."""
    if text.isascii():
        return text.lower()
    whole = text.casefold()
    return whole if len(whole) == len(text) else "".join(map(_fold_one, text))


def snippet_around(text: str, at: int, length: int, most: int) -> str:
    """Return the part of a plain text around a match, of at most ``most`` code points.

    Args:
        text: The text.
        at: Where the match begins.
        length: How long it is.
        most: The bound; dots that stand for what is left out count.
    """
    if len(text) <= most:
        return text
    start = max(0, min(at - max(0, most - length) // 2, len(text) - most))
    end = start + most
    head = _ELLIPSIS if start and most > 2 * len(_ELLIPSIS) else ""
    tail = _ELLIPSIS if end < len(text) and most > 2 * len(_ELLIPSIS) else ""
    return head + text[start + len(head) : end - len(tail)] + tail


def _fold_one(char: str) -> str:
    for form in (char.casefold(), char.lower()):
        if len(form) == 1:
            return form
    return char


def _message_text(message: Mapping[str, Any]) -> str:
    return "\n".join(_block_texts(message["content"]))


def _block_texts(blocks: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    # A result may hold results; the walk keeps its own stack, for depth is not bounded.
    stack = [iter(blocks)]
    while stack:
        block = next(stack[-1], None)
        if block is None:
            stack.pop()
        elif block["type"] == "text":
            yield block["text"]
        elif block["type"] == "tool-call":
            yield f"{block['name']} {block['arguments']}"
        elif block["type"] == "tool-result":
            stack.append(iter(block["content"]))


def _result_text(data: Mapping[str, Any]) -> str:
    error = data.get("error")
    parts = [_message_text(data["message"])]
    if error is not None:
        parts.append(f"{error['name']} {error['code']}")
    return "\n".join(filter(None, parts))


def _todo_text(data: Mapping[str, Any]) -> str:
    return "\n".join(f"{item['status']} {item['content']}" for item in data["todos"])


def _ending_text(data: Mapping[str, Any]) -> str:
    reason = data["reason"]
    kind = reason["kind"]
    if kind == "error":
        return f"error {reason['error']['message']}"
    return str(kind) if kind in ("aborted", "max-tokens", "interrupted") else ""


_READERS: Final[Mapping[str, Any]] = {
    "user/message": _message_text,
    "assistant/message": lambda data: _message_text(data["message"]),
    "tool/call": lambda data: f"{data['name']} {data['arguments']}",
    "tool/result": _result_text,
    "todo/write": _todo_text,
    "turn/end": _ending_text,
}
