"""Logs and events for the tests of this folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from dsh.model.chunks import StreamChunk, text_delta
from dsh.model.messages import (
    AssistantMessage,
    UserMessage,
    create_assistant_message,
    create_tool_result_message,
    create_user_message,
)
from dsh.state.session.events import (
    ASSISTANT_CHUNK,
    ASSISTANT_MESSAGE,
    STEP_END,
    STEP_START,
    TOOL_CALL,
    TOOL_RESULT,
    TURN_END,
    TURN_START,
    USER_MESSAGE,
    AssistantChunkData,
    AssistantMessageData,
    SessionEvent,
    StepData,
    SurfaceOp,
    ToolCallData,
    ToolResultData,
    TurnEndData,
    TurnStartData,
)
from dsh.state.session.session import Session


def say(session: Session, text: str, *, op: SurfaceOp = "append") -> SessionEvent:
    """Append a user message."""
    return session.append(USER_MESSAGE, create_user_message(text), surface_op=op)


def reply(
    session: Session, text: str = "", *, calls: Mapping[str, str] | None = None
) -> SessionEvent:
    """Append an assistant message with text and calls (id to name)."""
    blocks: list[Any] = [{"type": "text", "text": text}] if text else []
    blocks += [
        {"type": "tool-call", "id": call_id, "name": name, "arguments": "{}"}
        for call_id, name in (calls or {}).items()
    ]
    message: AssistantMessage = create_assistant_message(blocks, "rehearsal", "m1")
    return session.append(
        ASSISTANT_MESSAGE,
        AssistantMessageData(turn=1, step=1, message=message),
        surface_op="append",
    )


def chunk(session: Session, value: StreamChunk, *, turn: int = 1, step: int = 1) -> SessionEvent:
    """Append one chunk."""
    return session.append(ASSISTANT_CHUNK, AssistantChunkData(turn=turn, step=step, chunk=value))


def call(session: Session, id: str, name: str = "read") -> SessionEvent:
    """Append the start of a call."""
    data = ToolCallData(turn=1, step=1, callId=id, name=name, arguments="{}")
    return session.append(TOOL_CALL, data)


def answer(session: Session, started: SessionEvent, text: str = "ok", **more: Any) -> SessionEvent:
    """Append the result of a started call."""
    call_id = cast("str", started["data"]["callId"])
    message = create_tool_result_message(call_id, [{"type": "text", "text": text}], False)
    data = cast("ToolResultData", {"turn": 1, "step": 1, "message": message, **more})
    return session.append(
        TOOL_RESULT, data, surface_op="append", source_event_seqs=[started["seq"]]
    )


def open_turn(session: Session, turn: int = 1) -> None:
    """Append the start of a turn and of its first step."""
    session.append(TURN_START, TurnStartData(turn=turn))
    session.append(STEP_START, StepData(turn=turn, step=1))


def close_turn(session: Session, turn: int = 1) -> None:
    """Append the end of a step and of its turn."""
    session.append(STEP_END, StepData(turn=turn, step=1))
    session.append(TURN_END, TurnEndData(turn=turn, reason={"kind": "completed"}))


def whole_turn(session: Session, turn: int = 1, *, words: int = 4) -> None:
    """Append a turn in which the user asks and the model answers in some chunks."""
    open_turn(session, turn)
    say(session, f"question {turn}")
    sources = [chunk(session, text_delta(0, f"word {n} "), turn=turn) for n in range(words)]
    text = "".join(f"word {n} " for n in range(words))
    message = create_assistant_message([{"type": "text", "text": text}], "rehearsal", "m1")
    session.append(
        ASSISTANT_MESSAGE,
        AssistantMessageData(turn=turn, step=1, message=message),
        surface_op="append",
        source_event_seqs=[event["seq"] for event in sources],
    )
    close_turn(session, turn)


def user(text: str) -> UserMessage:
    """Make a user message."""
    return create_user_message(text)
