"""The text of events, also of those that another writer got wrong."""

from __future__ import annotations

from typing import Any

import pytest

from dsh.state.query.service import SessionQueryError
from dsh.state.query.text import searchable_text
from dsh.state.query.traces import folded_surface


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("user/message", {}),
        ("user/message", {"content": "text"}),
        ("user/message", {"content": [{"type": "text"}]}),
        ("user/message", {"content": [{"type": "text", "text": 3}]}),
        ("assistant/message", {"message": None}),
        ("tool/call", {"name": "x"}),
        ("tool/result", {"message": {"content": []}, "error": {"name": "x"}}),
        ("todo/write", {"todos": [{"content": "x"}]}),
        ("turn/end", {"reason": {"kind": "error"}}),
        ("turn/end", {"reason": "completed"}),
    ],
)
def test_a_payload_of_another_shape_has_no_text(kind: str, data: Any) -> None:
    assert searchable_text({"type": kind, "data": data}) is None


def test_types_that_nobody_searches_have_no_text() -> None:
    chunk = {"type": "text-delta", "index": 0, "text": "word"}
    assert searchable_text({"type": "assistant/chunk", "data": {"chunk": chunk}}) is None
    assert searchable_text({"type": "new/type", "data": {"text": "word"}}) is None


def test_results_within_results_are_read_to_any_depth() -> None:
    block: Any = {"type": "text", "text": "deep"}
    for _ in range(5000):
        block = {"type": "tool-result", "toolCallId": "c", "content": [block]}
    data = {"message": {"content": [block]}}
    assert searchable_text({"type": "tool/result", "data": data}) == "deep"


def test_a_log_that_cannot_be_replayed_says_where() -> None:
    events: Any = [{"type": "user/message", "seq": 0, "time": 0, "data": {}}]
    with pytest.raises(SessionQueryError, match="surfaceOp") as error:
        folded_surface(events)
    assert error.value.code == "SESSION_QUERY_INVALID_SURFACE"
