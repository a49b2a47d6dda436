from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsh.control.budgets.spending import Spending, Spent, Tokens, cost_of_routes, spent_of
from dsh.control.budgets.usage import NO_ROUTE, SETTLING, AttemptUsage
from dsh.model.messages import create_assistant_message
from dsh.state.session.events import (
    ASSISTANT_CHUNK,
    ASSISTANT_MESSAGE,
    REQUEST_HEADER,
    STEP_END,
    STEP_START,
    TURN_END,
    TURN_START,
)
from dsh.state.session.repair import interrupted_turn_closers
from dsh.state.session.session import Session

USAGE = {"inputTokens": 3, "cacheReadTokens": 4, "outputTokens": 2}


class Writer:
    """Writes the log of a loop: turns of steps of attempts."""

    def __init__(self) -> None:
        self.session = Session.create("s")
        self.turn = self.step = 0
        self.clock = 1000
        self.session._clock = self  # type: ignore[assignment]
        self.expected = 0

    def now_ms(self) -> int:
        self.clock += 10
        return self.clock

    def monotonic(self) -> float:
        return self.clock / 1000

    def header(self, model: str) -> None:
        header: Any = {"config": {"provider": "p", "model": model}}
        self.session.append(REQUEST_HEADER, {"header": header, "reason": "change"})

    def attempt(self, usages: list[int], outcome: str) -> None:
        """One stream: usage reports, then a message, a failure, or an abort without an end."""
        seqs = []
        place: Any = {"turn": self.turn, "step": self.step}
        chunks: list[Any] = [
            {"type": "usage", "usage": {"inputTokens": tokens, "outputTokens": 0}}
            for tokens in usages
        ]
        chunks.insert(0, {"type": "text-delta", "index": 0, "text": "x"})
        if outcome != "aborted":
            kind = "stop" if outcome == "message" else "error"
            chunks.append({"type": "finish", "reason": {"kind": kind}})
        for chunk in chunks:
            seqs.append(self.session.append(ASSISTANT_CHUNK, {**place, "chunk": chunk})["seq"])
        if outcome == "message":
            message = create_assistant_message([{"type": "text", "text": "x"}], "p", "m")
            data: Any = {**place, "message": message}
            if usages:
                data["usage"] = {"inputTokens": usages[-1], "outputTokens": 0}
            self.session.append(
                ASSISTANT_MESSAGE, data, surface_op="append", source_event_seqs=seqs
            )
        self.expected += usages[-1] if usages else 0


attempts = st.lists(
    st.tuples(
        st.lists(st.integers(0, 50), max_size=3), st.sampled_from(["message", "failed", "aborted"])
    ),
    max_size=4,
)
turns = st.lists(st.lists(attempts, max_size=3), max_size=4)


@given(turns, st.lists(st.booleans(), min_size=1, max_size=30))
def test_whenever_it_is_read_each_attempt_counts_once_with_its_last_report(
    story: list[list[list[Any]]], reads: list[bool]
) -> None:
    writer = Writer()
    live = Spending(writer.session)
    moments = 0

    def moment() -> None:
        nonlocal moments
        moments += 1
        if reads[moments % len(reads)]:
            live.catch_up()

    for steps in story:
        writer.turn += 1
        writer.step = 0
        writer.session.append(TURN_START, {"turn": writer.turn})
        for streams in steps:
            writer.step += 1
            place: Any = {"turn": writer.turn, "step": writer.step}
            writer.session.append(STEP_START, place)
            for index, (usages, outcome) in enumerate(streams):
                # Only the last attempt of a step leaves a message or stops half-way.
                last = index == len(streams) - 1
                writer.attempt(usages, outcome if last else "failed")
                moment()
            writer.session.append(STEP_END, place)
        writer.session.append(TURN_END, {"turn": writer.turn, "reason": {"kind": "completed"}})
        moment()
    live.catch_up()
    at_once = Spending(writer.session)
    at_once.catch_up()

    every_chunk = AttemptUsage()
    settled = [every_chunk.push(each) for each in writer.session.events if each["type"] in SETTLING]

    assert sum(Tokens.of(each[1]).total for each in settled if each) == writer.expected
    assert live.own == at_once.own
    assert live.own.tokens == writer.expected
    assert live.own.steps == sum(map(len, story))
    assert live.own.turns == sum(1 for steps in story if steps)
    assert live.wall_ms(None) == at_once.wall_ms(None)


def test_tokens_of_a_failed_attempt_belong_to_the_route_it_took() -> None:
    writer = Writer()
    writer.turn = writer.step = 1
    writer.session.append(TURN_START, {"turn": 1})
    writer.session.append(STEP_START, {"turn": 1, "step": 1})
    writer.header("dear")
    writer.attempt([100], "failed")
    writer.header("cheap")
    writer.attempt([7], "failed")
    writer.session.append(STEP_END, {"turn": 1, "step": 1})
    spending = Spending(writer.session)
    spending.catch_up()
    assert {route: held.total for route, held in spending.own.routes.items()} == {
        "p/dear": 100,
        "p/cheap": 7,
    }


def test_a_retry_ends_an_attempt_that_a_log_from_elsewhere_left_without_an_end() -> None:
    attempts = AttemptUsage()
    reported: Any = {"type": "usage", "usage": {"inputTokens": 7}}
    assert attempts.push({"type": "assistant/chunk", "data": {"chunk": reported}}) is None
    assert attempts.push({"type": "llm/retry", "data": {}}) == (NO_ROUTE, {"inputTokens": 7})
    assert attempts.settle() is None


def test_the_time_of_a_turn_that_a_crash_cut_ends_with_its_log() -> None:
    writer = Writer()
    writer.session.append(TURN_START, {"turn": 1})
    writer.session.append(STEP_START, {"turn": 1, "step": 1})
    events: list[Any] = list(writer.session.events)
    lived = events[-1]["time"] - events[0]["time"]
    closed = [*events, *interrupted_turn_closers(events)]
    for log in (events, closed):
        spending = Spending(Session.create("s2", seed=log))
        spending.catch_up()
        assert spending.wall_ms(None) == lived


def test_what_is_logged_of_a_session_reads_back() -> None:
    spent = Spent(2, 5)
    spent.use("p/m", Tokens.of(USAGE))
    spent.use("p/n", Tokens.of({"inputTokens": 1, "outputTokens": 1, "cacheWriteTokens": 8}))
    data: Any = {"session": "s", "turns": 2, "steps": 5, "tokens": spent.tokens_by_route()}
    assert spent_of({**data, "apartMs": 0}) == spent


amounts = st.dictionaries(
    st.sampled_from(["p/a", "p/b", "q/c"]),
    st.tuples(*[st.integers(0, 1000)] * 4).map(lambda counts: Tokens(*counts)),
)


@given(amounts, amounts)
def test_taking_away_what_was_added_leaves_what_was(one: Any, two: Any) -> None:
    spent, more = Spent(1, 1), Spent(2, 3)
    for route, tokens in one.items():
        spent.use(route, tokens)
    for route, tokens in two.items():
        more.use(route, tokens)
    before = spent.copy()
    spent.add(more)
    spent.add(more, -1)
    assert (spent.turns, spent.steps, spent.tokens) == (before.turns, before.steps, before.tokens)
    for route, tokens in spent.routes.items():
        assert tokens == before.routes.get(route, Tokens())


def test_a_route_without_a_price_matters_only_when_it_was_used() -> None:
    prices = {"p/a": {"input": 1_000_000, "output": 0}}
    used = {"p/a": Tokens(input=3), "q/c": Tokens()}
    assert cost_of_routes(prices, used) == (pytest.approx(3), None)
    used["q/c"] = Tokens(output=1)
    assert cost_of_routes(prices, used)[1] == "q/c"


@pytest.mark.parametrize(
    ("type", "data"),
    [
        ("turn/start", {}),
        ("request/header", {"header": {}, "reason": "initial"}),
        ("budget/limit", {}),
        ("budget/spent", {"session": "x"}),
        (
            "assistant/chunk",
            {"turn": 1, "step": 1, "chunk": {"type": "usage", "usage": {"inputTokens": "x"}}},
        ),
    ],
)
def test_what_is_not_shaped_as_declared_is_not_counted(type: str, data: Any) -> None:
    writer = Writer()
    writer.turn = writer.step = 1
    writer.session.append(TURN_START, {"turn": 1})
    writer.session.append(STEP_START, {"turn": 1, "step": 1})
    seq = writer.session.seq
    event: Any = {"type": type, "seq": seq, "time": 0, "data": data}
    spending = Spending(writer.session)
    writer.session._log.append(event)
    writer.attempt([5], "message")
    writer.session.append(STEP_END, {"turn": 1, "step": 1})
    spending.catch_up()
    assert (spending.own.steps, spending.own.tokens) == (1, 5)
