"""A thousand agents in one process, a hundred of them at work at once."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest
from scale_harness import Crowd, blocks, gather, reasons

from dsh.base.json import dumps, freeze, loads
from dsh.execution.agent.service import AgentHandle
from dsh.kernel import Context
from dsh.model.messages import create_user_message

ALIVE, AT_WORK, STEPS = 1_000, 100, 50


async def drive(crowd: Crowd, handles: list[AgentHandle], steps: int) -> None:
    crowd.asked.clear()
    crowd.steps = steps
    for handle in handles:
        crowd.asked[handle.agent.id] = 0
        handle.agent.followup(create_user_message("go"))
    await asyncio.gather(*(handle.agent.when_idle() for handle in handles))


@pytest.mark.timeout(120)
async def test_a_hundred_of_a_thousand_agents_advance_side_by_side_as_themselves(
    root: Context,
) -> None:
    crowd = await gather(root, Crowd)
    handles = [await crowd.create(f"agent-{number}") for number in range(ALIVE)]
    busy = handles[:: ALIVE // AT_WORK]

    await drive(crowd, busy, STEPS)

    assert crowd.strangers == []
    assert crowd.worked == {handle.agent.id: STEPS for handle in busy}
    assert {tuple(reasons(handle)) for handle in busy} == {("completed",)}
    assert max(crowd.spreads) <= 2
    asleep = [handle for handle in handles if handle not in busy]
    assert {len(handle.agent.session.events) for handle in asleep} == {0}
    assert crowd.agents.current_initiator() is None


async def test_work_leaves_nothing_in_memory_but_its_log(root: Context) -> None:
    crowd = await gather(root, Crowd)
    handles = [await crowd.create(f"agent-{number}") for number in range(AT_WORK)]
    await drive(crowd, handles, 2)  # caches fill
    known = {handle.agent.id: len(handle.agent.session.events) for handle in handles}
    before = blocks()

    await drive(crowd, handles, 10)

    grown = blocks() - before
    logs = [handle.agent.session.events[known[handle.agent.id] :] for handle in handles]
    before = blocks()
    copies = [freeze(loads(dumps(event))) for log in logs for event in log]
    assert len(copies) >= 10 * AT_WORK
    assert grown < blocks() - before


async def test_agents_that_have_gone_leave_nothing_in_memory(root: Context) -> None:
    crowd = await gather(root, Crowd)

    async def generation() -> None:
        handles = [await crowd.create(f"agent-{number}") for number in range(AT_WORK)]
        await drive(crowd, handles, 3)
        for handle in handles:
            await handle.dispose()
        crowd.forget()

    await generation()
    await generation()
    before = blocks()
    for _ in range(5):
        await generation()
    assert blocks() - before < AT_WORK


async def test_an_agent_with_tools_of_its_own_is_let_go_at_once(root: Context) -> None:
    crowd = await gather(root, Crowd)
    handle = await crowd.create("agent", own_tools=5)
    await drive(crowd, [handle], 2)
    gone = weakref.ref(handle.agent)

    await handle.dispose()
    del handle
    crowd.forget()
    gc.collect()

    assert gone() is None
