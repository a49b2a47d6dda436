"""Spans of sessions, turns, steps, model calls and tools, folded from ledger records.

Names and attributes are those of OpenTelemetry's conventions for generative AI. A span says what
ran, how long, and what it cost; the words of people, models and tools are not in it. The fold
reads what the redactors let pass, so what they hide is hidden here as well.
"""

from __future__ import annotations

from typing import Any, Final

from opentelemetry.trace import (
    Link,
    Span,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
    set_span_in_context,
)

from dsh.base.values import record as mutable
from dsh.state.telemetry.safe import safe_text
from dsh.state.telemetry.service import TelemetryRecord

__all__ = ["PROVIDERS", "SessionSpans"]

PROVIDERS: Final = {"deepseek-official": "deepseek"}
"""Our routes that the conventions have a name for; others are called as they are here."""

_OTHER: Final = "_OTHER"
_REQUEST: Final = {
    "temperature": "gen_ai.request.temperature",
    "maxTokens": "gen_ai.request.max_tokens",
    "stop": "gen_ai.request.stop_sequences",
}


@mutable
class _Call:
    """A model call that has not been answered yet."""

    parent: Span
    start: int
    first_chunk: int | None = None
    end: int | None = None
    """When its step ended without an answer."""


class _Session:
    """The open spans of one session."""

    __slots__ = (
        "_tracer",
        "call",
        "id",
        "root",
        "route",
        "spent",
        "step",
        "time",
        "tools",
        "turn",
    )

    def __init__(self, tracer: Tracer, id: str, root: Span, time: int) -> None:
        self._tracer = tracer
        self.id = id
        self.root = root
        self.time = time
        self.turn: Span | None = None
        self.step: Span | None = None
        self.call: _Call | None = None
        self.tools: dict[str, Span] = {}
        self.route: dict[str, Any] = {}
        self.spent: dict[str, int] = {}

    @property
    def innermost(self) -> Span:
        """The span that what happens now belongs to."""
        for tool in reversed(self.tools.values()):
            return tool
        return self.step or self.turn or self.root

    def follow(self, type: str, data: Any, time: int) -> None:
        """Take one event into account."""
        self.time = time
        handle = _HANDLERS.get(type)
        if handle is not None:
            handle(self, data, time)

    def turn_start(self, data: Any, time: int) -> None:
        self.turn_end({"reason": {}}, time)  # one that a crash left open
        self.spent = {}
        attributes = self._common("invoke_agent") | self._provider()
        self.turn = self._span(
            "invoke_agent", self.root, time, {**attributes, "dsh.turn": data["turn"]}
        )

    def turn_end(self, data: Any, time: int) -> None:
        reason = data["reason"]
        kind = reason.get("kind")
        error = str(reason.get("error", {}).get("code", _OTHER)) if kind == "error" else None
        if self.call is not None and error is not None:
            self._end_call(time, error)
        self.call = None
        for tool in self.tools.values():
            _end(tool, time, _OTHER)
        self.tools = {}
        self._end_step(time)
        if self.turn is not None:
            if kind is not None:
                self.turn.set_attribute("dsh.turn.end", safe_text(str(kind)))
            self.turn.set_attributes({**self._provider(), **self.spent})
            _end(self.turn, time, error)
        self.turn = None

    def step_start(self, data: Any, time: int) -> None:
        self._end_step(time)
        attributes: dict[str, Any] = {"dsh.turn": data["turn"], "dsh.step": data["step"]}
        self.step = self._span("step", self.turn or self.root, time, attributes)
        self.call = _Call(self.step, time)

    def step_end(self, data: Any, time: int) -> None:
        if self.call is not None:
            self.call.end = time  # how it failed comes with the end of the turn
        self._end_step(time)

    def before_call(self, data: Any, time: int) -> None:
        """Note that the request goes out after this, and not before."""
        if self.call is not None and self.call.first_chunk is None:
            self.call.start = time

    def header(self, data: Any, time: int) -> None:
        self.route = dict(data["header"]["config"])
        self.before_call(data, time)

    def chunk(self, data: Any, time: int) -> None:
        if self.call is not None and self.call.first_chunk is None:
            self.call.first_chunk = time

    def answered(self, data: Any, time: int) -> None:
        source = data["message"]["source"]
        attributes = _usage(data.get("usage") or {})
        for name, count in attributes.items():
            self.spent[name] = self.spent.get(name, 0) + count
        model = {"gen_ai.response.model": safe_text(str(source.get("model", "")))}
        self._end_call(time, None, {**attributes, **model})
        self.call = None

    def retry(self, data: Any, time: int) -> None:
        self._end_call(time, str(data["failure"]["code"]))
        self.call = None

    def retry_started(self, data: Any, time: int) -> None:
        self.call = _Call(self.step or self.turn or self.root, time)

    def tool_call(self, data: Any, time: int) -> None:
        name = safe_text(str(data["name"]))
        attributes = {
            **self._common("execute_tool"),
            "gen_ai.tool.name": name,
            "gen_ai.tool.call.id": safe_text(str(data["callId"])),
            "gen_ai.tool.type": "function",
        }
        parent = self.step or self.turn or self.root
        self.tools[data["callId"]] = self._span(f"execute_tool {name}", parent, time, attributes)

    def tool_result(self, data: Any, time: int) -> None:
        block = data["message"]["content"][0]
        tool = self.tools.pop(block["toolCallId"], None)
        if tool is None:
            return  # a copy that was shortened later
        error = data.get("error", {}).get("code", _OTHER) if block.get("isError") else None
        _end(tool, time, error)

    def close(self) -> None:
        """End all that is open; nothing more is known of it than the last event."""
        self.turn_end({"reason": {}}, self.time)
        _end(self.root, self.time, None)

    def _common(self, operation: str) -> dict[str, Any]:
        return {"gen_ai.operation.name": operation, "gen_ai.conversation.id": self.id}

    def _provider(self) -> dict[str, Any]:
        provider, model = self.route.get("provider"), self.route.get("model")
        if provider is None or model is None:
            return {}
        name = safe_text(str(provider))
        return {
            "gen_ai.provider.name": PROVIDERS.get(name, name),
            "gen_ai.request.model": safe_text(str(model)),
        }

    def _end_call(self, time: int, error: str | None, more: dict[str, Any] | None = None) -> None:
        """Make the span of a model call, now that all of it is known."""
        if self.call is None:
            return
        given = {ours: self.route[key] for key, ours in _REQUEST.items() if key in self.route}
        attributes = {
            **self._common("chat"),
            **self._provider(),
            **given,
            "gen_ai.request.stream": True,
            **(more or {}),
        }
        if self.call.first_chunk is not None:
            waited_s = max(0, self.call.first_chunk - self.call.start) / 1000
            attributes["gen_ai.response.time_to_first_chunk"] = waited_s
        name = f"chat {attributes.get('gen_ai.request.model', '')}".rstrip()
        span = self._span(name, self.call.parent, self.call.start, attributes, SpanKind.CLIENT)
        _end(span, time if self.call.end is None else self.call.end, error)

    def _end_step(self, time: int) -> None:
        if self.step is not None:
            _end(self.step, time, None)
        self.step = None

    def _span(
        self,
        name: str,
        parent: Span,
        time: int,
        attributes: dict[str, Any],
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> Span:
        return self._tracer.start_span(
            name,
            context=set_span_in_context(parent),
            kind=kind,
            attributes={"session.id": self.id, **attributes},
            start_time=time * 1_000_000,
        )


_HANDLERS: Final[dict[str, Any]] = {
    "turn/start": _Session.turn_start,
    "turn/end": _Session.turn_end,
    "step/start": _Session.step_start,
    "step/end": _Session.step_end,
    "user/message": _Session.before_call,
    "request/context": _Session.before_call,
    "request/header": _Session.header,
    "assistant/chunk": _Session.chunk,
    "assistant/message": _Session.answered,
    "llm/retry": _Session.retry,
    "llm/retry-started": _Session.retry_started,
    "tool/call": _Session.tool_call,
    "tool/result": _Session.tool_result,
}


class SessionSpans:
    """The open spans of all sessions. A session that is new here may begin in the middle."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._sessions: dict[str, _Session] = {}

    def follow(self, record: TelemetryRecord) -> Span | None:
        """Take a record into account, and return the span that it happened in."""
        session_id = record.attributes.get("session.id")
        if not isinstance(session_id, str):
            return None
        if record.channel == "ops":
            return self._follow_ops(session_id, record)
        session = self._sessions.get(session_id) or self._open(session_id, record)
        before = session.innermost
        session.follow(str(record.attributes["event.type"]), record.body, record.time)
        # What opens a span belongs to it, and so does what closes it.
        return session.innermost if before.is_recording() else before

    def close(self) -> None:
        """End all spans that are open."""
        for session in self._sessions.values():
            session.close()
        self._sessions.clear()

    def _follow_ops(self, session_id: str, record: TelemetryRecord) -> Span | None:
        session = self._sessions.get(session_id)
        if session is None:
            return None
        within = session.innermost
        if record.attributes.get("telemetry.op") == "shutdown":
            session.time = max(session.time, record.time)
            session.close()
            del self._sessions[session_id]
        elif record.attributes.get("telemetry.op") == "agent-error":
            kind = safe_text(str(record.attributes.get("error.name", _OTHER)))
            (session.turn or session.root).add_event(
                "exception", {"exception.type": kind}, timestamp=record.time * 1_000_000
            )
        return within

    def _open(self, session_id: str, record: TelemetryRecord) -> _Session:
        parent = self._sessions.get(str(record.attributes.get("session.parent_id")))
        # Only a running tool starts a session as a part of its work; a fork goes its own way.
        within = None if parent is None or not parent.tools else parent.innermost
        links = [] if parent is None or within else [Link(parent.root.get_span_context())]
        shown = safe_text(session_id)
        root = self._tracer.start_span(
            "session",
            context=None if within is None else set_span_in_context(within),
            attributes={"session.id": shown, "gen_ai.conversation.id": shown},
            links=links,
            start_time=record.time * 1_000_000,
        )
        opened = self._sessions[session_id] = _Session(self._tracer, shown, root, record.time)
        return opened


def _usage(usage: Any) -> dict[str, int]:
    """Return token counts; the conventions count what a cache held as input as well."""
    read, written = usage.get("cacheReadTokens"), usage.get("cacheWriteTokens")
    counts = {
        "gen_ai.usage.input_tokens": usage.get("inputTokens"),
        "gen_ai.usage.output_tokens": usage.get("outputTokens"),
        "gen_ai.usage.cache_read.input_tokens": read,
        "gen_ai.usage.cache_creation.input_tokens": written,
        "gen_ai.usage.reasoning.output_tokens": usage.get("reasoningTokens"),
    }
    if counts["gen_ai.usage.input_tokens"] is not None:
        counts["gen_ai.usage.input_tokens"] += (read or 0) + (written or 0)
    return {name: count for name, count in counts.items() if type(count) is int}


def _end(span: Span, time: int, error: str | None) -> None:
    if error is not None:
        code = safe_text(error)
        span.set_attribute("error.type", code)
        span.set_status(Status(StatusCode.ERROR, code))
    # A wall clock may step back; a span may not.
    start = getattr(span, "start_time", None) or 0
    span.end(max(time * 1_000_000, start))
