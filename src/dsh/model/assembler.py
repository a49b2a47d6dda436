"""The one fold from stream chunks to a message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from dsh.base.json import FrozenDict, FrozenList, snapshot
from dsh.model.chunks import FinishReason, StreamChunk, TokenUsage, finish
from dsh.model.failures import LlmError
from dsh.model.messages import (
    AssistantMessage,
    ContentBlock,
    MessageSource,
    ReplayEnvelope,
    create_message,
)

__all__ = ["BlockAssembler"]

_STOP: FinishReason = finish("stop")["reason"]
_KEPT_ON_INTERRUPT = ("text", "reasoning")


class _Block:
    """A block under way; ``final`` is set when it closed."""

    __slots__ = ("call_id", "final", "kind", "name", "parts")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.parts: list[str] = []
        self.call_id = ""
        self.name = ""
        self.final: ContentBlock | None = None


class BlockAssembler:
    """Collects the chunks of one reply and gives its blocks, message, usage and finish.

    Tolerates streams that send deltas without block boundaries. What comes after the end of a
    block is ignored; the first end wins. Blocks keep the order in which they were first seen.
    """

    __slots__ = ("_blocks", "_envelope", "finish", "usage")

    def __init__(self) -> None:
        self._blocks: dict[int, _Block] = {}
        self._envelope: ReplayEnvelope | None = None
        self.usage: TokenUsage | None = None
        """Tokens of the reply, once they were reported."""
        self.finish: FinishReason = _STOP
        """Why the stream ended; ``stop`` until it says otherwise."""

    def push(self, chunk: StreamChunk) -> None:
        """Take the next chunk.

        Raises:
            LlmError: ``INVALID_RESPONSE``, the chunk's type is unknown or its delta does not fit
                the open block; the adapter has a bug.
        """
        kind = chunk["type"]
        if chunk["type"] == "text-delta":
            self._extend(chunk["index"], "text", chunk["text"])
        elif chunk["type"] == "reasoning-delta":
            self._extend(chunk["index"], "reasoning", chunk["text"])
        elif chunk["type"] == "tool-call-delta":
            block = self._extend(chunk["index"], "tool-call", chunk["argumentsDelta"])
            if not block.call_id:
                block.call_id = chunk["id"]
            if not block.name:
                block.name = chunk.get("name") or ""
        elif chunk["type"] == "block-start":
            self._blocks.setdefault(chunk["index"], _Block(chunk["blockType"]))
        elif chunk["type"] == "block-end":
            self._close(chunk["index"], chunk["block"])
        elif chunk["type"] == "usage":
            self.usage = chunk["usage"]
        elif chunk["type"] == "finish":
            self.finish = chunk["reason"]
            self._envelope = chunk.get("replayState")
        else:
            raise LlmError(f"unknown stream chunk {kind!r}", code="INVALID_RESPONSE")

    def blocks(self) -> list[ContentBlock]:
        """Return the blocks so far, open ones as far as they got.

        A reply cut by its token limit loses its tool calls: their arguments may be incomplete.
        Tool calls that came with the same id, or with none, get ids of their own: each has a result
        that must be told from the others.

        Raises:
            LlmError: ``INVALID_RESPONSE``, a block of a type that has no deltas never closed.
        """
        return [block for _, block in self._kept()]

    def interrupted_blocks(self) -> list[ContentBlock]:
        """Return what is worth keeping of a reply that was cut: its text and reasoning.

        Tool calls and blank blocks are left out.
        """
        whole = (
            self._assemble(index, block)
            for index, block in self._blocks.items()
            if block.kind in _KEPT_ON_INTERRUPT
        )
        return [block for block in whole if cast("Mapping[str, Any]", block)["text"].strip()]

    @property
    def replay_state(self) -> ReplayEnvelope | None:
        """What the adapter wants back with the message, matched to the blocks that are kept.

        An envelope whose ``blocks`` do not match the blocks seen is dropped as a whole.
        """
        envelope = self._envelope
        if envelope is None or "blocks" not in envelope:
            return envelope
        entries = envelope["blocks"]
        if len(entries) != len(self._blocks):
            return None
        kept = [entries[position] for position, _ in self._kept()]
        if len(kept) == len(entries):
            return envelope
        return cast("ReplayEnvelope", FrozenDict({**envelope, "blocks": FrozenList(kept)}))

    def message(self, source: MessageSource) -> AssistantMessage:
        """Return the reply as a message; the replay state joins its ``source``."""
        facts = dict(source)
        if (envelope := self.replay_state) is not None:
            facts["replayState"] = envelope
        # Right by construction: create_message keeps the role it is given.
        return cast("AssistantMessage", create_message("assistant", self.blocks(), facts))

    def _extend(self, index: int, kind: str, text: str) -> _Block:
        block = self._blocks.get(index)
        if block is None:
            block = self._blocks[index] = _Block(kind)
        elif block.kind != kind:
            raise LlmError(
                f"stream chunk {kind!r} came for block {index}, which is {block.kind!r}",
                code="INVALID_RESPONSE",
            )
        if block.final is None:
            block.parts.append(text)
        return block

    def _close(self, index: int, final: ContentBlock) -> None:
        block = self._blocks.get(index)
        if block is None:
            block = self._blocks[index] = _Block(final["type"])
        if block.final is None:
            block.final = snapshot(final)
            block.kind = final["type"]

    def _kept(self) -> list[tuple[int, ContentBlock]]:
        """Return the blocks that the message keeps, each with its position among all seen."""
        cut = self.finish["kind"] == "max-tokens"
        kept = [
            (position, self._assemble(index, block))
            for position, (index, block) in enumerate(self._blocks.items())
            if not (cut and block.kind == "tool-call")
        ]
        return _with_own_ids(kept)

    def _assemble(self, index: int, block: _Block) -> ContentBlock:
        if block.final is not None:
            return block.final
        text = "".join(block.parts)
        facts: dict[str, str]
        if block.kind == "text" or block.kind == "reasoning":
            facts = {"type": block.kind, "text": text}
        elif block.kind == "tool-call":
            facts = {
                "type": "tool-call",
                "id": block.call_id or f"call-{index}",
                "name": block.name,
                "arguments": text,
            }
        else:
            raise LlmError(
                f"block {index} of type {block.kind!r} never closed and has no deltas to build "
                "it from",
                code="INVALID_RESPONSE",
            )
        return cast("ContentBlock", FrozenDict(facts))


def _with_own_ids(blocks: list[tuple[int, ContentBlock]]) -> list[tuple[int, ContentBlock]]:
    """Give each tool call an id that no other one has; the first of several keeps theirs."""
    given = [block["id"] for _, block in blocks if block["type"] == "tool-call"]
    if all(given) and len(given) == len(set(given)):
        return blocks
    used: set[str] = set()
    taken = set(given)
    renamed: list[tuple[int, ContentBlock]] = []
    for position, block in blocks:
        if block["type"] == "tool-call":
            if not block["id"] or block["id"] in used:
                own = _free(block["id"] or f"call-{position}", taken)
                taken.add(own)
                block = cast("ContentBlock", FrozenDict({**block, "id": own}))
            else:
                used.add(block["id"])
        renamed.append((position, block))
    return renamed


def _free(id: str, taken: set[str]) -> str:
    free, number = id, 2
    while free in taken:
        free, number = f"{id}-{number}", number + 1
    return free
