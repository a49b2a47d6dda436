"""From the events of a chat-completions stream to chunks."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any, Literal, cast

from dsh.base.json import loads
from dsh.model.adapters.deepseek.calls import ToolCalls
from dsh.model.chunks import (
    StreamChunk,
    TokenUsage,
    block_end,
    block_start,
    finish,
    reasoning_delta,
    text_delta,
    usage_report,
)
from dsh.model.failures import LlmError
from dsh.model.http_failures import code_of_error_event

__all__ = ["StreamDecoder", "usage_of"]

_SHOWN = 120
_REASONS: Mapping[str, Literal["stop", "tool-calls", "max-tokens"]] = {
    "stop": "stop",
    "tool_calls": "tool-calls",
    "function_call": "tool-calls",
    "length": "max-tokens",
}


class _Words:
    """The deltas of one block. Some providers cut them inside a character beyond U+FFFF."""

    __slots__ = ("_half", "_parts")

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._half = ""

    def take(self, text: str) -> str:
        """Add a delta; return what of it can be shown already."""
        if self._half or "\ud800" <= text[-1] <= "\udbff":
            text = (
                (self._half + text)
                .encode("utf-16", "surrogatepass")
                .decode("utf-16", "surrogatepass")
            )
            cut = "\ud800" <= text[-1] <= "\udbff"
            self._half = text[-1] if cut else ""
            text = text[:-1] if cut else text
        self._parts.append(text)
        return text

    def whole(self) -> str:
        """Return the text; half a character at its end, which nothing followed, included."""
        return "".join(self._parts) + self._half


class StreamDecoder:
    """Turns event data into chunks: one reasoning block, one text block, one block a call.

    Blocks stay open until `finish`, which gives their ends, the usage and the finish.

    Args:
        taken_ids: Ids of the tool calls that the conversation has already.
    """

    __slots__ = (
        "_calls",
        "_next",
        "_reason",
        "_reasoning",
        "_text",
        "_thoughts",
        "_usage",
        "_words",
    )

    def __init__(self, taken_ids: Container[str] = ()) -> None:
        self._next = 0
        self._text: int | None = None
        self._words = _Words()
        self._reasoning: int | None = None
        self._thoughts = _Words()
        self._calls = ToolCalls(taken_ids)
        self._usage: TokenUsage | None = None
        self._reason: str | None = None

    def push(self, data: bytes) -> list[StreamChunk]:
        """Return the chunks of one event.

        Raises:
            LlmError: ``MALFORMED_RESPONSE``, or the class of an error that the provider sent
                instead of an event.
        """
        try:
            event = loads(data)
        except ValueError as error:
            raise LlmError(
                f"the reply holds an event that is not JSON: {_shown(data)}",
                code="MALFORMED_RESPONSE",
            ) from error
        if not isinstance(event, dict):
            raise _unexpected("event", event)
        if event.get("error"):
            raise _provider_error(event["error"])
        if (usage := event.get("usage")) is not None:
            self._usage = usage_of(usage) or self._usage
        choices = event.get("choices")
        if not choices:
            if choices is None or choices == []:
                return []
            raise _unexpected("choices", choices)
        if not isinstance(choices, list) or not isinstance(choices[0], dict):
            raise _unexpected("choices", choices)
        choice = choices[0]
        if reason := choice.get("finish_reason"):  # null and "" are said after the real one too
            self._reason = str(reason)
        delta = choice.get("delta")
        if not delta:
            return []
        if not isinstance(delta, dict):
            raise _unexpected("delta", delta)
        return self._delta(delta)

    def finish(self) -> list[StreamChunk]:
        """Return the ends of all blocks, the usage, and the finish.

        Raises:
            LlmError: ``EMPTY_RESPONSE`` (nothing was said), ``MALFORMED_RESPONSE`` (a call has no
                name), or the provider's reason in upper case, when it is not one of the known.
                The usage is not lost: `usage` still holds it.
        """
        out: list[StreamChunk] = []
        ends: list[StreamChunk] = []
        self._next = self._calls.close(self._next, out, ends)
        if self._reasoning is not None:
            thoughts = self._thoughts.whole()
            ends.append(block_end(self._reasoning, {"type": "reasoning", "text": thoughts}))
        if self._text is not None:
            words = self._words.whole()
            ends.append(block_end(self._text, {"type": "text", "text": words}))
        out += sorted(ends, key=_block_order)
        if self._usage is not None:
            out.append(usage_report(self._usage))
        out.append(finish(self._kind()))
        return out

    @property
    def usage(self) -> TokenUsage | None:
        """The last usage that the provider reported."""
        return self._usage

    def _kind(self) -> Literal["stop", "tool-calls", "max-tokens"]:
        kind = _REASONS.get(self._reason or "stop")
        if kind is None:
            raise LlmError(
                f"the provider ended the reply with {self._reason!r}",
                code=str(self._reason).upper() or "UNKNOWN",
            )
        if kind == "max-tokens":
            return kind
        if self._next == 0:
            raise LlmError("the provider sent an empty reply", code="EMPTY_RESPONSE")
        # Some gateways say "stop" after tool calls, others "tool_calls" after plain text.
        return "tool-calls" if len(self._calls) else "stop"

    def _delta(self, delta: dict[str, Any]) -> list[StreamChunk]:
        out: list[StreamChunk] = []
        thought = delta.get("reasoning_content") or delta.get("reasoning")
        if thought:
            if not isinstance(thought, str):
                raise _unexpected("reasoning_content", thought)
            if self._reasoning is None:
                self._reasoning = self._open("reasoning", out)
            if thought := self._thoughts.take(thought):
                out.append(reasoning_delta(self._reasoning, thought))
        text = delta.get("content")
        if text:
            if not isinstance(text, str):
                raise _unexpected("content", text)
            if self._text is None:
                self._text = self._open("text", out)
            if text := self._words.take(text):
                out.append(text_delta(self._text, text))
        calls = delta.get("tool_calls")
        if calls:
            if not isinstance(calls, list):
                raise _unexpected("tool_calls", calls)
            for entry in calls:
                if not isinstance(entry, dict):
                    raise _unexpected("tool_calls", entry)
                self._next = self._calls.push(entry, self._next, out)
        return out

    def _open(self, kind: str, out: list[StreamChunk]) -> int:
        index = self._next
        self._next += 1
        out.append(block_start(index, kind))
        return index


def usage_of(wire: object) -> TokenUsage | None:
    """Return the disjoint counts of a wire usage, or ``None`` when it has no usable totals."""
    if not isinstance(wire, dict):
        return None
    prompt, completion = _count(wire.get("prompt_tokens")), _count(wire.get("completion_tokens"))
    if prompt is None and completion is None:
        return None
    cached = _count(_member(wire, "prompt_tokens_details", "cached_tokens"))
    if cached is None:
        cached = _count(wire.get("prompt_cache_hit_tokens"))
    reasoning = _count(_member(wire, "completion_tokens_details", "reasoning_tokens"))
    usage: dict[str, int] = {
        "inputTokens": max(0, (prompt or 0) - (cached or 0)),
        "outputTokens": completion or 0,
    }
    if cached is not None:
        usage["cacheReadTokens"] = cached
    if reasoning is not None:
        usage["reasoningTokens"] = reasoning
    return cast("TokenUsage", usage)


def _block_order(chunk: StreamChunk) -> int:
    return cast("int", cast("Mapping[str, object]", chunk)["index"])


def _member(wire: dict[str, Any], key: str, inner: str) -> object:
    value = wire.get(key)
    return value.get(inner) if isinstance(value, dict) else None


def _count(value: object) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _provider_error(error: object) -> LlmError:
    facts = error if isinstance(error, dict) else {"message": str(error)}
    message, code = str(facts.get("message") or facts), code_of_error_event(facts)
    return LlmError(f"the provider broke off the reply: {message[:500]}", code=code)


def _unexpected(what: str, value: object) -> LlmError:
    return LlmError(
        f"the reply has an unexpected {what!r}: {repr(value)[:_SHOWN]}", code="MALFORMED_RESPONSE"
    )


def _shown(data: bytes) -> str:
    return repr(data[: _SHOWN * 4].decode("utf-8", "replace")[:_SHOWN])
