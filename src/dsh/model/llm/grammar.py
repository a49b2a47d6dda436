"""The grammar of chunk streams as a check, for tests and for authors of adapters."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any, cast

from dsh.model.chunks import StreamChunk
from dsh.model.failures import LlmError
from dsh.model.llm.service import ChunkStream

__all__ = ["ChunkGrammar", "GrammarViolation", "checked"]

_DELTAS: Mapping[str, str] = {
    "text-delta": "text",
    "reasoning-delta": "reasoning",
    "tool-call-delta": "tool-call",
}


class GrammarViolation(LlmError):
    """A stream broke the rules of `dsh.model.chunks`; the adapter or a listener has a bug."""

    code = "INVARIANT"

    def __init__(self, problem: str, chunk: object = None) -> None:
        at = f": {chunk!r}" if chunk is not None else ""
        super().__init__(f"a model stream {problem}{at}")


class ChunkGrammar:
    """Follows one stream and refuses the first chunk that breaks the grammar."""

    def __init__(self) -> None:
        self._open: dict[int, str] = {}
        self._seen: set[int] = set()
        self._usage = False
        self._finished = False

    def push(self, chunk: StreamChunk) -> None:
        """Follow the next chunk.

        Raises:
            GrammarViolation: it may not come here.
        """
        facts = cast("Mapping[str, Any]", chunk)
        kind = facts["type"]
        if self._finished:
            raise GrammarViolation("goes on after its finish", chunk)
        if "index" in facts and (type(facts["index"]) is not int or facts["index"] < 0):
            raise GrammarViolation("has a block number that is not a natural number", chunk)
        if kind in _DELTAS:
            if self._open.get(facts["index"]) != _DELTAS[kind]:
                raise GrammarViolation("has a delta without an open block of its kind", chunk)
        elif kind == "block-start":
            self._start(facts)
        elif kind == "block-end":
            if self._open.pop(facts["index"], None) != facts["block"]["type"]:
                raise GrammarViolation("ends a block that is not open with that type", chunk)
        elif kind == "usage":
            if self._usage:
                raise GrammarViolation("reports its usage twice", chunk)
            self._usage = True
        elif kind == "finish":
            self._finished = True
            if self._open and facts["reason"]["kind"] not in ("error", "aborted"):
                raise GrammarViolation("finishes with open blocks", chunk)
        else:
            raise GrammarViolation("has a chunk of an unknown type", chunk)

    def end(self) -> None:
        """Note that the stream is over.

        Raises:
            GrammarViolation: it had no finish.
        """
        if not self._finished:
            raise GrammarViolation("ended without a finish")

    def _start(self, facts: Mapping[str, Any]) -> None:
        if facts["index"] in self._seen:
            raise GrammarViolation("starts a block twice", facts)
        self._seen.add(facts["index"])
        self._open[facts["index"]] = facts["blockType"]


async def checked(source: ChunkStream) -> AsyncIterator[StreamChunk]:
    """Yield the chunks of ``source`` while they obey the grammar, then raise."""
    grammar = ChunkGrammar()
    async with aclosing(source):
        async for chunk in source:
            grammar.push(chunk)
            yield chunk
    grammar.end()
