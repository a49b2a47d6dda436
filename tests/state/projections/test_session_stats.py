"""What the statistics of a session count, event by event."""

from __future__ import annotations

from typing import Any

import pytest

from dsh.base.json import loads, pretty, snapshot
from dsh.kernel import Context
from dsh.model.chunks import reasoning_delta, text_delta, tool_call_delta
from dsh.state.projections import ProjectionRegistry
from dsh.state.projections import stats as session_stats
from dsh.state.projections.registry import SessionProjections
from dsh.state.projections.stats import SESSION_STATS
from dsh.state.session.store import LocalSessionStore

NOTHING = {
    "turns": 0,
    "steps": 0,
    "llmMs": 0,
    "toolMs": 0,
    "ttftMs": 0,
    "ttftSteps": 0,
    "decodeMs": 0,
    "decodeTokens": 0,
}


class Log:
    """Events with times of our choice, and what they amount to."""

    def __init__(self) -> None:
        self.state: Any = SESSION_STATS.init()
        self.seq = 0

    def add(self, time: int, type: str, **data: Any) -> Log:
        event: Any = snapshot({"type": type, "seq": self.seq, "time": time, "data": data})
        self.state = SESSION_STATS.apply(snapshot(self.state), event)
        assert SESSION_STATS.state_schema is not None
        SESSION_STATS.state_schema(loads(pretty(self.state)))
        self.seq += 1
        return self

    def step(self, time: int, turn: int = 1, step: int = 1) -> Log:
        return self.add(time, "step/start", turn=turn, step=step)

    def end(self, time: int, turn: int = 1, step: int = 1) -> Log:
        return self.add(time, "step/end", turn=turn, step=step)

    def chunk(self, time: int, chunk: Any) -> Log:
        return self.add(time, "assistant/chunk", turn=1, step=1, chunk=chunk)

    def message(self, time: int, tokens: Any = None, **more: Any) -> Log:
        usage = {} if tokens is None else {"usage": {"inputTokens": 1, "outputTokens": tokens}}
        message = {"id": "m", "role": "assistant", "content": [], "source": {"kind": "model"}}
        return self.add(time, "assistant/message", turn=1, step=1, message=message, **usage, **more)

    def call(self, time: int, id: str) -> Log:
        return self.add(time, "tool/call", turn=1, step=1, callId=id, name="t", arguments="{}")

    def result(self, time: int, id: str) -> Log:
        message = {"source": {"kind": "tool", "callId": id}}
        return self.add(time, "tool/result", turn=1, step=1, message=message)

    def turn_end(self, time: int) -> Log:
        return self.add(time, "turn/end", turn=1, reason={"kind": "completed"})

    def differs(self, **expected: int) -> None:
        assert SESSION_STATS.view is not None
        assert SESSION_STATS.view(self.state) == {**NOTHING, **expected}


def test_a_step_is_timed_from_its_start_to_its_reply() -> None:
    log = Log().step(100).chunk(130, text_delta(0, "hi")).message(200, 7).end(210)
    log.differs(turns=1, steps=1, llmMs=100, ttftMs=30, ttftSteps=1, decodeMs=70, decodeTokens=7)


def test_turns_are_those_with_a_closed_step() -> None:
    log = Log().step(0).end(1).step(2, 1, 2).end(3, 1, 2).turn_end(4)
    log.add(5, "turn/start", turn=2).turn_end(6)
    log.step(7, 3).end(8, 3)
    log.differs(turns=2, steps=3)


@pytest.mark.parametrize(
    "chunk",
    [
        text_delta(0, "x"),
        reasoning_delta(0, "x"),
        tool_call_delta(0, "c", "{"),
        tool_call_delta(0, "c", "", "name"),
    ],
)
def test_the_first_token_is_anything_the_model_says(chunk: Any) -> None:
    log = Log().step(0)
    log.chunk(5, text_delta(0, "")).chunk(6, reasoning_delta(0, ""))
    log.chunk(7, tool_call_delta(0, "c", "")).chunk(10, chunk).chunk(15, text_delta(0, "later"))
    log.message(20).differs(llmMs=20, ttftMs=10, ttftSteps=1)


def test_the_first_token_survives_a_retry() -> None:
    log = Log().step(0).chunk(4, text_delta(0, "x"))
    log.add(5, "llm/retry", turn=1, step=1).add(6, "llm/retry-started", turn=1, step=1)
    log.chunk(9, text_delta(0, "y")).message(10).differs(llmMs=10, ttftMs=4, ttftSteps=1)


@pytest.mark.parametrize("tokens", ["7", True, -1, None, [1]])
def test_decoding_is_timed_only_with_a_count_of_tokens(tokens: Any) -> None:
    log = Log().step(0).chunk(4, text_delta(0, "x")).message(10, tokens)
    log.differs(llmMs=10, ttftMs=4, ttftSteps=1)


def test_a_reply_without_a_token_is_not_decoded() -> None:
    Log().step(0).message(10, 5).differs(llmMs=10)


def test_a_second_message_of_a_step_is_ignored() -> None:
    Log().step(0).message(10).message(30).chunk(31, text_delta(0, "x")).differs(llmMs=10)


def test_a_cancelled_step_is_not_timed() -> None:
    log = Log().step(0).chunk(3, text_delta(0, "x"))
    log.message(10, 5, interrupted=True).end(11).turn_end(12)
    log.differs(turns=1, steps=1)
    Log().step(0).chunk(3, text_delta(0, "x")).end(11).differs(turns=1, steps=1)


def test_tools_are_timed_by_their_calls() -> None:
    log = Log().call(10, "a").call(20, "b").result(25, "b").result(60, "a").result(90, "a")
    log.differs(toolMs=55)


@pytest.mark.parametrize("id", ["__proto__", "__class__", "keys", "get", "", "toString"])
def test_an_id_that_is_the_name_of_an_attribute_is_just_an_id(id: str) -> None:
    Log().call(10, id).result(15, id).differs(toolMs=5)
    Log().result(15, id).differs()


def test_what_is_open_at_the_end_of_a_turn_is_dropped() -> None:
    log = Log().step(0).call(1, "a").turn_end(5).result(50, "a").message(60)
    log.differs()
    assert log.state == {**log.state, "step": None, "calls": {}}


def test_a_clock_that_steps_back_takes_no_time() -> None:
    log = Log().step(100).chunk(90, text_delta(0, "x")).message(80, 5).call(70, "a").result(60, "a")
    log.differs(ttftSteps=1, decodeTokens=5)


def test_other_events_leave_the_very_same_state() -> None:
    log = Log().step(0).chunk(1, text_delta(0, "x"))
    state = log.state
    event: Any = {"type": "session/title", "seq": 9, "time": 1, "data": {"title": "t"}}
    assert SESSION_STATS.apply(state, event) is state
    chunk: Any = {
        "type": "assistant/chunk",
        "seq": 9,
        "time": 1,
        "data": {"chunk": text_delta(0, "y")},
    }
    assert SESSION_STATS.apply(state, chunk) is state


@pytest.mark.parametrize(
    ("type", "data"),
    [
        ("assistant/chunk", {}),
        ("assistant/chunk", {"chunk": 3}),
        ("step/end", {}),
        ("tool/call", {"callId": ["x"]}),
        ("tool/result", {"message": {"source": None}}),
    ],
)
def test_an_event_of_another_shape_is_not_counted(type: str, data: Any) -> None:
    log = Log().step(0)
    log.add(5, type, **data)
    log.differs()


@pytest.mark.parametrize(
    "state",
    [
        None,
        {},
        {"view": NOTHING},
        {"view": {**NOTHING, "turns": -1}, "lastTurn": 0, "step": None, "calls": {}},
        {"view": {**NOTHING, "turns": "1"}, "lastTurn": 0, "step": None, "calls": {}},
        {"view": NOTHING, "lastTurn": None, "step": None, "calls": {}},
        {"view": NOTHING, "lastTurn": 0, "step": {}, "calls": {}},
        {"view": NOTHING, "lastTurn": 0, "step": None, "calls": {"a": "1"}},
        {
            "view": NOTHING,
            "lastTurn": 0,
            "calls": {},
            "step": {"startedAt": None, "firstAt": None, "replied": False},
        },
        {
            "view": NOTHING,
            "lastTurn": 0,
            "calls": {},
            "step": {"startedAt": 1, "firstAt": None, "replied": 0},
        },
    ],
)
def test_a_stored_state_that_does_not_fit_is_refused(state: Any) -> None:
    assert SESSION_STATS.state_schema is not None
    with pytest.raises(ValueError, match=r"\bit|its|time"):
        SESSION_STATS.state_schema(state)


async def test_the_row_offers_the_projection_while_it_is_loaded(root: Context) -> None:
    await root.plugin(LocalSessionStore)
    await root.plugin(SessionProjections)
    row = await root.plugin(session_stats)
    registry = root.require(ProjectionRegistry)
    session = root.require(LocalSessionStore).create()
    assert registry.snapshot(session)["values"] == {"sessionStats": NOTHING}
    await row.dispose()
    assert registry.snapshot(session)["values"] == {}
