from __future__ import annotations

import asyncio
from typing import Any

from loop_harness import Held, Loop, add_tool, calls, mount, reasons, says, until, user

from dsh.base.signal import AbortController
from dsh.execution.agent.events import (
    AGENT_PRE_STEP,
    AGENT_REQUEST,
    AGENT_TURN_STOPPING,
)
from dsh.execution.agent.registry import LiveAgents
from dsh.execution.agent.service import Agent, AgentOptions, AgentRegistry, CreateAgent
from dsh.execution.prompt.events import SYSTEM_PROMPT_ASSEMBLE
from dsh.execution.tools.events import TOOLS_EXECUTE
from dsh.execution.tools.service import ToolInput, ToolRunContext, ToolRuntime
from dsh.kernel import Context
from dsh.model.llm.service import GenerateOptions
from dsh.model.messages import CallId, SessionId


async def test_overlapping_drivers_keep_their_agents_in_the_provider(loop: Loop) -> None:
    agents = loop.agents
    one, two = await loop.agent("one"), await loop.agent("two")
    seen: dict[str, list[Agent | None]] = {"one": [], "two": []}
    both, parked = asyncio.Event(), []

    async def reply(options: GenerateOptions) -> Any:
        mine = seen[str(options.session_id)]
        mine.append(agents.current_initiator())
        parked.append(1)
        if len(parked) == 2:
            both.set()
        await both.wait()
        mine.append(agents.current_initiator())
        async for chunk in says("ok")(options):
            yield chunk
            mine.append(agents.current_initiator())

    loop.model.otherwise = reply
    one.followup(user("x"))
    two.followup(user("y"))
    assert agents.current_initiator() is None
    await asyncio.gather(one.when_idle(), two.when_idle())

    assert set(seen["one"]) == {one}
    assert set(seen["two"]) == {two}
    assert agents.current_initiator() is None


async def test_one_signal_runs_through_a_turn_and_the_next_has_its_own(loop: Loop) -> None:
    agents = loop.agents
    agent = await loop.agent()
    signals: dict[int, list[object]] = {1: [], 2: []}
    initiators: set[Agent | None] = set()
    current = 1

    def note(signal: object) -> None:
        signals[current].append(signal)
        initiators.add(agents.current_initiator())

    async def at(event: Any, next: Any) -> Any:
        note(event.signal)
        return await next()

    async def at_assemble(event: Any, next: Any) -> Any:
        note(event.context.signal)
        return await next()

    async def act(run: ToolRunContext) -> str:
        note(run.signal)
        return "done"

    loop.root.on(SYSTEM_PROMPT_ASSEMBLE, at_assemble)
    loop.root.on(AGENT_PRE_STEP, at)
    loop.root.on(AGENT_REQUEST, at)
    loop.root.on(TOOLS_EXECUTE, at)
    loop.root.on(AGENT_TURN_STOPPING, lambda event: note(event.signal))
    add_tool(loop.root, act)
    loop.model.will(calls(("c1", "act", "{}")), "one", "two")
    agent.followup(user("x"))
    await agent.when_idle()
    current = 2
    agent.followup(user("y"))
    await agent.when_idle()

    first = {id(signal) for signal in signals[1]} | {
        id(request.signal) for request in loop.model.requests[:2]
    }
    second = {id(signal) for signal in signals[2]} | {id(loop.model.requests[2].signal)}
    assert len(first) == len(second) == 1
    assert first != second
    assert initiators == {agent}


async def test_turns_of_one_driver_have_signals_of_their_own(loop: Loop) -> None:
    agent = await loop.agent()
    loop.model.will("one", "two")
    agent.followup(user("x"))
    agent.followup(user("y"))
    await agent.when_idle()
    first, second = loop.model.requests
    assert first.signal is not second.signal


async def test_a_child_made_in_a_tool_runs_as_itself(loop: Loop) -> None:
    agents = loop.agents
    parent = await loop.agent("parent")
    seen: dict[str, object] = {}
    go = asyncio.Event()

    async def inner() -> str:
        seen["child's tool"] = agents.current_initiator()
        await go.wait()
        return "done"

    async def delegate(run: ToolRunContext) -> str:
        async def setup(ctx: Context) -> None:
            await asyncio.sleep(0)
            seen["setup"] = agents.current_initiator()
            seen["setup belongs to"] = ctx.agent

        assert run.agent is not None
        handle = await run.agent.ctx.require(AgentRegistry).create(
            CreateAgent(
                session_id=SessionId("child"),
                agent_options=AgentOptions(provider="scripted", model="m"),
                setup=setup,
            )
        )
        child = handle.agent
        seen["child"] = child
        child.followup(user("work"))
        await until(lambda: "child's tool" in seen)
        seen["parent while the child runs"] = agents.current_initiator()
        assert child.status == "running"
        go.set()
        await child.when_idle()
        seen["parent after"] = agents.current_initiator()
        await handle.dispose()
        return "delegated"

    add_tool(loop.root, delegate)
    add_tool(loop.root, inner)
    loop.model.will(calls(("p", "delegate", "{}")), calls(("c", "inner", "{}")), "child", "parent")
    parent.followup(user("x"))
    await parent.when_idle()

    child = seen["child"]
    assert seen["setup"] is parent
    assert seen["setup belongs to"] is child
    assert seen["child's tool"] is child
    assert seen["parent while the child runs"] is parent
    assert seen["parent after"] is parent
    assert reasons(parent) == [{"kind": "completed"}]


async def test_agentless_calls_stay_free_of_identity(loop: Loop) -> None:
    agents = loop.agents
    seen: list[Agent | None] = []

    async def act() -> str:
        seen.append(agents.current_initiator())
        await asyncio.sleep(0)
        seen.append(agents.current_initiator())
        return "done"

    add_tool(loop.root, act)
    call = ToolInput(CallId("c"), "act", {}, AbortController().signal)
    await loop.root.require(ToolRuntime).execute(call)
    assert seen == [None, None]


async def test_a_transport_may_read_the_agent_and_nothing_of_it_is_logged(loop: Loop) -> None:
    agents = loop.agents
    agent = await loop.agent("secret-id")
    headers: list[dict[str, str]] = []

    async def reply(options: GenerateOptions) -> Any:
        headers.append({"X-Session": agents.require_initiator().session.id})
        async for chunk in (calls(("c", "act", "{}")) if len(headers) == 1 else says("x"))(options):
            yield chunk

    async def act() -> str:
        return "done"

    add_tool(loop.root, act)
    loop.model.otherwise = reply
    agent.followup(user("x"))
    await agent.when_idle()

    assert headers == [{"X-Session": "secret-id"}] * 2
    assert "secret-id" not in str(list(agent.session.events))


async def test_without_a_registry_the_loop_never_becomes_active(root: Context, model: Any) -> None:
    loop = await mount(root, model)
    registry = loop.agents.ctx.fiber
    await registry.dispose()
    assert root.get("agent_loop") is None
    await root.plugin(LiveAgents)
    await until(lambda: root.get("agent_loop") is not None)


async def test_a_reference_to_a_disposed_agent_gives_no_power(loop: Loop) -> None:
    agents = loop.agents
    handle = await loop.create()
    kept: list[Agent] = []
    held = Held()
    held.go.set()

    async def reply(options: GenerateOptions) -> Any:
        kept.append(agents.require_initiator())
        async for chunk in says("x")(options):
            yield chunk

    loop.model.otherwise = reply
    handle.agent.followup(user("x"))
    await handle.agent.when_idle()
    await handle.dispose()

    (agent,) = kept
    assert agents.get(agent.id) is None
    agent.followup(user("more"))
    await agent.when_idle()
    assert len(kept) == 1
