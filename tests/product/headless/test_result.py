from __future__ import annotations

from typing import Any

import pytest

from dsh.product.headless.brief import brief_call, brief_result
from dsh.product.headless.result import RunFold


def event(type: str, **data: Any) -> Any:
    return {"type": type, "seq": 0, "time": 0, "data": data}


def said(text: str, **more: Any) -> Any:
    message = {"role": "assistant", "content": [{"type": "text", "text": text}]}
    return event("assistant/message", turn=1, step=1, message=message, **more)


def used(**counts: int) -> Any:
    return event("assistant/chunk", turn=1, step=1, chunk={"type": "usage", "usage": counts})


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


def test_usage_counts_every_model_call_once_failed_attempts_included() -> None:
    folded = fold(
        used(inputTokens=10, outputTokens=0),
        used(inputTokens=10, outputTokens=5, cacheReadTokens=3),
        said("answer", usage={"inputTokens": 10, "outputTokens": 5}),
    )
    assert folded.usage == {"inputTokens": 20, "outputTokens": 5, "cacheReadTokens": 3}


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
