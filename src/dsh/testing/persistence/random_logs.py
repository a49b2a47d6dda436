"""Random logs to store: whatever may be appended to a session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from hypothesis import strategies as st

from dsh.model.chunks import StreamChunk, reasoning_delta, text_delta, tool_call_delta
from dsh.model.messages import create_tool_result_message, create_user_message
from dsh.state.session.events import (
    TODO_WRITE,
    TOOL_CALL,
    TOOL_RESULT,
    USER_MESSAGE,
    SurfaceReplace,
    ToolCallData,
    ToolResultData,
)
from dsh.state.session.session import Session
from dsh.testing.persistence.logs import chunk, say, whole_turn

Act: TypeAlias = Callable[[Session], object]
"""Appends something to a session."""


def _call(session: Session, text: str) -> None:
    data = ToolCallData(turn=1, step=1, callId="c", name="read", arguments=text)
    started = session.append(TOOL_CALL, data)
    result = create_tool_result_message("c", [{"type": "text", "text": text}], False)
    session.append(
        TOOL_RESULT,
        ToolResultData(turn=1, step=1, message=result),
        surface_op="append",
        source_event_seqs=[started["seq"]],
    )


def _replace(session: Session, text: str) -> None:
    """Put a message in place of the newest one."""
    nodes = session.surface.nodes
    if not nodes:
        say(session, text)
        return
    last = nodes[-1]
    session.append(
        USER_MESSAGE,
        create_user_message(text),
        surface_op=SurfaceReplace(op="replace", start=last, end=last),
        source_event_seqs=[last],
    )


_texts = st.text(st.characters(codec=None, exclude_categories=()), max_size=8)
_deltas = st.one_of(
    st.builds(text_delta, st.integers(0, 1), _texts),
    st.builds(reasoning_delta, st.integers(0, 1), _texts),
    st.builds(
        tool_call_delta, st.integers(0, 1), st.just("c"), _texts, st.none() | st.sampled_from("ab")
    ),
)


def _chunks(delta: StreamChunk, count: int) -> Act:
    return lambda session: [chunk(session, delta) for _ in range(count)]


def _saying(text: str) -> Act:
    return lambda session: say(session, text)


def _calling(text: str) -> Act:
    return lambda session: _call(session, text)


def _replacing(text: str) -> Act:
    return lambda session: _replace(session, text)


def _turn(words: int) -> Act:
    return lambda session: whole_turn(session, words=words)


def _noting(text: str) -> Act:
    todo: Any = {"todos": [{"content": text, "status": "pending", "activeForm": text}]}
    return lambda session: session.append(TODO_WRITE, todo)


acts: st.SearchStrategy[Act] = st.one_of(
    st.builds(_chunks, _deltas, st.integers(1, 9)),
    st.builds(_saying, _texts | st.just("long " * 2000)),
    st.builds(_calling, _texts),
    st.builds(_replacing, _texts),
    st.builds(_turn, st.integers(0, 5)),
    st.builds(_noting, _texts),
)
"""Anything that may be appended to a session."""
