from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest
from initiator_faces import RegistryFace, depth, face_of
from loop_harness import Loop, add_tool, calls, mount, reasons, says, until, user

from dsh.base.signal import AbortController
from dsh.execution.agent.events import (
    AGENT_PRE_STEP,
    AGENT_REQUEST,
    AGENT_TURN_STOPPING,
)
from dsh.execution.agent.registry import LiveAgents
from dsh.execution.agent.service import Agent, AgentOptions, AgentRegistry, CreateAgent
from dsh.execution.agent_execution import plugin as agent_execution
from dsh.execution.prompt.events import SYSTEM_PROMPT_ASSEMBLE
from dsh.execution.tools.events import TOOLS_EXECUTE
from dsh.execution.tools.service import ToolInput, ToolRunContext, ToolRuntime
from dsh.kernel import Context, InactiveEffect
from dsh.model.chunks import finish
from dsh.model.llm.service import GenerateOptions
from dsh.model.messages import CallId, SessionId


@pytest.fixture
async def face(loop: Loop, face_label: str) -> RegistryFace:
    """One face of the store that the loop's drivers run under."""
    await loop.root.plugin(agent_execution)
    return face_of(loop.root, face_label)


async def test_overlapping_drivers_keep_their_agents_in_the_provider(
    loop: Loop, face: RegistryFace
) -> None:
    one, two = await loop.agent("one"), await loop.agent("two")
    seen: dict[str, list[Agent | None]] = {"one": [], "two": []}
    both, parked = asyncio.Event(), []

    async def reply(options: GenerateOptions) -> Any:
        mine = seen[str(options.session_id)]
        mine.append(face.current())
        parked.append(1)
        if len(parked) == 2:
            both.set()
        await both.wait()
        mine.append(face.current())
        async for chunk in says("ok")(options):
            yield chunk
            mine.append(face.current())

    loop.model.otherwise = reply
    one.followup(user("x"))
    two.followup(user("y"))
    assert face.current() is None
    await asyncio.gather(one.when_idle(), two.when_idle())

    assert set(seen["one"]) == {one}
    assert set(seen["two"]) == {two}
    assert face.current() is None


async def test_one_signal_runs_through_a_turn_and_the_next_has_its_own(
    loop: Loop, face: RegistryFace
) -> None:
    agent = await loop.agent()
    signals: dict[int, list[object]] = {1: [], 2: []}
    initiators: set[Agent | None] = set()
    current = 1

    def note(signal: object) -> None:
        signals[current].append(signal)
        initiators.add(face.current())

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


async def test_a_child_made_in_a_tool_runs_as_itself(loop: Loop, face: RegistryFace) -> None:
    parent = await loop.agent("parent")
    seen: dict[str, object] = {}
    go = asyncio.Event()

    async def inner() -> str:
        seen["child's tool"] = face.current()
        await go.wait()
        return "done"

    async def delegate(run: ToolRunContext) -> str:
        async def setup(ctx: Context) -> None:
            await asyncio.sleep(0)
            seen["setup"] = face.current()
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
        seen["parent while the child runs"] = face.current()
        assert child.status == "running"
        go.set()
        await child.when_idle()
        seen["parent after"] = face.current()
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


async def test_agentless_calls_stay_free_of_identity(loop: Loop, face: RegistryFace) -> None:
    seen: list[Agent | None] = []

    async def act() -> str:
        seen.append(face.current())
        await asyncio.sleep(0)
        seen.append(face.current())
        return "done"

    add_tool(loop.root, act)
    call = ToolInput(CallId("c"), "act", {}, AbortController().signal)
    await loop.root.require(ToolRuntime).execute(call)
    assert seen == [None, None]


async def test_a_plugin_that_a_tool_mounts_runs_as_nobodys_work(
    loop: Loop, face: RegistryFace
) -> None:
    agent = await loop.agent()
    seen: list[Agent | None] = []

    async def body(ctx: Context) -> None:
        seen.append(face.current())
        await asyncio.sleep(0)
        seen.append(face.current())

    async def extend() -> str:
        await loop.root.plugin(body)
        seen.append(face.current())
        return "done"

    add_tool(loop.root, extend)
    loop.model.will(calls(("c", "extend", "{}")), "done")
    agent.followup(user("x"))
    await agent.when_idle()
    assert seen == [None, None, agent]


async def test_a_transport_may_read_the_agent_and_nothing_of_it_is_logged(
    loop: Loop, face: RegistryFace
) -> None:
    agent = await loop.agent("secret-id")
    headers: list[dict[str, str]] = []

    async def reply(options: GenerateOptions) -> Any:
        headers.append({"X-Session": face.require().session.id})
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
    assert all("secret-id" not in str(request.tools) for request in loop.model.requests)


async def test_without_a_registry_the_loop_never_becomes_active(root: Context, model: Any) -> None:
    loop = await mount(root, model)
    registry = loop.agents.ctx.fiber
    await registry.dispose()
    assert root.get("agent_loop") is None
    await root.plugin(LiveAgents)
    await until(lambda: root.get("agent_loop") is not None)


async def test_a_reference_to_a_disposed_agent_gives_no_power(
    loop: Loop, face: RegistryFace
) -> None:
    handle = await loop.create()
    kept: list[Agent] = []

    async def reply(options: GenerateOptions) -> Any:
        kept.append(face.require())
        async for chunk in says("x")(options):
            yield chunk

    loop.model.otherwise = reply
    handle.agent.followup(user("x"))
    await handle.agent.when_idle()
    await handle.dispose()

    (agent,) = kept
    assert loop.agents.get(agent.id) is None
    assert agent not in loop.agents.all()
    with pytest.raises(InactiveEffect):
        agent.ctx.on(AGENT_TURN_STOPPING, lambda _: None)
    agent.followup(user("more"))
    await agent.when_idle()
    assert len(kept) == 1


class Parked:
    """A reply that parks, and notes who it works for when it is told to stop."""

    def __init__(self, face: RegistryFace) -> None:
        self.face = face
        self.reached = asyncio.Event()
        self.seen: list[Agent | None] = []

    async def __call__(self, options: GenerateOptions) -> Any:
        self.seen.append(self.face.current())
        self.reached.set()
        assert options.signal is not None
        try:
            await options.signal.run(asyncio.Event().wait())
        finally:
            self.seen.append(self.face.current())
            await asyncio.sleep(0)
            self.seen.append(self.face.current())
        yield finish("stop")


async def test_a_restart_of_the_registry_drains_the_driver_with_its_identity(
    loop: Loop, face: RegistryFace
) -> None:
    agent = await loop.agent()
    loop.model.otherwise = parked = Parked(face)
    agent.followup(user("x"))
    await parked.reached.wait()

    await loop.agents.ctx.fiber.restart()

    assert parked.seen == [agent] * 3
    assert reasons(agent) == [{"kind": "aborted", "reason": {"kind": "disposed"}}]
    for call in face.calls():
        with pytest.raises(face.disposed, match=face.disposed_text):
            call()
    await until(lambda: loop.root.get(face.key) is not None)
    await until(lambda: loop.root.get("agent_loop") is not None)
    renewed = type(face)(loop.root)
    seen: list[Agent | None] = []

    async def reply(options: GenerateOptions) -> Any:
        seen.append(renewed.current())
        async for chunk in says("x")(options):
            yield chunk

    loop.model.otherwise = reply
    follower = await loop.agent("s2")
    follower.followup(user("y"))
    await follower.when_idle()
    assert seen == [follower]


async def test_the_end_of_the_root_drains_the_driver_with_its_identity(
    loop: Loop, face: RegistryFace
) -> None:
    agent = await loop.agent()
    loop.model.otherwise = parked = Parked(face)
    agent.followup(user("x"))
    await parked.reached.wait()

    await loop.root.dispose()

    assert parked.seen == [agent] * 3
    assert reasons(agent) == [{"kind": "aborted", "reason": {"kind": "disposed"}}]
    for call in face.calls():
        with pytest.raises(face.disposed, match=face.disposed_text):
            call()


async def wake_in_turn(loop: Loop, face: RegistryFace, times: int) -> list[weakref.ref[Any]]:
    """Let two agents wake each other, dispose of both, and return what is left to see of them."""
    handles = [await loop.create(name) for name in ("ping", "pong")]
    agents = {handle.agent.id: handle.agent for handle in handles}
    left = times

    async def reply(options: GenerateOptions) -> Any:
        nonlocal left
        assert options.session_id is not None
        assert face.current() is agents[options.session_id]
        assert depth() <= 6
        left -= 1
        if left:
            other = "pong" if options.session_id == "ping" else "ping"
            agents[SessionId(other)].followup(user("wake"))
        async for chunk in says("x")(options):
            yield chunk

    loop.model.otherwise = reply
    agents[SessionId("ping")].followup(user("start"))
    while any(agent.status == "running" for agent in agents.values()):
        for agent in agents.values():
            await agent.when_idle()
    assert left == 0
    for handle in handles:
        await handle.dispose()
        assert reasons(handle.agent)[-1] == {"kind": "completed"}
    loop.model.requests.clear()
    loop.model.otherwise = None
    return [weakref.ref(agent) for agent in agents.values()]


async def test_agents_that_wake_each_other_stay_collectable_and_their_frames_few(
    loop: Loop, face: RegistryFace
) -> None:
    gone = await wake_in_turn(loop, face, 300)
    gc.collect()
    assert [agent() for agent in gone] == [None, None]
