"""From a request to the JSON body of a chat-completions call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from operator import is_
from typing import Any

from dsh.base.json import dumps, thaw
from dsh.base.text import replace_surrogates
from dsh.base.values import record
from dsh.model.failures import LlmError
from dsh.model.llm.service import GenerateOptions
from dsh.model.messages import Message

__all__ = [
    "EFFORTS",
    "WireHistory",
    "encode_body",
    "encode_message",
    "encode_messages",
    "encode_request",
    "history_call_ids",
]

EFFORTS: Mapping[str, str] = {
    "off": "answers at once, without thinking",
    "low": "thinks briefly",
    "high": "thinks as long as most work needs",
    "max": "thinks as long as it takes",
}
"""The levels of thinking, each with what it does."""
_NO_OUTPUT = "(no output)"
_REMEMBERED_SESSIONS = 16


def encode_request(
    options: GenerateOptions,
    *,
    thinking: str | None,
    vendor: bool,
    history: WireHistory | None = None,
) -> bytes:
    """Return the body of a streaming call, as valid UTF-8.

    Args:
        options: The request; what is ``None`` is left out.
        thinking: ``enabled`` or ``disabled`` for calls that name no effort, as configured.
        history: Remembers the messages that earlier requests of the session held.
        vendor: The endpoint is DeepSeek's own. Elsewhere only fields that the caller or the
            configuration set are sent.

    Raises:
        LlmError: ``UNSUPPORTED_CONTENT`` (an image) or ``UNSUPPORTED_REASONING_EFFORT``.
    """
    messages = (history or WireHistory()).encode(options)
    body: dict[str, Any] = {
        "model": options.model,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    body.update(_thinking(options, thinking, vendor=vendor))
    if options.tools:
        body["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": tool["name"],
                    "description": tool["description"],
                    "parameters": tool["parameters"],
                },
            }
            for tool in options.tools
        ]
    if options.temperature is not None:
        body["temperature"] = options.temperature
    if options.max_tokens is not None:
        body["max_tokens"] = options.max_tokens
    if options.stop is not None:
        body["stop"] = list(options.stop)
    return b'{"messages":' + messages + b"," + encode_body(body)[1:]


@record
class _Known:
    """What the last request of a session held."""

    messages: list[Message]
    joined: bytes
    """The messages on the wire, without the brackets of their list."""
    call_ids: set[str]


class WireHistory:
    """The conversations of recent sessions as they go over the wire.

    A conversation grows by a few messages a request; without this each request would encode all
    of it again. One that was rewritten (compacted, pruned) is encoded anew.
    """

    def __init__(self) -> None:
        self._sessions: dict[str, _Known] = {}

    def encode(self, options: GenerateOptions) -> bytes:
        """Return system prompt and messages as a JSON list.

        Raises:
            LlmError: ``UNSUPPORTED_CONTENT``, a message holds an image.
        """
        joined = self._known(options).joined
        if options.system:
            system = encode_body({"role": "system", "content": options.system})
            joined = system + b"," + joined if joined else system
        return b"[" + joined + b"]"

    def call_ids(self, options: GenerateOptions) -> AbstractSet[str]:
        """Return the ids of all tool calls in the conversation, not to be changed."""
        return self._known(options).call_ids

    def _known(self, options: GenerateOptions) -> _Known:
        messages, session = options.messages, options.session_id
        known = self._sessions.pop(session, None) if session else None
        if known is None or not _begins_with(messages, known.messages):
            known = _Known([], b"", set())
        fresh = messages[len(known.messages) :]
        if fresh:
            parts = [encode_body(encode_message(message))[1:-1] for message in fresh]
            known.joined = b",".join([known.joined, *parts] if known.joined else parts)
            known.call_ids |= history_call_ids(fresh)
            known.messages += fresh
        if session:
            self._sessions[session] = known
            while len(self._sessions) > _REMEMBERED_SESSIONS:
                del self._sessions[next(iter(self._sessions))]
        return known


def _begins_with(messages: Sequence[Message], earlier: Sequence[Message]) -> bool:
    return len(messages) >= len(earlier) and all(map(is_, messages, earlier))


def encode_body(body: Mapping[str, Any] | list[dict[str, Any]]) -> bytes:
    """Encode JSON for sending; lone surrogates, which no reader accepts, become U+FFFD."""
    data = dumps(body)
    # The encoder escapes a lone surrogate. Text may contain such an escape as well, which is
    # fine: then the second encoding is the same as the first.
    return dumps(_without_surrogates(thaw(body))) if b"\\ud" in data else data


def encode_messages(system: str | None, messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return the wire messages of a conversation; what `WireHistory` sends, in plain form.

    Raises:
        LlmError: ``UNSUPPORTED_CONTENT``, a message holds an image.
    """
    wire: list[dict[str, Any]] = []
    if system:
        wire.append({"role": "system", "content": system})
    for message in messages:
        wire.extend(encode_message(message))
    return wire


def encode_message(message: Message) -> list[dict[str, Any]]:
    """Return the wire messages of one message: tool results each have one of their own.

    Raises:
        LlmError: ``UNSUPPORTED_CONTENT``, it holds an image.
    """
    role = message["role"]
    if role == "assistant":
        return [_assistant(message)]
    if role == "user":
        return _user(message)
    return [{"role": role, "content": _joined(message["content"])}]


def history_call_ids(messages: Sequence[Message]) -> frozenset[str]:
    """Return the ids of all tool calls in a conversation."""
    return frozenset(
        block["id"]
        for message in messages
        if message["role"] == "assistant"
        for block in message["content"]
        if block["type"] == "tool-call"
    )


def _assistant(message: Message) -> dict[str, Any]:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for block in message["content"]:
        if block["type"] == "text":
            texts.append(block["text"])
        elif block["type"] == "reasoning":
            thoughts.append(block["text"])
        elif block["type"] == "tool-call":
            function = {"name": block["name"], "arguments": block["arguments"]}
            calls.append({"id": block["id"], "type": "function", "function": function})
        elif block["type"] == "image":
            raise _no_images()
    # Never null: a turn that only thought would make every later request of its session fail.
    wire: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if thoughts:
        wire["reasoning_content"] = "".join(thoughts)
    if calls:
        wire["tool_calls"] = calls
    return wire


def _user(message: Message) -> list[dict[str, Any]]:
    content = message["content"]
    results = [block for block in content if block["type"] == "tool-result"]
    wire = [
        {
            "role": "tool",
            "tool_call_id": result["toolCallId"],
            "content": _joined(result["content"]) or _NO_OUTPUT,
        }
        for result in results
    ]
    if len(results) < len(content) or not results:
        text = _joined(content)
        if text or not results:
            wire.insert(0, {"role": "user", "content": text})
    return wire


def _joined(content: Sequence[Any]) -> str:
    texts: list[str] = []
    for block in content:
        kind = block["type"]
        if kind == "text":
            texts.append(block["text"])
        elif kind == "image":
            raise _no_images()
    return texts[0] if len(texts) == 1 else "".join(texts)


def _no_images() -> LlmError:
    return LlmError(
        "the conversation holds an image, and this adapter sends text only",
        code="UNSUPPORTED_CONTENT",
    )


def _thinking(options: GenerateOptions, configured: str | None, *, vendor: bool) -> dict[str, Any]:
    effort = options.reasoning_effort
    if options.purpose == "session-title":
        return {"thinking": {"type": "disabled"}} if vendor or configured or effort else {}
    if effort is None:
        return {"thinking": {"type": configured}} if configured else {}
    if effort not in EFFORTS or (configured == "disabled" and effort != "off"):
        offered = "off" if configured == "disabled" else ", ".join(EFFORTS)
        raise LlmError(
            f"reasoning effort {effort!r} is not offered here; choose one of: {offered}",
            code="UNSUPPORTED_REASONING_EFFORT",
        )
    if effort == "off":
        return {"thinking": {"type": "disabled"}}
    return {"thinking": {"type": "enabled"}, "reasoning_effort": effort}


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return replace_surrogates(value)
    if isinstance(value, dict):
        return {replace_surrogates(key): _without_surrogates(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_surrogates(item) for item in value]
    return value
