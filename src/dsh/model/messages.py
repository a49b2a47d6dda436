"""The provider-neutral conversation: content blocks and messages as they are logged.

Every value is a frozen JSON mapping with the keys of the wire. Blocks and sources are open
unions: a ``type`` or ``kind`` that is unknown here is carried along unchanged.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NewType, NotRequired, TypeAlias, TypedDict, cast

from dsh.base.json import snapshot

__all__ = [
    "AssistantMessage",
    "CallId",
    "ContentBlock",
    "ImageBlock",
    "Message",
    "MessageId",
    "MessageSource",
    "ReasoningBlock",
    "ReplayEnvelope",
    "SessionId",
    "TextBlock",
    "ToolCallBlock",
    "ToolResultBlock",
    "ToolResultMessage",
    "UserMessage",
    "create_assistant_message",
    "create_message",
    "create_tool_result_message",
    "create_user_message",
    "new_message_id",
    "text_of",
    "tool_calls_of",
]

SessionId = NewType("SessionId", str)
"""Names a session."""
CallId = NewType("CallId", str)
"""Names a tool call; unique within the reply that made it."""
MessageId = NewType("MessageId", str)
"""Names a message; a UUID made with it."""


class TextBlock(TypedDict):
    """Visible text."""

    type: Literal["text"]
    text: str


class ReasoningBlock(TypedDict):
    """Thinking of a model; never shown as its answer."""

    type: Literal["reasoning"]
    text: str


class ImageBlock(TypedDict):
    """A picture by reference; its bytes are never in the log."""

    type: Literal["image"]
    attachment: Mapping[str, Any]


class ToolCallBlock(TypedDict):
    """A call the model asks for; ``arguments`` is its raw JSON text, never parsed here."""

    type: Literal["tool-call"]
    id: str
    name: str
    arguments: str


class ToolResultBlock(TypedDict):
    """The answer to one tool call."""

    type: Literal["tool-result"]
    toolCallId: str
    content: Sequence[ContentBlock]
    isError: NotRequired[bool]


ContentBlock: TypeAlias = (
    "TextBlock | ReasoningBlock | ImageBlock | ToolCallBlock | ToolResultBlock"
)
"""One part of a message."""

MessageSource: TypeAlias = Mapping[str, Any]
"""Who made a message: ``kind`` (``user``, ``model``, ``tool``, ``plugin``, ...) and its facts."""


class ReplayEnvelope(TypedDict):
    """What an adapter needs to replay its own reply; private to it.

    ``blocks``, when present, has one entry a block, in the order the blocks were first seen.
    """

    response: Any
    blocks: NotRequired[Sequence[Any]]


class Message(TypedDict):
    """One message of a conversation."""

    id: str
    role: Literal["system", "user", "assistant"]
    content: Sequence[ContentBlock]
    source: MessageSource


class UserMessage(TypedDict):
    """A message with the role of the user, whoever wrote it."""

    id: str
    role: Literal["user"]
    content: Sequence[ContentBlock]
    source: MessageSource


class AssistantMessage(TypedDict):
    """A reply; its source names provider and model."""

    id: str
    role: Literal["assistant"]
    content: Sequence[ContentBlock]
    source: MessageSource


class ToolResultMessage(TypedDict):
    """A user-role message that holds exactly one ``tool-result`` block."""

    id: str
    role: Literal["user"]
    content: Sequence[ContentBlock]
    source: MessageSource


def new_message_id() -> MessageId:
    """Return a fresh id."""
    return MessageId(str(uuid.uuid4()))


def create_message(
    role: Literal["system", "user", "assistant"],
    content: Sequence[ContentBlock],
    source: MessageSource,
) -> Message:
    """Make a message with a fresh id: a detached, frozen copy of what is given.

    Raises:
        NotLossless: a block or the source is not JSON.
    """
    message = {
        "id": new_message_id(),
        "role": role,
        "content": list(content),
        "source": source if isinstance(source, dict) else dict(source),
    }
    return cast("Message", snapshot(message))


def create_user_message(
    content: str | Sequence[ContentBlock], source: MessageSource | None = None
) -> UserMessage:
    """Make a user message from text or blocks; the source defaults to the user."""
    blocks: Sequence[ContentBlock] = (
        [{"type": "text", "text": content}] if isinstance(content, str) else content
    )
    message = create_message("user", blocks, {"kind": "user"} if source is None else source)
    return cast("UserMessage", message)


def create_assistant_message(
    blocks: Sequence[ContentBlock],
    provider: str,
    model: str,
    replay_state: ReplayEnvelope | None = None,
) -> AssistantMessage:
    """Make a reply of ``model``; ``replay_state`` is kept for its adapter."""
    source: dict[str, Any] = {"kind": "model", "provider": provider, "model": model}
    if replay_state is not None:
        source["replayState"] = replay_state
    return cast("AssistantMessage", create_message("assistant", blocks, source))


def create_tool_result_message(
    call_id: str, content: Sequence[ContentBlock], is_error: bool
) -> ToolResultMessage:
    """Make the message that answers tool call ``call_id``."""
    block: dict[str, Any] = {
        "type": "tool-result",
        "toolCallId": call_id,
        "content": list(content),
    }
    if is_error:
        block["isError"] = True
    source = {"kind": "tool", "callId": call_id}
    message = create_message("user", [cast("ToolResultBlock", block)], source)
    return cast("ToolResultMessage", message)


def text_of(message: Mapping[str, Any]) -> str:
    """Return the visible text of a message: its text blocks, joined by nothing."""
    return "".join(block["text"] for block in message["content"] if block["type"] == "text")


def tool_calls_of(message: Mapping[str, Any]) -> list[ToolCallBlock]:
    """Return the tool calls of a reply, in order."""
    return [block for block in message["content"] if block["type"] == "tool-call"]
