from __future__ import annotations

import io
from typing import Any

import pytest

from dsh.product.headless.brief import brief_call, brief_result
from dsh.product.headless.progress import Progress
from dsh.product.headless.result import RunFold


def event(type: str, **data: Any) -> Any:
    return {"type": type, "seq": 0, "time": 0, "data": data}


def said(text: str, **more: Any) -> Any:
    source = {"kind": "model", "provider": "p", "model": "m"}
    content = [{"type": "text", "text": text}]
    message = {"role": "assistant", "content": content, "source": source}
    return event("assistant/message", turn=1, step=1, message=message, **more)


def chunk(**data: Any) -> Any:
    return event("assistant/chunk", turn=1, step=1, chunk=data)


def used(**counts: int) -> Any:
    return chunk(type="usage", usage=counts)


def finish(kind: str) -> Any:
    return chunk(type="finish", reason={"kind": kind})


STEP_END = event("step/end", turn=1, step=1)


def fold(*events: Any) -> RunFold:
    folded = RunFold()
    for each in events:
        folded.push(each)
    return folded


def test_the_text_is_that_of_the_last_message_that_has_any() -> None:
    assert fold(said("first"), said("second"), said("")).text == "second"


def test_text_of_an_interrupted_message_counts() -> None:
    assert fold(said("half a sen", interrupted=True)).text == "half a sen"


def test_the_reason_is_that_of_the_last_turn() -> None:
    folded = fold(
        event("turn/end", turn=1, reason={"kind": "max-tokens"}),
        event("turn/end", turn=2, reason={"kind": "completed"}),
    )
    assert folded.kind == "completed"
    assert folded.failure is None


def test_a_failed_turn_carries_its_failure() -> None:
    failure = {"code": "AUTH", "message": "no"}
    folded = fold(event("turn/end", turn=1, reason={"kind": "error", "error": failure}))
    result = folded.to_json(session_id="s", duration_ms=1, cwd=None)
    assert result["error"] == failure
    assert result["reason"] == "error"


def test_of_each_attempt_the_last_report_of_usage_counts() -> None:
    folded = fold(
        used(inputTokens=10, outputTokens=0),
        used(inputTokens=10, outputTokens=2),
        finish("error"),
        used(inputTokens=10, outputTokens=0),
        used(inputTokens=10, outputTokens=5, cacheReadTokens=3),
        finish("stop"),
        said("answer", usage={"inputTokens": 10, "outputTokens": 5, "cacheReadTokens": 3}),
        STEP_END,
    )
    assert folded.usage == {"inputTokens": 20, "outputTokens": 7, "cacheReadTokens": 3}


def test_usage_of_an_attempt_that_was_cut_short_counts() -> None:
    assert fold(header("m"), used(inputTokens=7), STEP_END).usage == {"inputTokens": 7}


def header(model: str) -> Any:
    config = {"provider": "p", "model": model}
    return event("request/header", header={"config": config}, reason="initial")


class Prices:
    """Of the budgets, a run needs what tokens cost."""

    currency = "EUR"

    def cost_of(self, provider: str, model: str, usage: Any) -> float | None:
        return usage["inputTokens"] * 2.0 if model == "m" else None


def test_the_cost_is_that_of_every_route_or_none() -> None:
    prices: Any = Prices()
    run = [header("m"), used(inputTokens=3), finish("error"), used(inputTokens=4), STEP_END]
    assert fold(*run).cost(prices) == {"amount": 14.0, "currency": "EUR"}
    assert fold(*run, header("x"), used(inputTokens=1), STEP_END).cost(prices) is None
    assert fold(*run).cost(None) is None
    assert fold().cost(prices) is None


def test_a_turn_that_a_guard_ended_tells_its_code_and_reason() -> None:
    cause = {"kind": "hook", "reason": "used up", "code": "BUDGET_STEPS"}
    folded = fold(event("turn/end", turn=1, reason={"kind": "aborted", "reason": cause}))
    result = folded.to_json(session_id="s", duration_ms=1, cwd=None)
    assert result["reason"] == "aborted"
    assert result["error"] == {"code": "BUDGET_STEPS", "message": "used up"}


def test_a_turn_that_the_user_ended_did_not_fail() -> None:
    reason = {"kind": "aborted", "reason": {"kind": "user"}}
    assert fold(event("turn/end", turn=1, reason=reason)).failure is None


def test_a_run_without_a_turn_says_so() -> None:
    result = fold().to_json(session_id="s", duration_ms=7, cwd="/w")
    assert result == {
        "sessionId": "s",
        "reason": "none",
        "text": "",
        "usage": {},
        "turns": 0,
        "steps": 0,
        "durationMs": 7,
        "model": None,
        "cwd": "/w",
    }


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ('{"command": "ls\\n-l", "description": "List"}', "ls -l"),
        ('{"file_path": "a.py"}', "a.py"),
        ('{"n": 1}', '{"n": 1}'),
        ("{broken", "{broken"),
        ('{"command": "' + "x" * 100 + '"}', "x" * 71 + "…"),
    ],
)
def test_a_call_is_shown_by_its_main_argument(arguments: str, shown: str) -> None:
    assert brief_call(None, arguments) == shown


def test_a_result_without_a_view_is_shown_by_its_first_line() -> None:
    content = [{"type": "text", "text": "\n  one\ntwo"}]
    block = {"type": "tool-result", "toolCallId": "c", "content": content, "isError": True}
    assert brief_result(None, "{}", {"message": {"content": [block]}}) == "one"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Error: unknown tool 'x'", "unknown tool 'x'"),
        (
            "Error: arguments are invalid\n- missing a\n- missing b",
            "arguments are invalid: missing a",
        ),
        (
            (
                "Error: the program failed (exception): Traceback (most recent call last):\n"
                '  File "<program>"\nZeroDivisionError: division by zero\n\nIt had printed:\nx'
            ),
            "the program failed (exception): ZeroDivisionError: division by zero",
        ),
        ("Error: " + "x" * 200, "x" * 159 + "…"),
        ("", ""),
    ],
)
def test_a_failure_is_shown_by_what_went_wrong(text: str, shown: str) -> None:
    content = [{"type": "text", "text": text}]
    block = {"type": "tool-result", "toolCallId": "c", "content": content, "isError": True}
    assert brief_result(None, "{}", {"message": {"content": [block]}}) == shown


def progress_of(*events: Any) -> str:
    stream = io.StringIO()
    progress = Progress(stream)
    for each in events:
        progress.event(each)
    return stream.getvalue()


def test_who_watches_sees_that_the_model_was_told_it_is_stuck() -> None:
    found = {"code": "STUCK_REPEAT", "count": 4}
    shown = progress_of(
        event("stuck/detected", action="nudge", **found),
        event("stuck/detected", action="stop", **found),
    )
    assert shown == "  told that it seems stuck: STUCK_REPEAT, 4 times in a row\n"


def test_who_watches_sees_that_nobody_could_be_asked() -> None:
    shown = progress_of(
        event("approval/decided", id="a", outcome="unavailable"),
        event("approval/decided", id="b", outcome="allowed-once"),
    )
    assert shown == "  refused: nobody can be asked here (see DSH_PERMISSION_MODE)\n"
