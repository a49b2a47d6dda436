"""Spans, by the names that OpenTelemetry has for generative AI."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes as names
from opentelemetry.trace import SpanKind, StatusCode
from telemetry_parts import append, chunk, run_turn

from dsh.control.retry.events import LLM_RETRY, LLM_RETRY_STARTED
from dsh.state.session.events import (
    CORE_EVENT_TYPES,
    REQUEST_HEADER,
    STEP_END,
    STEP_START,
    TOOL_CALL,
    TURN_END,
    TURN_START,
)
from dsh.state.session.session import Session
from dsh.state.telemetry.records import ledger_record, shutdown_record
from dsh.state.telemetry.spans import SessionSpans


class Ticking:
    """A clock that steps a second at each look."""

    def __init__(self) -> None:
        self.now = 1_000_000

    def now_ms(self) -> int:
        self.now += 1000
        return self.now

    def monotonic(self) -> float:
        return self.now / 1000


class Traced:
    """The spans of logs, in memory."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.fold = SessionSpans(provider.get_tracer("test"))
        self.clock = Ticking()
        self._done: dict[Session, int] = {}

    def session(self, id: str = "s1", **header: Any) -> Session:
        facts = {"version": 0, "id": id, "createdAt": 1, **header}
        types = {each.name: each for each in (LLM_RETRY, LLM_RETRY_STARTED)}
        return Session(facts, types={**CORE_EVENT_TYPES, **types}, clock=self.clock)

    def follow(self, session: Session) -> None:
        for event in session.events[self._done.get(session, 0) :]:
            self.fold.follow(ledger_record(session, event))
        self._done[session] = session.seq

    def end(self, session: Session) -> None:
        self.follow(session)
        self.fold.follow(shutdown_record(session, self.clock.now_ms()))

    def spans(self) -> dict[str, ReadableSpan]:
        return {span.name: span for span in self.exporter.get_finished_spans()}


@pytest.fixture
def traced() -> Traced:
    return Traced()


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def is_child(child: ReadableSpan, parent: ReadableSpan) -> bool:
    return child.parent is not None and child.parent.span_id == parent.context.span_id


def test_a_turn_is_a_tree_of_agent_step_model_and_tool(traced: Traced) -> None:
    session = traced.session()
    run_turn(session)
    traced.end(session)
    spans = traced.spans()
    chat = "chat deepseek-v4-flash"
    assert list(spans) == [chat, "execute_tool read", "step", "invoke_agent", "session"]
    assert is_child(spans[chat], spans["step"])
    assert is_child(spans["execute_tool read"], spans["step"])
    assert is_child(spans["step"], spans["invoke_agent"])
    assert is_child(spans["invoke_agent"], spans["session"])
    assert spans["session"].parent is None
    assert {span.status.status_code for span in spans.values()} == {StatusCode.UNSET}


def test_a_model_call_has_the_attributes_of_the_conventions(traced: Traced) -> None:
    session = traced.session()
    run_turn(session)
    traced.end(session)
    span = traced.spans()["chat deepseek-v4-flash"]
    assert span.kind is SpanKind.CLIENT
    assert attributes(span) == {
        "session.id": "s1",
        names.GEN_AI_OPERATION_NAME: "chat",
        names.GEN_AI_CONVERSATION_ID: "s1",
        names.GEN_AI_PROVIDER_NAME: "deepseek",
        names.GEN_AI_REQUEST_MODEL: "deepseek-v4-flash",
        names.GEN_AI_REQUEST_MAX_TOKENS: 100,
        "gen_ai.request.stream": True,
        "gen_ai.response.model": "v4-0101",
        "gen_ai.response.time_to_first_chunk": 1.0,
        names.GEN_AI_USAGE_INPUT_TOKENS: 13,
        names.GEN_AI_USAGE_OUTPUT_TOKENS: 5,
        "gen_ai.usage.cache_read.input_tokens": 3,
        "gen_ai.usage.reasoning.output_tokens": 2,
    }


def test_a_model_call_begins_with_its_request_and_ends_with_its_answer(traced: Traced) -> None:
    session = traced.session()
    run_turn(session)
    traced.end(session)
    span = traced.spans()["chat deepseek-v4-flash"]
    by_type = {event["type"]: event["time"] * 1_000_000 for event in session.events}
    assert span.start_time == by_type["request/header"]
    assert span.end_time == by_type["assistant/message"]


def test_a_tool_has_its_name_and_the_agent_what_it_spent(traced: Traced) -> None:
    session = traced.session()
    run_turn(session)
    traced.end(session)
    tool, agent = (
        attributes(traced.spans()[name]) for name in ("execute_tool read", "invoke_agent")
    )
    assert tool == {
        "session.id": "s1",
        names.GEN_AI_OPERATION_NAME: "execute_tool",
        names.GEN_AI_CONVERSATION_ID: "s1",
        names.GEN_AI_TOOL_NAME: "read",
        names.GEN_AI_TOOL_CALL_ID: "c1",
        names.GEN_AI_TOOL_TYPE: "function",
    }
    assert agent[names.GEN_AI_OPERATION_NAME] == "invoke_agent"
    assert agent[names.GEN_AI_PROVIDER_NAME] == "deepseek"
    assert agent[names.GEN_AI_USAGE_INPUT_TOKENS] == 13
    assert agent["dsh.turn.end"] == "completed"


def test_no_span_holds_what_was_said(traced: Traced) -> None:
    session = traced.session()
    run_turn(session, tool_error={"name": "ToolError", "code": "T"})
    traced.end(session)
    shown = "".join(span.to_json() for span in traced.exporter.get_finished_spans())
    assert "SECRET-OUTPUT" not in shown
    assert "hello" not in shown


def test_failures_have_their_code_as_the_type_of_error(traced: Traced) -> None:
    session = traced.session()
    reason = {"kind": "error", "error": {"message": "words", "code": "RATE_LIMIT"}}
    run_turn(session, reason=reason, tool_error={"name": "ToolError", "code": "TOOL_TIMEOUT"})
    traced.end(session)
    spans = traced.spans()
    assert attributes(spans["execute_tool read"])["error.type"] == "TOOL_TIMEOUT"
    assert attributes(spans["invoke_agent"])["error.type"] == "RATE_LIMIT"
    for name in ("execute_tool read", "invoke_agent"):
        assert spans[name].status.status_code is StatusCode.ERROR


def begun(session: Session) -> None:
    append(session, TURN_START, {"turn": 1})
    append(session, STEP_START, {"turn": 1, "step": 1})
    config = {"provider": "p", "model": "m"}
    append(session, REQUEST_HEADER, {"header": {"config": config}, "reason": "initial"})


def test_a_call_that_is_never_answered_fails_with_its_turn(traced: Traced) -> None:
    session = traced.session()
    begun(session)
    append(session, STEP_END, {"turn": 1, "step": 1})
    reason = {"kind": "error", "error": {"message": "m", "code": "NETWORK"}}
    append(session, TURN_END, {"turn": 1, "reason": reason})
    traced.end(session)
    call, step = traced.spans()["chat m"], traced.spans()["step"]
    assert attributes(call)["error.type"] == "NETWORK"
    assert is_child(call, step)
    assert call.end_time == step.end_time


def test_each_attempt_is_a_call_of_its_own(traced: Traced) -> None:
    session = traced.session()
    begun(session)
    at: Any = {"turn": 1, "step": 1, "retryId": "r", "retry": 1}
    failure = {"message": "m", "code": "OVERLOADED"}
    more = {"provider": "p", "mode": "normal", "policyKey": "k", "maxRetries": 3, "delayMs": 1}
    append(session, LLM_RETRY, {**at, **more, "failure": failure})
    append(session, LLM_RETRY_STARTED, at)
    chunk(session)
    append(
        session, TURN_END, {"turn": 1, "reason": {"kind": "aborted", "reason": {"kind": "user"}}}
    )
    traced.end(session)
    calls = [span for span in traced.exporter.get_finished_spans() if span.name == "chat m"]
    assert [attributes(call).get("error.type") for call in calls] == ["OVERLOADED"]


def test_what_a_crash_left_open_ends_with_the_session(traced: Traced) -> None:
    session = traced.session()
    begun(session)
    append(session, TOOL_CALL, {"turn": 1, "step": 1, "callId": "c", "name": "t", "arguments": ""})
    traced.end(session)
    spans = traced.spans()
    assert set(spans) == {"execute_tool t", "step", "invoke_agent", "session"}
    assert attributes(spans["execute_tool t"])["error.type"] == "_OTHER"


def test_a_session_may_begin_in_the_middle(traced: Traced) -> None:
    session = traced.session()
    run_turn(session)
    for event in session.events[4:]:
        traced.fold.follow(ledger_record(session, event))
    traced.fold.close()
    assert list(traced.spans()) == ["execute_tool read", "session"]


def test_a_clock_that_steps_back_makes_no_span_of_negative_length(traced: Traced) -> None:
    session = traced.session()
    append(session, TURN_START, {"turn": 1})
    traced.clock.now -= 10_000_000
    append(session, TURN_END, {"turn": 1, "reason": {"kind": "completed"}})
    traced.end(session)
    for span in traced.exporter.get_finished_spans():
        assert span.start_time is not None
        assert span.end_time is not None
        assert span.end_time >= span.start_time


def test_a_session_that_a_tool_started_is_a_part_of_that_tool(traced: Traced) -> None:
    parent, child = traced.session("p"), traced.session("c", parentSession="p")

    def delegate() -> None:
        traced.follow(parent)
        run_turn(child)
        traced.follow(child)

    run_turn(parent, within_tool=delegate)
    traced.end(child)
    traced.end(parent)
    roots = [span for span in traced.exporter.get_finished_spans() if span.name == "session"]
    tools = [s for s in traced.exporter.get_finished_spans() if s.name == "execute_tool read"]
    assert is_child(roots[0], tools[-1])
    assert len({span.context.trace_id for span in traced.exporter.get_finished_spans()}) == 1


def test_a_fork_is_a_trace_of_its_own_with_a_link(traced: Traced) -> None:
    parent, child = traced.session("p"), traced.session("c", parentSession="p")
    run_turn(parent)
    traced.follow(parent)
    run_turn(child)
    traced.end(child)
    traced.end(parent)
    first, second = (s for s in traced.exporter.get_finished_spans() if s.name == "session")
    assert first.parent is None
    assert [link.context.span_id for link in first.links] == [second.context.span_id]


def test_names_that_a_model_made_up_are_sent_as_valid_text(traced: Traced) -> None:
    session = traced.session()
    begun(session)
    call = {"turn": 1, "step": 1, "callId": "\udfff", "name": "\ud800", "arguments": ""}
    append(session, TOOL_CALL, call)
    traced.end(session)
    assert "execute_tool \\ud800" in traced.spans()


def test_the_span_of_a_record_is_the_one_it_opens_or_closes(traced: Traced) -> None:
    session = traced.session()
    run_turn(session)
    within = [traced.fold.follow(ledger_record(session, event)) for event in session.events]
    found = [getattr(span, "name", None) for span in within]
    step, tool = ["step"] * 6, ["execute_tool read"] * 2
    assert found == ["invoke_agent", *step, *tool, "step", "invoke_agent"]
