"""A database server that dies in the middle of a turn."""

from __future__ import annotations

import asyncio

import pytest
from crash_media import ServerCrash
from loop_harness import assert_balanced
from postgres_server import PostgresServer
from working_agents import WorkingAgents

from dsh.kernel import Context


@pytest.mark.slow
@pytest.mark.timeout(90)
async def test_a_turn_fails_when_the_server_dies_and_the_next_goes_on_when_it_is_back(
    root: Context, killable_server: PostgresServer
) -> None:
    media = ServerCrash(killable_server.dsn, connectTimeoutMs=1000)
    agents = await WorkingAgents(root, media.medium).open()
    agent = await agents.loop.agent("s")
    assert await agents.turn(agent) == {"kind": "completed"}

    async def kill() -> None:
        await asyncio.to_thread(killable_server.kill)

    agents.during["s", 2] = kill
    reason = await agents.turn(agent)
    assert reason["kind"] == "error"
    assert "could not be used" in str(reason), reason
    assert_balanced(agent.session)

    await asyncio.to_thread(killable_server.start)
    stored = await agents.stored("s")
    assert len(stored) >= agents.acknowledged["s"]
    assert stored == list(agent.session.events[: len(stored)])
    before = media.stored("s")
    assert await agents.turn(agent) == {"kind": "completed"}
    await agents.flush(agent)
    assert await agents.stored("s") == list(agent.session.events)
    assert media.stored("s")[: len(before)] == before
