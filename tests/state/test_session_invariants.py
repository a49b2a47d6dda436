from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from state_logs import (
    answer,
    call,
    chunk,
    close_turn,
    open_turn,
    reply,
    say,
    whole_turn,
)

from dsh.kernel import INTERNAL_DISPATCH, Context
from dsh.model.chunks import StreamChunk, finish, text_delta
from dsh.model.llm.events import mark_loop_built
from dsh.model.llm.runtime import AdapterRuntime
from dsh.model.llm.service import (
    GenerateOptions,
    LlmAdapter,
    LlmProviderInfo,
    LlmRuntime,
    ResolvedModelInfo,
)
from dsh.state.session import invariants
from dsh.state.session.events import (
    REQUEST_CONTEXT,
    REQUEST_HEADER,
    STEP_END,
    STEP_START,
    TODO_WRITE,
    TOOL_RESULT,
    TURN_END,
    TURN_START,
    StepData,
    TodoWriteData,
    TurnEndData,
    TurnStartData,
)
from dsh.state.session.nesting import BrokenInvariant
from dsh.state.session.repair import TOOL_NOT_STARTED
from dsh.state.session.session import Session
from dsh.state.session.store import LocalSessionStore


@pytest.fixture
async def store(root: Context) -> LocalSessionStore:
    await root.plugin(LocalSessionStore)
    await root.plugin(invariants)
    return root.require(LocalSessionStore)


@pytest.fixture
async def session(store: LocalSessionStore) -> Session:
    return store.create("s")


def turn(session: Session, number: int = 1) -> None:
    session.append(TURN_START, TurnStartData(turn=number))


def step(session: Session, number: int = 1, *, turn: int = 1) -> None:
    session.append(STEP_START, StepData(turn=turn, step=number))


async def test_a_whole_conversation_is_fine(session: Session) -> None:
    whole_turn(session, 1)
    open_turn(session, 2)
    session.append(TODO_WRITE, TodoWriteData(todos=[]))
    session.append(STEP_END, StepData(turn=2, step=1))
    step(session, 2, turn=2)
    session.append(STEP_END, StepData(turn=2, step=2))
    session.append(TURN_END, TurnEndData(turn=2, reason={"kind": "completed"}))
    say(session, "between turns")


Attempt = Callable[[Session], object]
CASES: list[tuple[str, list[Attempt], Attempt, str]] = [
    ("first turn is 1", [], lambda s: turn(s, 2), "turn 1 comes next"),
    ("turns do not nest", [turn], lambda s: turn(s, 2), "turn 1 is still open"),
    ("turns are contiguous", [whole_turn], lambda s: turn(s, 3), "turn 2 comes next"),
    ("a step needs a turn", [], step, "no turn is open"),
    ("a step is of its turn", [turn], lambda s: step(s, turn=2), "turn 1 is open, not 2"),
    ("first step is 1", [turn], lambda s: step(s, 2), "step 1 comes next"),
    ("steps do not nest", [open_turn], lambda s: step(s, 2), "step 1 is still open"),
    (
        "a turn ends after its steps",
        [open_turn],
        lambda s: s.append(TURN_END, TurnEndData(turn=1, reason={"kind": "completed"})),
        "step 1 is still open",
    ),
    ("an end needs a start", [], close_turn, "no turn is open"),
    (
        "an end names its turn",
        [turn],
        lambda s: s.append(TURN_END, TurnEndData(turn=2, reason={"kind": "completed"})),
        "turn 1 is open, not 2",
    ),
    ("a chunk needs a step", [turn], lambda s: chunk(s, text_delta(0, "x")), "no step is open"),
    (
        "a chunk names its step",
        [open_turn],
        lambda s: chunk(s, text_delta(0, "x"), step=2),
        "step 1 is open, not 2",
    ),
    ("a reply needs a step", [turn], lambda s: reply(s, "x"), "no step is open"),
    ("a call needs a step", [turn], lambda s: call(s, "c"), "no step is open"),
    (
        "todos need a turn",
        [],
        lambda s: s.append(TODO_WRITE, TodoWriteData(todos=[])),
        "no turn is open",
    ),
    (
        "a context needs a turn",
        [],
        lambda s: s.append(REQUEST_CONTEXT, {"provider": "p", "model": "m"}),
        "no turn is open",
    ),
    (
        "a result needs its call",
        [open_turn],
        lambda s: answer(s, {"seq": 0, "data": {"callId": "c"}}),  # type: ignore[typeddict-item]
        "call 'c' was not recorded in this step",
    ),
]


@pytest.mark.parametrize(
    ("before", "attempt", "problem"),
    [case[1:] for case in CASES],
    ids=[case[0] for case in CASES],
)
async def test_what_breaks_the_order_is_refused_before_it_is_logged(
    session: Session, before: list[Attempt], attempt: Attempt, problem: str
) -> None:
    for act in before:
        act(session)
    count, surface = session.seq, session.surface.nodes
    with pytest.raises(BrokenInvariant, match=problem) as error:
        attempt(session)
    assert error.value.code == "INVARIANT"
    assert (session.seq, session.surface.nodes) == (count, surface)
    if not before:
        whole_turn(session)


async def test_a_call_of_an_earlier_step_cannot_be_answered(session: Session) -> None:
    open_turn(session)
    started = call(session, "c")
    session.append(STEP_END, StepData(turn=1, step=1))
    step(session, 2)
    with pytest.raises(BrokenInvariant, match="step 2 is open, not 1"):
        answer(session, started)


async def test_a_call_that_did_not_start_may_be_answered_so(session: Session) -> None:
    open_turn(session)
    error = {"name": "E", "code": TOOL_NOT_STARTED}
    answer(session, {"seq": 0, "data": {"callId": "c"}}, error=error)  # type: ignore[typeddict-item]


async def test_a_rewritten_result_needs_only_an_open_turn(session: Session) -> None:
    open_turn(session)
    old: Any = answer(session, call(session, "c"))
    session.append(STEP_END, StepData(turn=1, step=1))
    op: Any = {"op": "replace", "start": old["seq"], "end": old["seq"]}
    session.append(TOOL_RESULT, old["data"], surface_op=op, source_event_seqs=[old["seq"]])
    session.append(TURN_END, TurnEndData(turn=1, reason={"kind": "completed"}))
    last = session.seq - 2
    op = {"op": "replace", "start": last, "end": last}
    with pytest.raises(BrokenInvariant, match="no turn is open"):
        session.append(TOOL_RESULT, old["data"], surface_op=op, source_event_seqs=[last])


async def test_data_of_another_shape_is_refused(session: Session) -> None:
    turn(session)
    with pytest.raises(BrokenInvariant, match=r"data\.todos\[0\]\.status is missing"):
        session.append(TODO_WRITE, {"todos": [{"content": "x"}]})  # type: ignore[typeddict-item]
    assert session.seq == 1


async def test_the_look_at_data_can_be_switched_off(root: Context) -> None:
    await root.plugin(LocalSessionStore)
    await root.plugin(invariants, {"payloads": False})
    session = root.require(LocalSessionStore).create()
    turn(session)
    session.append(TODO_WRITE, {"todos": [{"content": "x"}]})  # type: ignore[typeddict-item]


async def test_a_seed_is_followed_and_one_that_breaks_a_rule_is_not_let_in(
    store: LocalSessionStore,
) -> None:
    detached = Session.create("d")
    whole_turn(detached)
    open_turn(detached, 2)
    resumed = store.create("resumed", seed=detached.events)
    with pytest.raises(BrokenInvariant, match="turn 2 is still open"):
        turn(resumed, 3)
    open_turn(detached, 5)
    with pytest.raises(BrokenInvariant, match="event 12 "):
        store.create("broken", seed=detached.events)
    assert store.get("broken") is None


async def test_sessions_that_exist_already_are_followed(root: Context) -> None:
    await root.plugin(LocalSessionStore)
    session = root.require(LocalSessionStore).create()
    open_turn(session)
    fiber = await root.plugin(invariants)
    with pytest.raises(BrokenInvariant, match="turn 1 is still open"):
        turn(session, 2)
    await fiber.dispose()
    turn(session, 2)


def refused_by(root: Context, name: str) -> None:
    """Have a later check of the same kind refuse events of a type."""

    def veto(event: Any) -> None:
        if event.name == "session/event" and event.payload.event["type"] == name:
            raise RuntimeError("vetoed")

    root.on(INTERNAL_DISPATCH, veto)


async def test_what_another_check_refuses_did_not_happen_here(
    root: Context, session: Session
) -> None:
    refused_by(root, "turn/end")
    turn(session)
    with pytest.raises(RuntimeError, match="vetoed"):
        session.append(TURN_END, TurnEndData(turn=1, reason={"kind": "completed"}))
    step(session)


CONFIG = {"provider": "scripted", "model": "m"}


async def requested(root: Context, options: GenerateOptions) -> None:
    async for _ in root.require(LlmRuntime).stream(options):
        pass


class Model(LlmAdapter):
    """Answers with nothing."""

    def provider_info(self, provider: str) -> LlmProviderInfo:
        return LlmProviderInfo(provider, provider)

    async def resolve_model(
        self, provider: str, model: str, signal: object = None
    ) -> ResolvedModelInfo:
        return ResolvedModelInfo(provider, model, model)

    async def stream(self, options: GenerateOptions) -> AsyncIterator[StreamChunk]:
        yield finish("stop")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({}, None),
        ({"messages": []}, "messages are not those of the log"),
        ({"system": "other"}, "system is not that"),
        ({"temperature": 1.0}, "config is not that"),
        ({"tools": [{"name": "n", "description": "d", "parameters": {}}]}, "tools is not that"),
    ],
)
async def test_a_request_that_the_log_cannot_reconstruct_does_not_go_out(
    root: Context, session: Session, change: dict[str, Any], problem: str | None
) -> None:
    await root.plugin(AdapterRuntime)
    root.require(LlmRuntime).register_adapter(["scripted"], Model())
    open_turn(session)
    say(session, "hello")
    session.append(
        REQUEST_HEADER,
        {"header": {"config": CONFIG, "system": "s"}, "reason": "initial"},  # type: ignore[typeddict-item]
    )
    facts: dict[str, Any] = {
        "messages": session.derive_messages(),
        "system": "s",
        "session_id": "s",
        **change,
    }
    messages = facts.pop("messages")
    options = GenerateOptions("scripted", "m", messages, **facts)
    await requested(root, options)  # an auxiliary call says what it likes
    if problem is None:
        await requested(root, mark_loop_built(options))
        return
    with pytest.raises(BrokenInvariant, match=problem):
        await requested(root, mark_loop_built(options))
