"""What a model call streams: block boundaries, deltas, usage, and one finish.

A stream obeys this grammar: a delta belongs to an open block of its kind, ``block-end`` repeats
the whole block, ``usage`` comes at most once, and exactly one ``finish`` ends the stream.
Chunks are frozen mappings with wire keys; the functions here make them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NotRequired, TypeAlias, TypedDict, cast

from dsh.base.json import FrozenDict, snapshot
from dsh.model.messages import ContentBlock, ReplayEnvelope

__all__ = [
    "BlockEnd",
    "BlockStart",
    "FailureReason",
    "Finish",
    "FinishReason",
    "LlmFailure",
    "PlainReason",
    "ReasoningDelta",
    "StreamChunk",
    "TextDelta",
    "TokenUsage",
    "ToolCallDelta",
    "UsageReport",
    "block_end",
    "block_start",
    "failure_of",
    "finish",
    "finish_failure",
    "is_first_token",
    "reasoning_delta",
    "text_delta",
    "tool_call_delta",
    "usage_report",
]


class TokenUsage(TypedDict):
    """Tokens of one reply, in disjoint counts.

    Billed input is ``inputTokens + cacheReadTokens + cacheWriteTokens``; ``reasoningTokens`` is
    a part of ``outputTokens``.
    """

    inputTokens: int
    outputTokens: int
    cacheReadTokens: NotRequired[int]
    cacheWriteTokens: NotRequired[int]
    reasoningTokens: NotRequired[int]


class LlmFailure(TypedDict):
    """Why a model call failed, in facts that can be logged."""

    message: str
    code: str
    status: NotRequired[int]
    providerRetryAfterMs: NotRequired[float]
    requestId: NotRequired[str]


class PlainReason(TypedDict):
    """A stream ended as the model wanted, or at its token limit."""

    kind: Literal["stop", "tool-calls", "max-tokens"]


class FailureReason(TypedDict):
    """A stream ended by a failure or by its caller."""

    kind: Literal["error", "aborted"]
    failure: LlmFailure


FinishReason: TypeAlias = PlainReason | FailureReason
"""Why a stream ended."""


class BlockStart(TypedDict):
    """A block opens."""

    type: Literal["block-start"]
    index: int
    blockType: str


class TextDelta(TypedDict):
    """More visible text."""

    type: Literal["text-delta"]
    index: int
    text: str


class ReasoningDelta(TypedDict):
    """More thinking."""

    type: Literal["reasoning-delta"]
    index: int
    text: str


class ToolCallDelta(TypedDict):
    """More of a tool call; ``name`` comes with the first delta only."""

    type: Literal["tool-call-delta"]
    index: int
    id: str
    name: NotRequired[str]
    argumentsDelta: str


class BlockEnd(TypedDict):
    """A block is complete; ``block`` holds all of it."""

    type: Literal["block-end"]
    index: int
    block: ContentBlock


class UsageReport(TypedDict):
    """The tokens that the reply took."""

    type: Literal["usage"]
    usage: TokenUsage


class Finish(TypedDict):
    """The last chunk."""

    type: Literal["finish"]
    reason: FinishReason
    replayState: NotRequired[ReplayEnvelope]


StreamChunk: TypeAlias = (
    BlockStart | TextDelta | ReasoningDelta | ToolCallDelta | BlockEnd | UsageReport | Finish
)
"""One chunk of a model's reply; the union is closed."""


# The casts below are right by construction: each dict has exactly the keys of its class.


def block_start(index: int, block_type: str) -> BlockStart:
    """Open block ``index``."""
    chunk = {"type": "block-start", "index": index, "blockType": block_type}
    return cast("BlockStart", FrozenDict(chunk))


def text_delta(index: int, text: str) -> TextDelta:
    """Extend text block ``index``."""
    return cast("TextDelta", FrozenDict({"type": "text-delta", "index": index, "text": text}))


def reasoning_delta(index: int, text: str) -> ReasoningDelta:
    """Extend reasoning block ``index``."""
    chunk = {"type": "reasoning-delta", "index": index, "text": text}
    return cast("ReasoningDelta", FrozenDict(chunk))


def tool_call_delta(
    index: int, call_id: str, arguments_delta: str, name: str | None = None
) -> ToolCallDelta:
    """Extend tool call ``index``; give ``name`` with the first delta."""
    chunk: dict[str, Any] = {"type": "tool-call-delta", "index": index, "id": call_id}
    if name is not None:
        chunk["name"] = name
    chunk["argumentsDelta"] = arguments_delta
    return cast("ToolCallDelta", FrozenDict(chunk))


def block_end(index: int, block: ContentBlock) -> BlockEnd:
    """Close block ``index``, which is ``block`` as a whole."""
    chunk = {"type": "block-end", "index": index, "block": snapshot(block)}
    return cast("BlockEnd", FrozenDict(chunk))


def usage_report(usage: TokenUsage) -> UsageReport:
    """Report the tokens of the reply."""
    return cast("UsageReport", FrozenDict({"type": "usage", "usage": snapshot(usage)}))


def finish(
    kind: Literal["stop", "tool-calls", "max-tokens"], replay_state: ReplayEnvelope | None = None
) -> Finish:
    """End the stream well."""
    chunk: dict[str, Any] = {"type": "finish", "reason": FrozenDict({"kind": kind})}
    if replay_state is not None:
        chunk["replayState"] = snapshot(replay_state)
    return cast("Finish", FrozenDict(chunk))


def finish_failure(failure: LlmFailure, *, aborted: bool = False) -> Finish:
    """End the stream with a failure, or as aborted by its caller."""
    reason = FrozenDict({"kind": "aborted" if aborted else "error", "failure": snapshot(failure)})
    return cast("Finish", FrozenDict({"type": "finish", "reason": reason}))


def failure_of(reason: FinishReason) -> LlmFailure | None:
    """Return the failure of an ``error`` or ``aborted`` reason, else ``None``."""
    if reason["kind"] == "error" or reason["kind"] == "aborted":
        return reason["failure"]
    return None


def is_first_token(chunk: Mapping[str, Any]) -> bool:
    """Say whether a chunk carries words of the model, as opposed to structure."""
    kind = chunk["type"]
    if kind == "text-delta" or kind == "reasoning-delta":
        return bool(chunk["text"])
    if kind == "tool-call-delta":
        return bool(chunk["argumentsDelta"] or chunk.get("name"))
    return False
