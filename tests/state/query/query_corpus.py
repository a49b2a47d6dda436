"""Sessions to ask questions about."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from state_home import Home
from state_logs import answer, call, close_turn, open_turn, reply, say

from dsh.kernel import Context
from dsh.state.query.service import SessionQuery, SessionQueryError
from dsh.state.query.sqlite import SqliteSessionQuery
from dsh.state.session.events import SessionMeta
from dsh.state.session.service import SessionStore
from dsh.state.session.session import Session
from dsh.state.titles.events import SESSION_TITLE, SessionTitleData


async def mount(root: Context, **config: Any) -> SessionQuery:
    """Mount the search beside what is there already."""
    root.require(SessionStore).declare(SESSION_TITLE)
    await root.plugin(SqliteSessionQuery, {"path": ":memory:", "openAt": "first-search", **config})
    return root.require(SessionQuery)


def conversation(store: SessionStore, id: str, texts: Sequence[str], **meta: Any) -> Session:
    """Make a live session in which a user says some things and gets an answer to each."""
    session = store.create(id, meta=SessionMeta(**meta))
    for turn, text in enumerate(texts, 1):
        open_turn(session, turn)
        say(session, text)
        close_turn(session, turn)
    return session


def with_tool(session: Session, result: str) -> None:
    """Append a call of a tool and its result."""
    reply(session, "let me look", calls={"c1": "read"})
    answer(session, call(session, "c1"), result)


def title(session: Session, text: str) -> None:
    """Give a session a title."""
    data = SessionTitleData(title=text, messageSeqs=[], source={"kind": "user"})
    session.append(SESSION_TITLE, data)


async def store_and_leave(home: Home, id: str, texts: Sequence[str], **meta: Any) -> None:
    """Store a session that is not live afterwards."""
    held: list[Any] = []

    def body(ctx: Context) -> None:
        held.append(conversation(ctx.require(SessionStore), id, texts, **meta))

    fiber = await home.root.inject([SessionStore], body)
    await home.store.flush(held[0])
    await fiber.dispose()
    await home.settle()


def damage(folder: Path, id: str) -> None:
    """Spoil the middle of a stored log."""
    [path] = [each for each in folder.rglob("session.jsonl*") if each.parent.name == id]
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 4] = b"\xff\xff\xff\xff"
    path.write_bytes(data)


def code_of(error: Any) -> str:
    """Return the code of a raised error, without what all have in common."""
    assert isinstance(error.value, SessionQueryError)
    return error.value.code.removeprefix("SESSION_QUERY_")
