from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dsh.state.session.log import EventLog, without_settled_chunks


def log(*kinds: str) -> list[Any]:
    """Events by kind; a message is made of the chunks since the last message."""
    events: list[Any] = []
    chunks: list[int] = []
    for seq, kind in enumerate(kinds):
        event: dict[str, Any] = {"type": kind, "seq": seq}
        if kind == "assistant/chunk":
            chunks.append(seq)
        elif kind == "assistant/message":
            event["sourceEventSeqs"] = chunks
            chunks = []
        elif kind == "llm/retry":
            chunks = []
        events.append(event)
    return events


def read(events: list[Any], start: int = 0) -> list[str]:
    return [event["type"] for event in without_settled_chunks(EventLog(events, len(events)), start)]


def test_chunks_of_a_message_are_left_out() -> None:
    events = log("step/start", *["assistant/chunk"] * 9, "assistant/message", "step/end")
    assert read(events) == ["step/start", "assistant/message", "step/end"]


def test_chunks_of_an_attempt_that_failed_are_there() -> None:
    events = log("assistant/chunk", "llm/retry", "assistant/chunk", "assistant/message")
    assert read(events) == ["assistant/chunk", "llm/retry", "assistant/message"]


def test_what_stands_between_chunks_is_there() -> None:
    events = log("assistant/chunk", "agent/inbox/spliced", "assistant/chunk", "assistant/message")
    assert "agent/inbox/spliced" in read(events)


KINDS = ["assistant/chunk", "assistant/message", "llm/retry", "step/end"]


@given(st.lists(st.sampled_from(KINDS), max_size=40), st.integers(0, 40))
def test_only_chunks_of_messages_are_ever_left_out(kinds: list[str], start: int) -> None:
    events = log(*kinds)
    found = without_settled_chunks(EventLog(events, len(events)), start)
    settled = {seq for event in events for seq in event.get("sourceEventSeqs", ())}
    left_out = [event for event in events[start:] if event not in found]
    assert all(event["seq"] in settled for event in left_out)
    assert [event["seq"] for event in found] == sorted(event["seq"] for event in found)
    assert all(event["seq"] >= start for event in found)
