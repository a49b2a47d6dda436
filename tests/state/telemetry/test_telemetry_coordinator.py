"""What is handed over, when, and what failures of others change about it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from telemetry_parts import HintSink, ListSink, append, chunk, run_turn, say, what

from dsh.base.values import changed
from dsh.execution.agent.events import AGENT_ERROR, AgentErrorRaised
from dsh.kernel import Context, Fiber
from dsh.state.session.events import (
    SESSION_CREATED,
    STEP_START,
    TODO_WRITE,
    TURN_END,
    TURN_START,
    SessionCreated,
)
from dsh.state.session.service import SessionStore
from dsh.state.session.session import Session
from dsh.state.session.store import LocalSessionStore
from dsh.state.telemetry.coordinator import SessionTelemetryCoordinator, TelemetrySink
from dsh.state.telemetry.events import TELEMETRY_RECORD
from dsh.state.telemetry.service import TelemetryRecord


@pytest.fixture
async def sessions(root: Context) -> SessionStore:
    await root.plugin(LocalSessionStore)
    return root.require(SessionStore)


def mount(root: Context, sink: TelemetrySink) -> Fiber:
    return root.inject([SessionStore], lambda ctx: SessionTelemetryCoordinator(ctx, sink) and None)


def on_demand(root: Context, sink: TelemetrySink) -> SessionTelemetryCoordinator:
    return SessionTelemetryCoordinator(root, sink, "on-demand")


async def settled() -> None:
    """Let what was scheduled for the loop's next turn run."""
    await asyncio.sleep(0)


async def test_an_event_becomes_a_record_with_a_copy_of_its_data(
    root: Context, sessions: SessionStore
) -> None:
    sink = ListSink()
    await mount(root, sink)
    meta: Any = {"cwd": "/work", "parentSession": "p", "createdAt": 5}
    session = sessions.create("s1", meta=meta)
    append(session, TODO_WRITE, {"todos": [{"content": "a", "status": "pending"}]})
    (record,) = sink.records
    event = session.events[0]
    assert record == TelemetryRecord(
        "ledger",
        event["time"],
        "info",
        {
            "session.id": "s1",
            "event.type": "todo/write",
            "event.seq": 0,
            "session.cwd": "/work",
            "session.parent_id": "p",
        },
        {"todos": [{"content": "a", "status": "pending"}]},
    )
    record.body["todos"].append("mine")
    assert event["data"] == {"todos": [{"content": "a", "status": "pending"}]}


async def test_a_seed_is_counted_in_the_attributes_of_a_fork(
    root: Context, sessions: SessionStore
) -> None:
    sink = ListSink()
    parent = sessions.create("p")
    run_turn(parent)
    await mount(root, sink)
    child = sessions.fork(parent, child_session_id="c")
    say(child)
    record = sink.records[-1]
    assert record.attributes["session.parent_id"] == "p"
    assert record.attributes["session.seed_length"] == child.header["seedLength"]
    assert sink.seqs(child) == [child.seq - 2, child.seq - 1]


async def test_only_the_first_chunk_of_a_step_leaves(root: Context, sessions: SessionStore) -> None:
    sink = ListSink()
    await mount(root, sink)
    session = sessions.create("s1")
    for turn, step in [(1, 1), (1, 1), (1, 2), (1, 2), (2, 1), (2, 1), (2, 1)]:
        chunk(session, turn, step)
    assert sink.seqs(session) == [0, 2, 4]


@pytest.mark.parametrize(
    ("reason", "tool_error", "bad"),
    [
        ({"kind": "completed"}, None, []),
        ({"kind": "error", "error": {"message": "m", "code": "C"}}, None, ["turn/end"]),
        ({"kind": "completed"}, {"name": "ToolError", "code": "T"}, ["tool/result"]),
    ],
)
async def test_failed_tools_and_turns_are_errors(
    root: Context, sessions: SessionStore, reason: Any, tool_error: Any, bad: list[str]
) -> None:
    sink = ListSink()
    await mount(root, sink)
    run_turn(sessions.create("s1"), reason=reason, tool_error=tool_error)
    assert [what(each) for each in sink.records if each.severity == "error"] == bad


async def test_sessions_that_were_there_before_are_adopted_behind_their_seed(
    root: Context, sessions: SessionStore
) -> None:
    sink = ListSink()
    first = sessions.create("s1")
    run_turn(first)
    seeded = sessions.create("s2", seed=first.events)
    say(seeded)
    await mount(root, sink)
    assert sink.seqs(seeded) == [first.seq, first.seq + 1]
    assert sink.seqs(first) == [seq for seq in range(first.seq) if seq != 5]


async def test_a_step_that_streamed_in_the_seed_is_known(
    root: Context, sessions: SessionStore
) -> None:
    sink = ListSink()
    source = sessions.create("s1")
    append(source, TURN_START, {"turn": 1})
    append(source, STEP_START, {"turn": 1, "step": 1})
    chunk(source)
    seed = list(source.events)
    await mount(root, sink)
    resumed = sessions.create("s2", seed=seed)
    chunk(resumed)
    chunk(resumed, step=2)
    assert sink.seqs(resumed) == [3, 5]


async def test_a_reload_goes_on_where_it_was_and_drops_chunks_of_the_open_step(
    root: Context, sessions: SessionStore
) -> None:
    before, after = ListSink(), ListSink()
    plugin = mount(root, before)
    await plugin
    session = sessions.create("s1")
    say(session)
    chunk(session)
    await plugin.dispose()
    chunk(session)
    say(session)
    await mount(root, after)
    chunk(session)
    say(session)
    assert before.seqs(session) == [0, 1]
    assert after.seqs(session) == [3, 5]


async def test_a_fresh_object_of_the_same_session_hands_over_live_events_only(
    root: Context, sessions: SessionStore
) -> None:
    sink = ListSink()
    await mount(root, sink)
    owner = root.inject([SessionStore], lambda ctx: say(sessions_of(ctx).create("s1")))
    await owner
    gone = sessions.get("s1")
    assert gone is not None
    events = list(gone.events)
    await owner.dispose()
    again = sessions.create("s1", seed=events)
    say(again)
    # The end of the seed is the first thing that the new object logs itself.
    assert sink.types() == ["user/message", "shutdown", "session/end-seed", "user/message"]
    assert sink.seqs(again) == [0, 1, 2]


def sessions_of(ctx: Context) -> SessionStore:
    return ctx.require(SessionStore)


async def test_refused_records_are_offered_again_in_order(
    root: Context, sessions: SessionStore, caplog: pytest.LogCaptureFixture
) -> None:
    sink = ListSink()
    await mount(root, sink)
    session = sessions.create("s1")
    say(session)
    sink.refusing = True
    say(session)
    chunk(session)
    sink.refusing = False
    say(session)
    chunk(session)
    assert sink.seqs(session) == [0, 1, 2, 3]
    assert len([each for each in caplog.records if "does not take" in each.message]) == 1


async def test_a_raising_redactor_keeps_back_that_record_alone(
    root: Context, sessions: SessionStore, caplog: pytest.LogCaptureFixture
) -> None:
    sink = ListSink()

    def redact(record: TelemetryRecord, next: Callable[[], TelemetryRecord]) -> TelemetryRecord:
        if record.attributes.get("event.seq") == 1:
            raise ValueError("SECRET")
        return next()

    root.on(TELEMETRY_RECORD, redact)
    await mount(root, sink)
    session = sessions.create("s1")
    for _ in range(3):
        say(session)
    assert sink.seqs(session) == [0, 2]
    assert "a record of 'user/message' is kept back" in caplog.text


async def test_redactors_nest_and_the_log_is_as_it_was(
    root: Context, sessions: SessionStore
) -> None:
    sink, seen = ListSink(), []

    def outer(record: TelemetryRecord, next: Callable[[], TelemetryRecord]) -> TelemetryRecord:
        below = next()
        seen.append(below.body)
        return changed(below, body={"outer": below.body})

    def inner(record: TelemetryRecord, next: Callable[[], TelemetryRecord]) -> TelemetryRecord:
        next().body.clear()
        return changed(record, body="inner")

    root.on(TELEMETRY_RECORD, outer)
    root.on(TELEMETRY_RECORD, inner)
    await mount(root, sink)
    session = sessions.create("s1")
    say(session, "words")
    assert (sink.records[0].body, seen) == ({"outer": "inner"}, ["inner"])
    content: Any = session.events[0]["data"]["content"]
    assert content[0]["text"] == "words"


async def test_what_is_not_a_record_does_not_pass(root: Context, sessions: SessionStore) -> None:
    sink = ListSink()
    root.on(TELEMETRY_RECORD, lambda record, _: None)  # type: ignore[arg-type,return-value]
    await mount(root, sink)
    say(sessions.create("s1"))
    assert sink.records == []


async def test_an_end_is_told_when_a_session_leaves(root: Context, sessions: SessionStore) -> None:
    sink = ListSink()
    await mount(root, sink)
    owner = root.inject([SessionStore], lambda ctx: say(sessions_of(ctx).create("s1")))
    await owner
    await owner.dispose()
    end = sink.records[-1]
    assert (end.channel, end.severity, end.body) == ("ops", "info", {"op": "shutdown"})
    assert end.attributes == {"telemetry.op": "shutdown", "session.id": "s1"}
    assert sink.types() == ["user/message", "shutdown"]


async def test_an_end_is_told_for_each_session_when_the_plugin_unloads(
    root: Context, sessions: SessionStore
) -> None:
    sink = ListSink()
    plugin = mount(root, sink)
    await plugin
    for name in ("s1", "s2"):
        sessions.create(name)
    await plugin.dispose()
    assert sink.types() == ["shutdown", "shutdown"]
    assert {each.attributes["session.id"] for each in sink.records} == {"s1", "s2"}


@pytest.mark.parametrize("before", [True, False])
async def test_a_session_that_was_vetoed_leaves_no_mark(
    root: Context, sessions: SessionStore, before: bool
) -> None:
    def veto(event: SessionCreated) -> None:
        raise ValueError("no")

    sink = ListSink()
    if before:
        root.on(SESSION_CREATED, veto)
    await mount(root, sink)
    if not before:
        root.on(SESSION_CREATED, veto)
    with pytest.raises(ValueError, match="no"):
        sessions.create("s1")
    await settled()
    assert sink.records == []


async def test_a_session_without_events_is_adopted_and_ended(
    root: Context, sessions: SessionStore
) -> None:
    sink = ListSink()
    await mount(root, sink)
    owner = root.inject([SessionStore], lambda ctx: sessions_of(ctx).create("s1") and None)
    await owner
    await settled()
    await owner.dispose()
    assert sink.types() == ["shutdown"]


@dataclass(eq=False)
class StandInAgent:
    id: str
    session: Session


async def test_a_failed_driver_is_told_with_its_place(
    root: Context, sessions: SessionStore
) -> None:
    sink = ListSink()
    await mount(root, sink)
    agent: Any = StandInAgent("a1", sessions.create("s1"))
    root.emit(AGENT_ERROR, AgentErrorRaised(agent, 2, 3, KeyError("lost")))
    (record,) = sink.records
    assert (record.channel, record.severity) == ("ops", "error")
    assert record.attributes == {
        "telemetry.op": "agent-error",
        "session.id": "s1",
        "agent.id": "a1",
        "error.name": "KeyError",
        "turn": 2,
        "step": 3,
    }
    assert record.body == {"name": "KeyError", "message": "'lost'"}


async def test_a_flush_is_only_hinted_and_only_where_it_is_wanted(
    root: Context, sessions: SessionStore
) -> None:
    session = sessions.create("s1")
    await mount(root, ListSink())
    assert not await sessions.flush(session)
    wanting = HintSink()
    await mount(root, wanting)
    await sessions.flush(session)
    assert wanting.hints == 1


async def test_what_fails_in_telemetry_does_not_reach_who_appends(
    root: Context, sessions: SessionStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    sink = ListSink()
    sink.refusing = True
    await mount(root, sink)
    session = sessions.create("s1")
    run_turn(session)
    assert session.seq == 11
    assert [each for each in caplog.records if each.levelno > logging.WARNING] == []


async def test_on_demand_hands_over_the_suffix_up_to_an_event_and_nothing_else(
    root: Context, sessions: SessionStore
) -> None:
    sink = ListSink()
    coordinator = on_demand(root, sink)
    session = sessions.create("s1")
    for _ in range(3):
        say(session)
    assert sink.records == []
    coordinator.capture_session(session, 1)
    assert sink.seqs(session) == [0, 1]
    coordinator.capture_session(session, 1)
    coordinator.capture_session(session, 100)
    coordinator.capture_session(session)
    assert sink.seqs(session) == [0, 1, 2]
    append(session, TURN_END, {"turn": 1, "reason": {"kind": "completed"}})
    assert sink.seqs(session) == [0, 1, 2]
    assert "shutdown" not in sink.types()
