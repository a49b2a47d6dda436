"""An adapter whose model reads its words from a script."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

from dsh.base.signal import AbortSignal
from dsh.model.chunks import (
    StreamChunk,
    TokenUsage,
    block_end,
    block_start,
    finish,
    reasoning_delta,
    text_delta,
    tool_call_delta,
    usage_report,
)
from dsh.model.failures import LlmError
from dsh.model.http_failures import code_of_error_event, code_of_status, parse_retry_after
from dsh.model.llm.service import (
    GenerateOptions,
    LlmAdapter,
    LlmModelInfo,
    LlmProviderInfo,
    ReasoningEffort,
    ReasoningInfo,
    ResolvedModelInfo,
    RetryPolicy,
)
from dsh.model.messages import ContentBlock, Message
from dsh.model.rehearsal import Fault, Line, Play, ScriptError, Seen, SeenMessage

if TYPE_CHECKING:
    from dsh.model.adapters.rehearsal.config import Config

__all__ = ["RehearsalAdapter", "seen_of"]

_FINISHES: dict[str, Literal["stop", "tool-calls", "max-tokens"]] = {
    "stop": "stop",
    "tool_calls": "tool-calls",
    "length": "max-tokens",
}


class RehearsalAdapter(LlmAdapter):
    """Plays one script, chunk by chunk, over the seam that real adapters use.

    A request that the script does not expect fails with ``REHEARSAL_MISMATCH``, one too many
    with ``REHEARSAL_EXHAUSTED``; neither is retried.
    """

    def __init__(self, config: Config, play: Play) -> None:
        self._config = config
        self._play = play

    def provider_info(self, provider: str) -> LlmProviderInfo:
        """See `LlmAdapter.provider_info`."""
        return LlmProviderInfo(provider, "Rehearsal (scripted)")

    def retry_policy(self, provider: str) -> RetryPolicy | None:
        """See `LlmAdapter.retry_policy`."""
        return self._config.retry_policy.resolve()

    async def list_models(self, provider: str) -> Sequence[LlmModelInfo]:
        """See `LlmAdapter.list_models`."""
        title = self._play.script.title or None
        return [LlmModelInfo(provider, self._config.model, self._config.model, title, ("text",))]

    async def resolve_model(
        self, provider: str, model: str, signal: AbortSignal | None = None
    ) -> ResolvedModelInfo:
        """See `LlmAdapter.resolve_model`."""
        return ResolvedModelInfo(
            provider=provider,
            id=model,
            name=model,
            input_modalities=("text",),
            context_window=self._config.context_window,
            reasoning=ReasoningInfo(
                tuple(ReasoningEffort(level, level.title()) for level in ("off", "low", "high"))
            ),
        )

    async def stream(self, options: GenerateOptions) -> AsyncIterator[StreamChunk]:
        """See `LlmAdapter.stream`."""
        seen = seen_of(options)
        models = self._play.script.models
        if models and options.model not in models:
            raise LlmError(
                f"the script has no model {options.model!r}, only {', '.join(models)}",
                code="INVALID_REQUEST",
                status=400,
            )
        try:
            line = self._play.next(seen)
        except ScriptError as error:
            raise LlmError(f"rehearsal: {error.message}", code=error.code) from error
        async for chunk in _speak(line, options.signal):
            yield chunk


def seen_of(options: GenerateOptions) -> Seen:
    """Return what a script sees of a request."""
    messages = [SeenMessage("system", options.system)] if options.system else []
    for message in options.messages:
        messages.extend(_seen(message))
    return Seen(messages, options.session_id, options.model)


def _seen(message: Message) -> Iterator[SeenMessage]:
    text = _text(message["content"])
    if message["role"] == "assistant":
        calls = tuple(
            (block["id"], block["name"])
            for block in message["content"]
            if block["type"] == "tool-call"
        )
        yield SeenMessage("assistant", text, calls)
        return
    results = [block for block in message["content"] if block["type"] == "tool-result"]
    if text or not results:
        yield SeenMessage(message["role"], text)
    for block in results:
        yield SeenMessage(
            "tool",
            _text(block["content"]),
            call_id=block["toolCallId"],
            is_error=block.get("isError", False),
        )


def _text(content: Sequence[Any]) -> str:
    return "".join(block["text"] for block in content if block["type"] == "text")


async def _speak(line: Line, signal: AbortSignal | None) -> AsyncIterator[StreamChunk]:
    """Yield a line, up to its fault if it has one."""
    stage = _Stage(line)
    await _pause(line.first_delay_s, signal)
    for number, piece in enumerate(line.pieces):
        if line.fault is not None and number >= _sent_before(line.fault):
            break
        if number:
            await _pause(line.delay_s, signal)
        for chunk in stage.say(*piece):
            yield chunk
    if line.fault is not None:
        await _fail(line.fault, signal)
    for chunk in stage.close():
        yield chunk


class _Stage:
    """Turns pieces into chunks and remembers the blocks."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._open: dict[tuple[str, int], int] = {}

    def say(self, kind: str, number: int, text: str) -> Iterator[StreamChunk]:
        index = self._open.get((kind, number))
        new = index is None
        if index is None:
            index = self._open[kind, number] = len(self._open)
            yield block_start(index, "tool-call" if kind == "call" else kind)
        if kind == "text":
            yield text_delta(index, text)
        elif kind == "reasoning":
            yield reasoning_delta(index, text)
        else:
            call = self._line.calls[number]
            yield tool_call_delta(index, call.id, text, call.name if new else None)

    def close(self) -> Iterator[StreamChunk]:
        line = self._line
        if not self._open:
            raise LlmError(f"{line.place}: the reply is empty", code="EMPTY_RESPONSE")
        for (kind, number), index in self._open.items():
            yield block_end(index, self._block(kind, number))
        yield usage_report(_usage(line))
        reason = _FINISHES.get(line.finish)
        if reason is None:
            raise LlmError(f"the script ends with {line.finish!r}", code=line.finish.upper())
        yield finish(reason)

    def _block(self, kind: str, number: int) -> ContentBlock:
        if kind == "text":
            return {"type": "text", "text": "".join(self._line.text)}
        if kind == "reasoning":
            return {"type": "reasoning", "text": "".join(self._line.reasoning)}
        call = self._line.calls[number]
        return {
            "type": "tool-call",
            "id": call.id,
            "name": call.name,
            "arguments": call.arguments,
        }


def _usage(line: Line) -> TokenUsage:
    wire = line.usage
    cached = wire.get("cache_read")
    usage: dict[str, int] = {
        "inputTokens": max(0, wire.get("input", 0) - (cached or 0)),
        "outputTokens": wire.get("output", 0),
    }
    if cached is not None:
        usage["cacheReadTokens"] = cached
    if "reasoning" in wire:
        usage["reasoningTokens"] = wire["reasoning"]
    return cast("TokenUsage", usage)


def _sent_before(fault: Fault) -> int:
    return fault.after if fault.kind not in ("status", "reset", "empty", "body") else 0


async def _fail(fault: Fault, signal: AbortSignal | None) -> None:
    """Raise what a real adapter would raise for this fault."""
    kind, said = fault.kind, fault.message or "scripted failure"
    if kind == "status":
        words = f"{fault.code or ''} {said}"
        raise LlmError(
            f"HTTP {fault.status} (scripted): {said}",
            code=code_of_status(fault.status, words),
            status=fault.status,
            retry_after_ms=parse_retry_after(fault.retry_after, 0),
            request_id=fault.request_id,
        )
    if kind == "stall":
        await _pause(math.inf if fault.seconds is None else fault.seconds, signal)
        raise LlmError("the scripted model fell silent", code="TIMEOUT")
    if kind == "error":
        raise LlmError(
            f"the scripted model broke off: {said}",
            code=code_of_error_event({"message": said, "code": fault.code}),
        )
    codes = {
        "reset": "TRANSPORT",
        "cut": "TRANSPORT",
        "close": "STREAM_CLOSED",
        "malformed": "MALFORMED_RESPONSE",
        "empty": "EMPTY_RESPONSE",
        "body": "INVALID_RESPONSE",
    }
    raise LlmError(f"scripted fault {kind!r}", code=codes[kind])


async def _pause(seconds: float, signal: AbortSignal | None) -> None:
    """Wait, but not longer than until the caller gives up."""
    if signal is not None:
        signal.throw_if_aborted()
    if seconds <= 0:
        return
    wait = asyncio.Event().wait() if seconds == math.inf else asyncio.sleep(seconds)
    await (wait if signal is None else signal.run(wait))
