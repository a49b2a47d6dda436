"""What the last boundary before an adapter takes out of a conversation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from dsh.base.json import FrozenDict, FrozenList
from dsh.model.llm.service import Modality
from dsh.model.messages import Message

__all__ = [
    "Conversation",
    "ConversationReader",
    "has_images",
    "without_foreign_replay_state",
    "without_images",
]


class Conversation(FrozenList):
    """The messages of one request, with what was found in them when they were first seen.

    A list of messages like any other; the functions of this module look only at the messages that
    a finding points to.
    """

    __slots__ = ("_found",)

    def __init__(self, messages: Sequence[Message], found: _Findings) -> None:
        super().__init__(messages)
        self._found = found


class ConversationReader:
    """Makes the conversations of one agent, and reads each message once for all its requests."""

    def __init__(self) -> None:
        self._found = _Findings()
        self._generation = 0

    def take(self, messages: Sequence[Message], generation: int) -> Conversation:
        """Return the messages as a conversation.

        Args:
            messages: The whole conversation. Those of an earlier request come first, unchanged,
                for as long as the generation is the same.
            generation: Changes with every rewrite of earlier messages.
        """
        if generation != self._generation or len(messages) < self._found.seen:
            self._found, self._generation = _Findings(), generation
        self._found.read(messages)
        return Conversation(messages, self._found)


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
    found = _found_in(messages)
    foreign = [
        position
        for provider, positions in found.replays.items()
        if not is_own(provider)
        for position in positions
    ]
    return _replaced(messages, foreign, found.stripped, _without_replay_state, found)


def without_images(messages: Sequence[Message]) -> Sequence[Message]:
    """Put a line of text in place of each image, also inside tool results."""
    found = _found_in(messages)
    return _replaced(messages, found.images, found.described, _with_described_images, None)


def has_images(messages: Sequence[Message], modalities: Sequence[Modality] | None) -> bool:
    """Say whether the conversation holds an image that the model, by its own word, cannot read."""
    if modalities is None or "image" in modalities:
        return False
    if not isinstance(messages, Conversation):
        return any(_holds_image(message["content"]) for message in messages)
    images = messages._found.images
    return bool(images) and images[0] < len(messages)


class _Findings:
    """Where a growing conversation holds what a projection replaces, and what it was replaced by.

    Shared by all requests of that conversation: it may know of messages that an older, shorter
    request does not hold.
    """

    __slots__ = ("described", "images", "replays", "seen", "stripped")

    def __init__(self) -> None:
        self.seen = 0
        self.replays: dict[str, list[int]] = {}
        """By provider, the positions of its replies that have a replay state."""
        self.images: list[int] = []
        self.stripped: _Made = {}
        self.described: _Made = {}

    def read(self, messages: Sequence[Message]) -> None:
        for position, message in enumerate(messages[self.seen :], self.seen):
            source = message["source"]
            if "replayState" in source:
                self.replays.setdefault(str(source.get("provider")), []).append(position)
            if _holds_image(message["content"]):
                self.images.append(position)
        self.seen = len(messages)


_Made = dict[int, tuple[Message, Message]]
"""By position: a message, and what a projection made of it."""


def _found_in(messages: Sequence[Message]) -> _Findings:
    if isinstance(messages, Conversation):
        return messages._found
    found = _Findings()
    found.read(messages)
    return found


def _replaced(
    messages: Sequence[Message],
    positions: Sequence[int],
    made: _Made,
    project: Callable[[Message], Message],
    found: _Findings | None,
) -> Sequence[Message]:
    """Project some messages; ``found`` when it still tells the truth about the outcome."""
    positions = [position for position in positions if position < len(messages)]
    if not positions:
        return messages
    projected = list(messages)
    for position in positions:
        message = projected[position]
        known = made.get(position)
        if known is None or known[0] is not message:
            known = made[position] = (message, project(message))
        projected[position] = known[1]
    return FrozenList(projected) if found is None else Conversation(projected, found)


def _without_replay_state(message: Message) -> Message:
    source = {key: value for key, value in message["source"].items() if key != "replayState"}
    return _with(message, source=FrozenDict(source))


def _with_described_images(message: Message) -> Message:
    return _with(message, content=_project(message["content"]))


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
