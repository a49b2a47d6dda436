"""Which images a log refers to; their bytes are with the attachment store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any


def image_refs(events: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the reference of each image of a log once, in the order in which they appear.

    They are looked for in messages, in results inside of messages, in messages that wait in an
    inbox, and in blocks of a model stream.
    """
    seen: set[str] = set()
    for event in events:
        for block in _blocks(_contents(event["data"])):
            ref = block.get("attachment")
            if block.get("type") != "image" or not isinstance(ref, Mapping):
                continue
            attachment = ref.get("attachmentId")
            if isinstance(attachment, str) and attachment not in seen:
                seen.add(attachment)
                yield ref


def _contents(data: Mapping[str, Any]) -> Iterator[Any]:
    yield data.get("content")
    for message in (data.get("message"), *_list(data.get("inserted"))):
        if isinstance(message, Mapping):
            yield message.get("content")
    chunk = data.get("chunk")
    if isinstance(chunk, Mapping) and chunk.get("type") == "block-end":
        yield [chunk.get("block")]


def _blocks(contents: Iterable[Any]) -> Iterator[Mapping[str, Any]]:
    # A result may hold results; a stack keeps depth a question of memory.
    stack = [block for content in contents for block in _list(content)][::-1]
    while stack:
        block = stack.pop()
        if isinstance(block, Mapping):
            yield block
            stack += _list(block.get("content"))[::-1]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
