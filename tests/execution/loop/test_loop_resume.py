"""Bringing stored agents back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest
from loop_harness import (
    Loop,
    assert_nothing_live,
    events_of,
    shelve,
    user,
)

from dsh.execution.agent.events import (
    AGENT_SESSION_START,
)
from dsh.execution.agent.service import AgentOptions, AgentRegistry, ResumeAgent
from dsh.execution.loop.service import (
    CreationAborted,
    NoPersistence,
)
from dsh.kernel import Context, InactiveEffect
from dsh.model.messages import SessionId
from dsh.state.session.service import SessionStore
from dsh.state.session.session import Session


async def resume(loop: Loop, id: str = "s1", **options: Any) -> Any:
    options.setdefault("agent_options", AgentOptions(provider="scripted", model="m"))
    return await loop.agents.resume(ResumeAgent(resume_session_id=SessionId(id), **options))


async def test_resuming_needs_a_store(loop: Loop) -> None:
    with pytest.raises(NoPersistence, match="session-persistence"):
        await resume(loop)


async def test_a_resumed_agent_goes_on_counting_and_keeps_what_waited(loop: Loop) -> None:
    handle = await loop.create()
    loop.model.will("one", "two")
    handle.agent.followup(user("first"))
    await handle.agent.when_idle()
    handle.agent.inject(user("waiting"))
    stored = Session.create(
        "s1",
        list(handle.agent.session.events),
        handle.agent.session.header,
        types=list(loop.root.require(SessionStore).declared().values()),
    )
    await handle.dispose()
    await shelve(loop, stored)
    sources: list[str] = []
    loop.root.on(AGENT_SESSION_START, lambda event: sources.append(event.source))

    again = await resume(loop)
    again.agent.followup(user("second"))
    await again.agent.when_idle()

    assert sources == ["resume"]
    assert [data["turn"] for data in events_of(again.agent, "turn/start")] == [1, 2]
    texts = [data["content"][0]["text"] for data in events_of(again.agent, "user/message")]
    assert texts == ["first", "waiting", "second"]
    reasons_logged = [data["reason"] for data in events_of(again.agent, "request/header")]
    assert reasons_logged == ["initial", "resume"]
    await again.dispose()


async def test_a_failed_resume_frees_the_session_and_the_id(loop: Loop) -> None:
    shelf = await shelve(loop, Session.create("s1"))

    def refuse(_: Any) -> None:
        raise RuntimeError("refused")

    with pytest.raises(RuntimeError, match="refused"):
        await resume(loop, setup=refuse)
    assert shelf.released == ["s1"]
    assert_nothing_live(loop)
    with pytest.raises(LookupError, match="not found"):
        await resume(loop, "unknown")
    assert (await resume(loop)).agent.id == "s1"


async def test_unloading_the_owner_during_a_load_that_never_ends_frees_the_id(loop: Loop) -> None:
    shelf = await shelve(loop, Session.create("s1"))
    shelf.gate = asyncio.Event()
    tasks: list[Awaitable[Any]] = []

    def own(ctx: Context) -> None:
        agents = ctx.require(AgentRegistry)
        options = ResumeAgent(resume_session_id=SessionId("s1"))
        tasks.append(asyncio.create_task(agents.resume(options)))

    owner = await loop.root.inject([AgentRegistry], own)
    await asyncio.sleep(0)
    await owner.dispose()
    with pytest.raises((CreationAborted, InactiveEffect)):
        await tasks[0]
    shelf.gate.set()
    shelf.gate = None
    assert_nothing_live(loop)
    await resume(loop)
