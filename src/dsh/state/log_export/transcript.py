"""A session as a person saw it: what was said, which tools ran, how turns ended.

Only events that joined the conversation count. What replaced them later, by a compaction or by
pruning, is a copy for the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from dsh.base.values import value
from dsh.state.session.surface import is_append_surface_event

EntryKind: TypeAlias = Literal["user", "note", "assistant", "call", "end"]


@value
class Entry:
    """One thing that a person saw.

    Attributes:
        kind: ``user`` for a prompt, ``note`` for other words to the model, ``assistant`` for a
            reply, ``call`` for a tool, ``end`` for a turn that did not complete.
        seq: The event it comes from.
        time: When, in milliseconds since 1970.
        text: What was said; for a call its arguments, for an end the reason.
        name: The tool, or who wrote a note.
        result: What came of a call; ``None`` when nothing did.
        failed: The call failed.
    """

    kind: EntryKind
    seq: int
    time: int
    text: str
    name: str = ""
    result: str | None = None
    failed: bool = False


def transcript(events: Sequence[Mapping[str, Any]]) -> Iterator[Entry]:
    """Yield what a person saw, in order."""
    results = _results(events)
    for event in events:
        if event["type"] == "turn/end":
            yield from _end(event)
        elif is_append_surface_event(event):
            if event["type"] == "user/message":
                yield _user(event)
            elif event["type"] == "assistant/message":
                yield from _assistant(event, results)


def text_of_blocks(blocks: Iterable[Any]) -> str:
    """Return the visible text of some blocks; an image is told as one."""
    parts = []
    for block in blocks:
        if block.get("type") == "text":
            parts.append(str(block.get("text", "")))
        elif block.get("type") == "image":
            name = _fields(block.get("attachment")).get("name", "")
            parts.append(f"[image {name}".rstrip() + "]")
    return "\n".join(parts)


_Key: TypeAlias = "tuple[Any, Any, Any]"


def _results(events: Iterable[Mapping[str, Any]]) -> dict[_Key, tuple[str, bool]]:
    """Return what came of each call; ids of calls are unique within a step only."""
    results: dict[_Key, tuple[str, bool]] = {}
    for event in events:
        if event["type"] == "tool/result" and is_append_surface_event(event):
            data = event["data"]
            block = data["message"]["content"][0]
            key = (data.get("turn"), data.get("step"), block["toolCallId"])
            results[key] = (text_of_blocks(block["content"]), bool(block.get("isError")))
    return results


def _user(event: Mapping[str, Any]) -> Entry:
    message = event["data"]
    source = message["source"]
    text = text_of_blocks(message["content"])
    if source["kind"] == "user":
        return Entry("user", event["seq"], event["time"], text)
    name = str(source.get("plugin") or source["kind"])
    return Entry("note", event["seq"], event["time"], str(source.get("summary") or text), name)


def _assistant(
    event: Mapping[str, Any], results: Mapping[_Key, tuple[str, bool]]
) -> Iterator[Entry]:
    data = event["data"]
    blocks = data["message"]["content"]
    if text := text_of_blocks(blocks):
        yield Entry("assistant", event["seq"], event["time"], text)
    for block in blocks:
        if block.get("type") == "tool-call":
            key = (data.get("turn"), data.get("step"), block["id"])
            result, failed = results.get(key, (None, False))
            arguments, name = str(block.get("arguments", "")), str(block.get("name", ""))
            yield Entry("call", event["seq"], event["time"], arguments, name, result, failed)


def _end(event: Mapping[str, Any]) -> Iterator[Entry]:
    reason = _fields(event["data"]["reason"])
    kind = str(reason.get("kind"))
    if kind == "completed":
        return
    detail = ""
    if kind == "error":
        detail = f": {_fields(reason.get('error')).get('message', '')}"
    elif kind == "aborted":
        detail = f" ({_fields(reason.get('reason')).get('kind', '')})"
    yield Entry("end", event["seq"], event["time"], f"{kind}{detail}")


def _fields(value: object) -> Mapping[str, Any]:
    """Return an object of a payload; stored payloads are checked only where replaying needs it."""
    return value if isinstance(value, Mapping) else {}
