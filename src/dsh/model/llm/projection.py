"""What the last boundary before an adapter takes out of a conversation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from dsh.base.json import FrozenDict, FrozenList
from dsh.model.llm.service import Modality
from dsh.model.messages import Message

__all__ = ["has_images", "without_foreign_replay_state", "without_images"]


def without_foreign_replay_state(
    messages: Sequence[Message], is_own: Callable[[str], bool]
) -> Sequence[Message]:
    """Drop the replay state of replies that another adapter made.

    The messages keep id, provider and model. Returns the very same sequence when nothing is to
    be dropped.

    Args:
        messages: The conversation.
        is_own: Whether the adapter that is about to be called serves a provider.
    """
    changed: dict[int, Message] = {}
    for position, message in enumerate(messages):
        source = message["source"]
        if "replayState" in source and not is_own(str(source.get("provider"))):
            kept = {key: value for key, value in source.items() if key != "replayState"}
            changed[position] = _with(message, source=FrozenDict(kept))
    return _replaced(messages, changed)


def without_images(messages: Sequence[Message]) -> Sequence[Message]:
    """Put a line of text in place of each image, also inside tool results."""
    changed: dict[int, Message] = {}
    for position, message in enumerate(messages):
        if _holds_image(message["content"]):
            changed[position] = _with(message, content=_project(message["content"]))
    return _replaced(messages, changed)


def has_images(messages: Sequence[Message], modalities: Sequence[Modality] | None) -> bool:
    """Say whether the conversation holds an image that the model, by its own word, cannot read."""
    if modalities is None or "image" in modalities:
        return False
    return any(_holds_image(message["content"]) for message in messages)


def _replaced(messages: Sequence[Message], changed: dict[int, Message]) -> Sequence[Message]:
    if not changed:
        return messages
    return FrozenList([changed.get(position, m) for position, m in enumerate(messages)])


def _with(message: Message, **parts: Any) -> Message:
    return cast("Message", FrozenDict({**message, **parts}))


def _holds_image(content: Sequence[Any]) -> bool:
    return any(
        block["type"] == "image"
        or (block["type"] == "tool-result" and _holds_image(block["content"]))
        for block in content
    )


def _project(content: Sequence[Any]) -> FrozenList:
    return FrozenList([_project_block(block) for block in content])


def _project_block(block: Any) -> Any:
    if block["type"] == "image":
        digest = str(block["attachment"].get("attachmentId", "")).removeprefix("sha256:")[:8]
        return FrozenDict(
            {"type": "text", "text": f"[image {digest} is not shown: this model reads text only]"}
        )
    if block["type"] == "tool-result":
        return FrozenDict({**block, "content": _project(block["content"])})
    return block
