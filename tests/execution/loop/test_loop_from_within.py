"""Work of a turn that waits for the end of what the turn is part of: it fails, nothing hangs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from loop_harness import Loop, ScriptedModel, add_tool, calls, mount, reasons, results, user

from dsh.execution.agent.events import AGENT_PRE_STEP, AGENT_TURN_STOPPING
from dsh.execution.agent.service import (
    Agent,
    AgentHandle,
    AgentOptions,
    AgentRegistry,
    CreateAgent,
)
from dsh.execution.loop.service import AgentLoop, DisposalFromWithin, IdleFromWithin
from dsh.execution.tools.events import TOOLS_EXECUTE
from dsh.execution.tools.service import ToolRunContext
from dsh.kernel import Context
from dsh.model.messages import SessionId

DISPOSED = {"kind": "aborted", "reason": {"kind": "disposed"}}
PROMPT_S = 5.0
"""Well below the grace period, which is what a deadlock would last."""


@pytest.fixture
async def loop(model: ScriptedModel) -> Loop:
    return await mount(Context(), model, graceMs=10_000, tools={"graceMs": 10_000})


async def in_a_task(handle: AgentHandle, loop: Loop) -> None:
    await asyncio.create_task(handle.dispose())


async def with_others(handle: AgentHandle, loop: Loop) -> None:
    await asyncio.gather(handle.dispose(), asyncio.sleep(0))


WAYS: dict[str, Callable[[AgentHandle, Loop], Awaitable[Any]]] = {
    "its handle": lambda handle, _: handle.dispose(),
    "its handle in a task": in_a_task,
    "its handle among others": with_others,
    "the loop": lambda _, loop: loop.root.require(AgentLoop).ctx.fiber.dispose(),
    "the registry": lambda _, loop: loop.root.require(AgentRegistry).ctx.fiber.dispose(),
    "the root": lambda _, loop: loop.root.dispose(),
}


@pytest.mark.parametrize("way", list(WAYS))
async def test_a_tool_that_waits_for_the_end_of_what_it_runs_in_is_stopped_at_once(
    loop: Loop, way: str
) -> None:
    handle = await loop.create()
    agent = handle.agent

    async def end() -> str:
        await WAYS[way](handle, loop)
        return "never"

    add_tool(loop.root, end)
    loop.model.will(calls(("c", "end", "{}")))
    began = time.monotonic()
    agent.followup(user("go"))
    await agent.when_idle()
    await handle.dispose()
    await loop.root.dispose()

    assert time.monotonic() - began < PROMPT_S
    assert reasons(agent) == [DISPOSED]
    assert [code for *_, code in results(agent)] == ["ABORTED"]


@pytest.mark.parametrize("way", ["its parent", "the root"])
async def test_a_tool_of_a_child_that_waits_for_the_end_of_its_parent_is_stopped_at_once(
    loop: Loop, way: str
) -> None:
    parent = await loop.create("parent")
    children: list[Any] = []

    async def end() -> str:
        await (parent.dispose() if way == "its parent" else loop.root.dispose())
        return "never"

    async def delegate(run: ToolRunContext) -> str:
        assert run.agent is not None
        child = await run.agent.ctx.require(AgentRegistry).create(
            CreateAgent(
                session_id=SessionId("child"),
                agent_options=AgentOptions(provider="scripted", model="m"),
            )
        )
        children.append(child.agent)
        child.agent.followup(user("end it"))
        await child.agent.when_idle()
        return "never"

    add_tool(loop.root, end)
    add_tool(loop.root, delegate)
    loop.model.will(calls(("p", "delegate", "{}")), calls(("c", "end", "{}")))
    began = time.monotonic()
    parent.agent.followup(user("go"))
    await parent.agent.when_idle()
    await parent.dispose()
    await loop.root.dispose()

    assert time.monotonic() - began < PROMPT_S
    assert reasons(parent.agent) == [DISPOSED]
    assert reasons(children[0]) == [DISPOSED]


@pytest.mark.parametrize("seam", [AGENT_PRE_STEP, AGENT_TURN_STOPPING], ids=lambda seam: seam.name)
async def test_a_listener_that_waits_for_the_end_of_the_root_is_cancelled_after_the_grace(
    model: ScriptedModel, seam: Any
) -> None:
    loop = await mount(Context(), model, graceMs=50)
    ended: list[BaseException] = []

    async def end(*_: Any) -> Any:
        try:
            await loop.root.dispose()
        except asyncio.CancelledError as error:
            ended.append(error)
            raise

    loop.root.on(seam, end)
    agent = await loop.agent()
    loop.model.will("words")
    agent.followup(user("go"))
    await agent.when_idle()
    await loop.root.dispose()
    assert len(ended) == 1
    assert reasons(agent) == [DISPOSED]


async def test_a_listener_that_waits_for_the_end_of_its_agent_is_refused(loop: Loop) -> None:
    handle = await loop.create()
    loop.model.will("ok")
    refused: list[BaseException] = []

    async def end(_: Any) -> None:
        try:
            await handle.dispose()
        except DisposalFromWithin as error:
            refused.append(error)
            raise

    loop.root.on(AGENT_TURN_STOPPING, end)
    began = time.monotonic()
    handle.agent.followup(user("first"))
    await handle.agent.when_idle()
    await handle.dispose()
    await loop.root.dispose()

    assert time.monotonic() - began < PROMPT_S
    assert len(refused) == 1
    assert reasons(handle.agent) == [DISPOSED]


async def in_a_listener(loop: Loop, agent: Agent, wait: Callable[[], Awaitable[None]]) -> None:
    loop.root.on(AGENT_TURN_STOPPING, lambda _: wait())
    agent.followup(user("go"))


async def in_a_wrapper(loop: Loop, agent: Agent, wait: Callable[[], Awaitable[None]]) -> None:
    async def act() -> str:
        return "done"

    async def around(_: Any, following: Any) -> Any:
        await wait()
        return await following()

    add_tool(loop.root, act)
    loop.root.on(TOOLS_EXECUTE, around)
    loop.model.replies.insert(0, calls(("c", "act", "{}")))
    agent.followup(user("go"))


async def in_maintenance(loop: Loop, agent: Agent, wait: Callable[[], Awaitable[None]]) -> None:
    await agent.run_maintenance(lambda _: wait())


@pytest.mark.parametrize("place", [in_a_listener, in_a_wrapper, in_maintenance])
async def test_what_keeps_an_agent_busy_cannot_wait_until_it_is_idle(
    loop: Loop, place: Callable[..., Awaitable[None]]
) -> None:
    agent = (await loop.create()).agent
    refused: list[IdleFromWithin] = []

    async def wait() -> None:
        try:
            await agent.when_idle()
        except IdleFromWithin as error:
            refused.append(error)

    loop.model.will("words")
    await place(loop, agent, wait)
    await agent.when_idle()
    await loop.root.dispose()
    assert len(refused) == 1
