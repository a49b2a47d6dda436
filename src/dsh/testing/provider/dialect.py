"""From a line of a script to the events of a chat-completions stream, in several dialects."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

from dsh.model.rehearsal import Line, Seen, SeenMessage

__all__ = ["DONE", "Dialect", "seen_of", "whole_reply"]

DONE = "[DONE]"


class Dialect:
    """Encodes one reply.

    Args:
        line: What to say, and its quirks.
        model: Repeated in each event.
        number: Of the request; makes the id of the reply.
    """

    def __init__(self, line: Line, model: str, number: int) -> None:
        self._line = line
        self._quirks = line.quirks
        self._head = {
            "id": f"chatcmpl-{number}",
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": model,
        }

    def opening(self) -> bytes:
        """Return what comes before the first piece."""
        mark = b"\xef\xbb\xbf" if "bom" in self._quirks else b""
        return mark + self.event(self._chunk({"role": "assistant", "content": ""}))

    def pieces(self) -> Iterator[bytes]:
        """Yield one encoded event a piece."""
        begun: set[int] = set()
        for kind, number, text in self._ordered():
            if kind == "reasoning":
                delta: dict[str, Any] = {"reasoning_content": text, "content": None}
            elif kind == "text":
                delta = {"content": text}
                if "null_fields" in self._quirks:
                    delta |= {"reasoning_content": None, "tool_calls": None}
                elif "empty_fields" in self._quirks:
                    delta |= {"reasoning_content": "", "tool_calls": []}
            else:
                delta = {"tool_calls": [self._call(number, text, first=number not in begun)]}
                begun.add(number)
            yield self.event(self._chunk(delta))

    def closing(self) -> bytes:
        """Return what comes after the last piece: finish, usage and the end mark."""
        finish = self._chunk({}, self._line.finish)
        usage = wire_usage(self._line.usage)
        if "usage_with_finish" in self._quirks:
            events = self.event(finish | {"usage": usage})
        else:
            events = self.event(finish) + self.event(self._head | {"choices": [], "usage": usage})
        return events + self.done()

    def done(self) -> bytes:
        """Return the end mark."""
        encoded = self.data(DONE)
        return encoded.rstrip(b"\r\n") if "done_without_blank_line" in self._quirks else encoded

    def event(self, value: Mapping[str, Any]) -> bytes:
        """Encode one event."""
        return self.data(json.dumps(value, ensure_ascii=False, separators=(",", ":")))

    def data(self, data: str) -> bytes:
        """Encode the data of one event as it is."""
        end = "\r\n" if "crlf" in self._quirks else "\n"
        before = f": keep-alive{end}{end}" if "comments" in self._quirks else ""
        space = "" if "no_space" in self._quirks else " "
        return f"{before}data:{space}{data}{end}{end}".encode("utf-8", "surrogatepass")

    def _ordered(self) -> Iterator[tuple[str, int, str]]:
        if "interleave" not in self._quirks:
            yield from self._line.pieces
            return
        waiting: dict[int, list[str]] = {}
        for kind, number, text in self._line.pieces:
            if kind == "call":
                waiting.setdefault(number, []).append(text)
            else:
                yield kind, number, text
        while waiting:
            for number in list(waiting):
                yield "call", number, waiting[number].pop(0)
                if not waiting[number]:
                    del waiting[number]

    def _call(self, number: int, text: str, *, first: bool) -> dict[str, Any]:
        call, quirks = self._line.calls[number], self._quirks
        call_id = self._line.calls[0].id if "duplicate_ids" in quirks else call.id
        entry: dict[str, Any] = {}
        if "no_index" not in quirks:
            entry["index"] = 0 if "reuse_index" in quirks else number
        if first or "repeat_fields" in quirks:
            function = {"name": call.name, "arguments": text}
            return entry | {"id": call_id, "type": "function", "function": function}
        if "null_fields" in quirks:
            return entry | {"id": None, "function": {"name": None, "arguments": text}}
        if "empty_fields" in quirks:
            return entry | {"id": "", "type": "", "function": {"name": "", "arguments": text}}
        return entry | {"function": {"arguments": text}}

    def _chunk(self, delta: Mapping[str, Any], finish: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return self._head | {"choices": [choice]}


def whole_reply(line: Line, model: str, number: int) -> dict[str, Any]:
    """Return the answer to a request that does not stream."""
    message: dict[str, Any] = {"role": "assistant", "content": "".join(line.text)}
    if line.reasoning:
        message["reasoning_content"] = "".join(line.reasoning)
    if line.calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in line.calls
        ]
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": line.finish}],
        "usage": wire_usage(line.usage),
    }


def wire_usage(usage: Mapping[str, int]) -> dict[str, Any]:
    """Return the usage as DeepSeek reports it."""
    asked, said = usage.get("input", 0), usage.get("output", 0)
    wire: dict[str, Any] = {
        "prompt_tokens": asked,
        "completion_tokens": said,
        "total_tokens": asked + said,
    }
    if "cache_read" in usage:
        cached = usage["cache_read"]
        wire["prompt_cache_hit_tokens"] = cached
        wire["prompt_cache_miss_tokens"] = asked - cached
        wire["prompt_tokens_details"] = {"cached_tokens": cached}
    if "reasoning" in usage:
        wire["completion_tokens_details"] = {"reasoning_tokens": usage["reasoning"]}
    return wire


def seen_of(body: Mapping[str, Any], session: str | None) -> Seen:
    """Return what a script sees of a request body."""
    messages = [_seen(item) for item in body.get("messages") or [] if isinstance(item, dict)]
    return Seen(messages, session, str(body.get("model", "")))


def _seen(message: Mapping[str, Any]) -> SeenMessage:
    role, text = message.get("role"), _text(message.get("content"))
    if role == "assistant":
        calls = tuple(
            (str(call.get("id")), str((call.get("function") or {}).get("name")))
            for call in message.get("tool_calls") or []
        )
        return SeenMessage("assistant", text, calls)
    if role == "tool":
        return SeenMessage("tool", text, call_id=str(message.get("tool_call_id")))
    return SeenMessage("user" if role == "user" else "system", text)


def _text(content: object) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""
