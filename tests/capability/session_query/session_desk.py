"""The tools over a real store, search and files, called as an agent calls them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from dsh.base.signal import AbortController
from dsh.capability.session_query import tools
from dsh.control.timeouts import policy as timeouts
from dsh.execution.prompt.assembly import LayeredSystemPrompt
from dsh.execution.tools.runtime import LayeredToolRuntime
from dsh.execution.tools.service import ToolInput, ToolResult, ToolRuntime
from dsh.kernel import Context
from dsh.model.messages import CallId, create_user_message
from dsh.state.persistence.jsonl import JsonlPersistence
from dsh.state.query.sqlite import SqliteSessionQuery
from dsh.state.session.events import (
    STEP_END,
    STEP_START,
    TURN_END,
    TURN_START,
    USER_MESSAGE,
    SessionMeta,
    StepData,
    TurnEndData,
    TurnStartData,
)
from dsh.state.session.service import SessionStore
from dsh.state.session.session import Session
from dsh.state.session.store import LocalSessionStore
from dsh.state.titles.events import SESSION_TITLE, SessionTitleData

HERE = "/home/ada/here"
ELSEWHERE = "/home/ada/elsewhere"


@dataclass(eq=False)
class StandInAgent:
    """As much of an agent as the tools look at."""

    session: Session


@dataclass(eq=False)
class Desk:
    """The mounted parts, and the session that asks."""

    ctx: Context
    own: Session
    controller: AbortController = field(default_factory=AbortController)

    @property
    def store(self) -> SessionStore:
        return self.ctx.require(SessionStore)

    def session(self, id: str, *texts: str, cwd: str | None = HERE, **meta: Any) -> Session:
        """Make a session in which a user says some things."""
        facts = {"cwd": cwd, **meta} if cwd is not None else meta
        session = self.store.create(id, meta=cast("SessionMeta", facts))
        for turn, text in enumerate(texts, 1):
            prompt(session, text, turn)
        return session

    async def call(self, name: str, /, *, bound: bool = True, **arguments: Any) -> ToolResult:
        return await self.ctx.require(ToolRuntime).execute(
            ToolInput(
                call_id=CallId("call-1"),
                name=name,
                arguments=arguments,
                signal=self.controller.signal,
                agent=cast("Any", StandInAgent(self.own)) if bound else None,
            )
        )


def prompt(session: Session, text: str, turn: int = 1, *, closed: bool = True) -> None:
    """Append a turn with a message."""
    session.append(TURN_START, TurnStartData(turn=turn))
    session.append(STEP_START, StepData(turn=turn, step=1))
    session.append(USER_MESSAGE, create_user_message(text), surface_op="append")
    if closed:
        session.append(STEP_END, StepData(turn=turn, step=1))
        session.append(TURN_END, TurnEndData(turn=turn, reason={"kind": "completed"}))


def give_title(session: Session, text: str) -> None:
    """Append a title."""
    data = SessionTitleData(title=text, messageSeqs=[], source={"kind": "user"})
    session.append(SESSION_TITLE, data)


async def open_desk(
    root: Context, folder: Path, *, parts: Sequence[Any] = (), cwd: str | None = HERE, **config: Any
) -> Desk:
    """Mount everything and open the session that asks."""
    await root.plugin(LayeredSystemPrompt)
    await root.plugin(LayeredToolRuntime)
    await root.plugin(LocalSessionStore)
    await root.plugin(timeouts)
    await root.plugin(JsonlPersistence, {"root": str(folder), "writeBatchMaxDelayMs": 3_600_000})
    if parts:
        for part in parts:
            await root.plugin(part)
    else:
        await root.plugin(
            SqliteSessionQuery,
            {"path": ":memory:", "openAt": "first-search", "defaultLimit": 2, "maxLimit": 3},
        )
    await root.plugin(tools, config)
    held: list[Context] = []
    await root.inject([ToolRuntime, SessionStore], held.append)
    store = held[0].require(SessionStore)
    store.declare(SESSION_TITLE)
    meta = SessionMeta(cwd=cwd) if cwd is not None else SessionMeta()
    return Desk(held[0], store.create("own", meta=meta))


def text_of(result: ToolResult) -> str:
    assert [block["type"] for block in result.content] == ["text"]
    return cast("str", cast("Any", result.content[0])["text"])


def answer(result: ToolResult) -> str:
    assert not result.is_error, text_of(result)
    return text_of(result)


def code(result: ToolResult) -> str:
    assert result.is_error, text_of(result)
    assert result.error.info is not None
    return result.error.info.code
