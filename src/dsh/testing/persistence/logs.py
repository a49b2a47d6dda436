"""Logs to store: turns as agents write them, and random ones."""

from __future__ import annotations

from typing import Any

from dsh.model.chunks import StreamChunk, text_delta
from dsh.model.messages import (
    create_assistant_message,
    create_user_message,
)
from dsh.state.session.events import (
    ASSISTANT_CHUNK,
    ASSISTANT_MESSAGE,
    STEP_END,
    STEP_START,
    TOOL_CALL,
    TURN_END,
    TURN_START,
    USER_MESSAGE,
    AssistantChunkData,
    AssistantMessageData,
    SessionEvent,
    StepData,
    ToolCallData,
    TurnEndData,
    TurnStartData,
)
from dsh.state.session.session import Session


def say(session: Session, text: str) -> SessionEvent:
    """Append a user message."""
    return session.append(USER_MESSAGE, create_user_message(text), surface_op="append")


def chunk(session: Session, value: StreamChunk, turn: int = 1) -> SessionEvent:
    """Append a chunk of a reply."""
    return session.append(ASSISTANT_CHUNK, AssistantChunkData(turn=turn, step=1, chunk=value))


def open_turn(session: Session, turn: int = 1) -> None:
    """Append the start of a turn and of its first step."""
    session.append(TURN_START, TurnStartData(turn=turn))
    session.append(STEP_START, StepData(turn=turn, step=1))


def close_turn(session: Session, turn: int = 1) -> None:
    """Append the end of a step and of its turn."""
    session.append(STEP_END, StepData(turn=turn, step=1))
    session.append(TURN_END, TurnEndData(turn=turn, reason={"kind": "completed"}))


def whole_turn(session: Session, turn: int = 1, words: int = 4) -> None:
    """Append a question and its answer in some chunks."""
    open_turn(session, turn)
    say(session, f"question {turn}")
    first = session.seq
    for number in range(words):
        chunk(session, text_delta(0, f"word {number} "), turn)
    blocks: Any = [{"type": "text", "text": "".join(f"word {n} " for n in range(words))}]
    message = create_assistant_message(blocks, "rehearsal", "m1")
    session.append(
        ASSISTANT_MESSAGE,
        AssistantMessageData(turn=turn, step=1, message=message),
        surface_op="append",
        source_event_seqs=range(first, session.seq),
    )
    close_turn(session, turn)


def interrupted_turn(session: Session, turn: int = 1) -> None:
    """Append a turn that a crash ends while a tool runs."""
    open_turn(session, turn)
    call: Any = {"type": "tool-call", "id": "c1", "name": "bash", "arguments": "{}"}
    message = create_assistant_message([call], "rehearsal", "m1")
    session.append(
        ASSISTANT_MESSAGE,
        AssistantMessageData(turn=turn, step=1, message=message),
        surface_op="append",
    )
    start = ToolCallData(turn=turn, step=1, callId="c1", name="bash", arguments="{}")
    session.append(TOOL_CALL, start)
