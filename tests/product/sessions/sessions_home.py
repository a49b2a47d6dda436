"""A home with sessions, and the command line on it."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any, cast

import pytest

from dsh.model.messages import create_tool_result_message, create_user_message
from dsh.product.sessions.cli import main
from dsh.state.persistence.artifact.layout import Encoding
from dsh.state.persistence.artifact.store import ArtifactStore
from dsh.state.session.events import (
    ASSISTANT_MESSAGE,
    STEP_END,
    STEP_START,
    TOOL_CALL,
    TOOL_RESULT,
    TURN_END,
    TURN_START,
    USER_MESSAGE,
    AssistantMessageData,
    EventType,
    StepData,
    ToolCallData,
    ToolResultData,
    TurnEndData,
    TurnStartData,
)
from dsh.state.session.session import Session

CWD = "/home/ada/app"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class SessionsHome:
    """Stores sessions, runs ``dsh sessions`` and reads what it says."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capsys = capsys

    def store(
        self, session: Session, encoding: Encoding = Encoding.ZSTD, *, pack: bool = True
    ) -> Path:
        store = ArtifactStore(self.folder / "sessions", encoding, pack=pack)
        return store.create(session.header, session.events).path

    def go_on(self, session: Session, start: int, stop: int) -> None:
        """Append a batch to a stored session."""
        store = ArtifactStore(self.folder / "sessions")
        stored = store.load(session.id)
        assert stored is not None
        store.append(session.id, stored.position, session.events[start:stop])

    def stored(self, id: str) -> Any:
        return ArtifactStore(self.folder / "sessions").load(id)

    def run(self, *words: str, code: int = 0) -> str:
        self._capsys.readouterr()
        assert main(list(words)) == code, self._capsys.readouterr().err
        return self._capsys.readouterr().out

    def rows(self, *words: str, code: int = 0) -> list[dict[str, Any]]:
        return cast("list[dict[str, Any]]", json.loads(self.run(*words, "--json", code=code)))

    def refused(self, *words: str) -> str:
        self._capsys.readouterr()
        assert main(list(words)) == 1
        said = self._capsys.readouterr()
        assert said.out == ""
        assert said.err.startswith("dsh sessions: ")
        assert said.err.count("\n") == 1
        return said.err


def conversation(id: str, turns: int = 1, *, created: int = 1_000, **meta: Any) -> Session:
    header = {"version": 0, "id": id, "createdAt": created, "cwd": CWD, **meta}
    session = Session.create(id, header=header)
    for turn in range(1, turns + 1):
        ask(session, turn)
        session.append(STEP_END, StepData(turn=turn, step=1))
        session.append(TURN_END, TurnEndData(turn=turn, reason={"kind": "completed"}))
    return session


def ask(session: Session, turn: int) -> None:
    """Open a turn in which a tool runs and the model answers."""
    session.append(TURN_START, TurnStartData(turn=turn))
    session.append(STEP_START, StepData(turn=turn, step=1))
    session.append(USER_MESSAGE, create_user_message(f"question {turn}"), surface_op="append")
    call = {"type": "tool-call", "id": f"c{turn}", "name": "bash", "arguments": '{"command":"ls"}'}
    message = {
        "id": f"m{turn}",
        "role": "assistant",
        "content": [{"type": "text", "text": f"answer {turn}"}, call],
        "source": {"kind": "model", "provider": "p", "model": "m"},
    }
    session.append(
        ASSISTANT_MESSAGE,
        cast("AssistantMessageData", {"turn": turn, "step": 1, "message": message}),
        surface_op="append",
    )
    data = ToolCallData(turn=turn, step=1, callId=f"c{turn}", name="bash", arguments="{}")
    started = session.append(TOOL_CALL, data)
    result = create_tool_result_message(
        f"c{turn}", [{"type": "text", "text": "one.txt\ntwo.txt"}], False
    )
    session.append(
        TOOL_RESULT,
        ToolResultData(turn=turn, step=1, message=result),
        surface_op="append",
        source_event_seqs=[started["seq"]],
    )


def entitle(session: Session, title: str) -> Session:
    """Return the same session with a title."""
    declared: EventType[Any] = EventType("session/title", dict)
    renamed = Session.create(session.id, session.events, header=session.header, types=[declared])
    renamed.append(declared, {"title": title, "messageSeqs": [], "source": {"kind": "user"}})
    return renamed
