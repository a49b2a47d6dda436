"""Plugins that are swapped while a turn runs: the step ends with what it began with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from loop_harness import (
    Held,
    Loop,
    ScriptedModel,
    add_tool,
    assert_balanced,
    calls,
    events_of,
    reasons,
    results,
    ticks,
    until,
    user,
)

from dsh.base.signal import AbortController
from dsh.control.retry import policy as retry_policy
from dsh.execution.agent.service import Agent, AgentOptions
from dsh.execution.tools.author import define_tool
from dsh.execution.tools.runtime import LayeredToolRuntime
from dsh.execution.tools.service import ToolRuntime
from dsh.kernel import Context, Fiber, FiberState, LeaseExpired
from dsh.model.chunks import StreamChunk, text_delta
from dsh.model.llm.runtime import AdapterRuntime
from dsh.model.llm.service import (
    Backoff,
    GenerateOptions,
    LlmProviderInfo,
    LlmRuntime,
    NormalRetry,
    RetryPolicy,
)


@pytest.fixture(autouse=True)
def _patient(root: Context) -> None:
    """A wait that should not be is a test that hangs, not one that is slow."""
    root.set_lease_grace(3600)


@pytest.fixture
async def reported(root: Context) -> list[BaseException]:
    """What the root contained."""
    found: list[BaseException] = []
    root.set_reporter(lambda error, owner, label: found.append(error))
    return found


async def tool_body() -> str:
    return "said"


class Gate:
    """A tool body that waits to be let go, once it was reached."""

    def __init__(self) -> None:
        self.reached, self.go = asyncio.Event(), asyncio.Event()

    async def pass_through(self) -> None:
        self.reached.set()
        await self.go.wait()


def tool_plugin(word: str, gate: Gate | None = None, name: str = "say") -> Any:
    async def say() -> str:
        if gate is not None:
            await gate.pass_through()
        return word

    def apply(ctx: Context) -> None:
        add_tool(ctx, say, name=name)

    apply.inject = ("tools",)  # type: ignore[attr-defined]
    return apply


def adapter_plugin(model: ScriptedModel, provider: str = "other") -> Any:
    def apply(ctx: Context) -> None:
        ctx.require(LlmRuntime).register_adapter([provider], model)

    apply.inject = ("llm",)  # type: ignore[attr-defined]
    return apply


class Patient(ScriptedModel):
    """A scripted model whose failures are retried at once."""

    def retry_policy(self, provider: str) -> RetryPolicy | None:
        return NormalRetry(max_retries=2, backoff=Backoff(0.001, 0.001))


async def other_agent(loop: Loop) -> Agent:
    """An agent whose model is served by a plugin that the test mounts."""
    return await loop.agent("s2", agent_options=AgentOptions(provider="other", model="m"))


async def swap(root: Context, old: Fiber, new: Any) -> Fiber:
    await old.dispose()
    return await root.plugin(new)


def texts(agent: Agent) -> list[str]:
    return [text for *_, text, _ in results(agent)]


# tools


async def test_a_call_ends_on_its_tool_and_the_next_step_has_the_new_one(loop: Loop) -> None:
    agent, gate = await loop.agent(), Gate()
    old = await loop.root.plugin(tool_plugin("old", gate))
    loop.model.will(calls(("1", "say", "{}"), ("2", "say", "{}")), calls(("3", "say", "{}")), "end")
    agent.followup(user("go"))
    await gate.reached.wait()

    swapping = asyncio.create_task(swap(loop.root, old, tool_plugin("new")))
    await ticks(20)
    assert old.state is FiberState.ACTIVE
    gate.go.set()
    await agent.when_idle()
    await swapping

    assert texts(agent) == ["old", "old", "new"]
    assert_balanced(agent.session)


async def test_a_step_waits_a_moment_for_tools_that_are_being_swapped(loop: Loop) -> None:
    agent = await loop.agent()
    old = await loop.root.plugin(tool_plugin("old"))
    await old.dispose()
    loop.model.will(calls(("1", "say", "{}")), "end")
    agent.followup(user("go"))
    await ticks(20)
    assert loop.model.requests == []
    await loop.root.plugin(tool_plugin("new"))
    await agent.when_idle()

    assert texts(agent) == ["new"]


async def test_a_step_goes_on_without_a_tool_that_stays_away(loop: Loop) -> None:
    agent = await loop.agent()
    tools = loop.root.require(LayeredToolRuntime)
    tools._layers.swaps.wait_s = 0.02
    old = await loop.root.plugin(tool_plugin("old"))
    await old.dispose()
    loop.model.will("one", "two")
    for _ in range(2):
        agent.followup(user("go"))
        await agent.when_idle()

    assert [request.tools for request in loop.model.requests] == [None, None]


async def test_a_tool_that_its_plugin_took_back_itself_is_not_waited_for(loop: Loop) -> None:
    agent = await loop.agent()
    loop.root.require(LayeredToolRuntime)._layers.swaps.wait_s = 3600
    tool = define_tool(tool_body, name="say", description="says")
    await loop.root.require(ToolRuntime).register(tool).dispose()
    loop.model.will("end")
    agent.followup(user("go"))
    await agent.when_idle()

    assert reasons(agent) == [{"kind": "completed"}]


async def test_tools_are_held_from_the_request_on(loop: Loop) -> None:
    agent, held = await loop.agent(), Held()
    old = await loop.root.plugin(tool_plugin("old"))
    loop.model.will(held, "end")
    agent.followup(user("go"))
    await held.reached.wait()

    assert old.leases == ("a step with the tools say",)
    held.go.set()
    await agent.when_idle()

    assert old.leases == ()


async def test_after_the_grace_a_call_runs_on_the_tool_that_is_there_then(
    loop: Loop, reported: list[BaseException]
) -> None:
    loop.root.set_lease_grace(0.01)
    agent, gate = await loop.agent(), Gate()
    old = await loop.root.plugin(tool_plugin("old", gate))
    loop.model.will(calls(("1", "say", "{}"), ("2", "say", "{}")), "end")
    agent.followup(user("go"))
    await gate.reached.wait()

    await swap(loop.root, old, tool_plugin("new"))
    gate.go.set()
    await agent.when_idle()

    assert texts(agent) == ["old", "new"]
    assert [type(error) for error in reported] == [LeaseExpired]
    assert_balanced(agent.session)


async def test_after_the_grace_a_call_whose_tool_is_gone_is_told_so(
    loop: Loop, reported: list[BaseException]
) -> None:
    loop.root.set_lease_grace(0.01)
    agent, gate = await loop.agent(), Gate()
    old = await loop.root.plugin(tool_plugin("old", gate))
    loop.model.will(calls(("1", "say", "{}"), ("2", "say", "{}")), "end")
    agent.followup(user("go"))
    await gate.reached.wait()

    await old.dispose()
    gate.go.set()
    await agent.when_idle()

    assert results(agent)[1] == (
        "2",
        True,
        (
            "Error: tool 'say' was unloaded before this call could start, so nothing was done; "
            "call it again if it is back"
        ),
        "TOOL_UNLOADED",
    )
    assert len(reported) == 1


async def test_a_body_that_lost_its_services_is_told_why(
    loop: Loop, reported: list[BaseException]
) -> None:
    loop.root.set_lease_grace(0.01)
    agent, gate = await loop.agent(), Gate()

    def apply(ctx: Context) -> None:
        async def needy() -> str:
            await gate.pass_through()
            return str(ctx.require("disk"))

        add_tool(ctx, needy)

    apply.inject = ("tools", "disk")  # type: ignore[attr-defined]
    disk = loop.root.provide("disk", "spinning")
    await loop.root.plugin(apply)
    loop.model.will(calls(("1", "needy", "{}")), "end")
    agent.followup(user("go"))
    await gate.reached.wait()

    await disk.dispose()
    gate.go.set()
    await agent.when_idle()

    [(_, failed, text, code)] = results(agent)
    assert (failed, code) == (True, "TOOL_UNLOADED")
    assert "'needy' was unloaded while this call ran, so it may have done part of its work" in text
    assert "disk" in text


async def test_a_service_that_a_running_call_uses_is_swapped_after_it(loop: Loop) -> None:
    agent, gate = await loop.agent(), Gate()

    def apply(ctx: Context) -> None:
        async def needy() -> str:
            before = ctx.require("disk")
            await gate.pass_through()
            return f"{before} {ctx.require('disk')}"

        add_tool(ctx, needy)

    apply.inject = ("tools", "disk")  # type: ignore[attr-defined]

    def disk(word: str) -> Callable[[Context], None]:
        return lambda ctx: ctx.provide("disk", word) and None

    old = await loop.root.plugin(disk("old"))
    tool = await loop.root.plugin(apply)
    loop.model.will(calls(("1", "needy", "{}")), "end")
    agent.followup(user("go"))
    await gate.reached.wait()
    swapping = asyncio.create_task(swap(loop.root, old, disk("new")))
    await ticks(10)
    gate.go.set()
    await agent.when_idle()
    await swapping
    await tool

    loop.model.will(calls(("2", "needy", "{}")), "end")
    agent.followup(user("again"))
    await agent.when_idle()

    assert texts(agent) == ["old old", "new new"]


async def test_a_tool_that_removes_its_own_plugin_ends_normally(loop: Loop) -> None:
    agent = await loop.agent()

    def apply(ctx: Context) -> None:
        async def leave() -> str:
            await ctx.fiber.dispose()
            return "gone"

        add_tool(ctx, leave)

    apply.inject = ("tools",)  # type: ignore[attr-defined]
    fiber = await loop.root.plugin(apply)
    loop.model.will(calls(("1", "leave", "{}")), "end")
    agent.followup(user("go"))
    await agent.when_idle()

    assert texts(agent) == ["gone"]
    assert fiber.state is FiberState.DISPOSED
    assert reasons(agent) == [{"kind": "completed"}]


async def test_a_teardown_in_the_middle_of_a_call_takes_no_grace(loop: Loop) -> None:
    agent, gate = await loop.agent(), Gate()
    await loop.root.plugin(tool_plugin("old", gate))
    loop.model.will(calls(("1", "say", "{}")), "end")
    agent.followup(user("go"))
    await gate.reached.wait()

    async with asyncio.timeout(5):
        await loop.root.dispose()

    assert_balanced(agent.session)
    assert reasons(agent)[0]["kind"] == "aborted"


# models


async def test_a_reply_ends_on_its_adapter_and_the_next_request_has_the_new_one(
    loop: Loop,
) -> None:
    held, first, second = Held(), ScriptedModel(), ScriptedModel()
    old = await loop.root.plugin(adapter_plugin(first.will(held)))
    agent = await other_agent(loop)
    agent.followup(user("go"))
    await held.reached.wait()

    swapping = asyncio.create_task(swap(loop.root, old, adapter_plugin(second.will("two"))))
    await ticks(10)
    assert old.state is FiberState.ACTIVE
    agent.followup(user("more"))
    held.go.set()
    await agent.when_idle()
    await swapping

    assert reasons(agent) == [{"kind": "completed"}] * 2
    assert (len(first.requests), len(second.requests)) == (1, 1)


async def test_a_step_waits_for_a_route_that_is_being_swapped(loop: Loop) -> None:
    model = ScriptedModel().will("hello")
    old = await loop.root.plugin(adapter_plugin(ScriptedModel()))
    agent = await other_agent(loop)
    await old.dispose()
    agent.followup(user("go"))
    await ticks(30)
    assert events_of(agent, "turn/end") == []

    await loop.root.plugin(adapter_plugin(model))
    await agent.when_idle()

    assert reasons(agent) == [{"kind": "completed"}]


async def test_a_step_waits_for_a_route_that_is_about_to_go(loop: Loop) -> None:
    held, model = Held(), ScriptedModel()
    old = await loop.root.plugin(adapter_plugin(ScriptedModel().will(held)))
    first = await other_agent(loop)
    first.followup(user("go"))
    await held.reached.wait()
    swapping = asyncio.create_task(swap(loop.root, old, adapter_plugin(model.will("new"))))
    await ticks(5)
    options = AgentOptions(provider="other", model="m")
    second = await loop.agent("s3", agent_options=options)
    second.followup(user("go"))
    await ticks(20)
    assert events_of(second, "turn/end") == []
    held.go.set()
    await second.when_idle()
    await swapping

    assert len(model.requests) == 1
    assert reasons(second) == [{"kind": "completed"}]


async def test_a_provider_that_never_was_fails_at_once(loop: Loop) -> None:
    agent = await other_agent(loop)
    agent.followup(user("go"))
    async with asyncio.timeout(5):
        await agent.when_idle()

    assert reasons(agent)[0]["error"]["code"] == "NO_ADAPTER"


async def test_a_provider_that_does_not_come_back_fails_in_the_end(loop: Loop) -> None:
    runtime = loop.root.require(LlmRuntime)
    assert isinstance(runtime, AdapterRuntime)
    runtime._watch.wait_s = 0.02
    old = await loop.root.plugin(adapter_plugin(ScriptedModel()))
    await old.dispose()
    agent = await other_agent(loop)
    agent.followup(user("go"))
    await agent.when_idle()

    assert reasons(agent)[0]["error"]["code"] == "NO_ADAPTER"
    assert not runtime._watch._changes.waiting


async def test_an_abort_ends_the_wait_for_a_route(loop: Loop) -> None:
    old = await loop.root.plugin(adapter_plugin(ScriptedModel()))
    await old.dispose()
    agent = await other_agent(loop)
    agent.followup(user("go"))
    await ticks(20)
    agent.cancel({"kind": "user"})
    async with asyncio.timeout(5):
        await agent.when_idle()

    assert reasons(agent)[0]["kind"] == "aborted"


async def test_a_reply_that_is_cut_by_an_unload_is_tried_again(
    loop: Loop, reported: list[BaseException]
) -> None:
    loop.root.set_lease_grace(0.01)
    await loop.root.plugin(retry_policy)
    broken, reached = asyncio.Event(), asyncio.Event()

    async def cut(_: GenerateOptions) -> AsyncIterator[StreamChunk]:
        yield text_delta(0, "half")
        reached.set()
        await broken.wait()
        raise RuntimeError("client closed")

    def apply(ctx: Context) -> None:
        ctx.require(LlmRuntime).register_adapter(["other"], Patient().will(cut))
        ctx.defer(broken.set)

    apply.inject = ("llm",)  # type: ignore[attr-defined]
    old = await loop.root.plugin(apply)
    agent = await other_agent(loop)
    agent.followup(user("go"))
    await reached.wait()

    await swap(loop.root, old, adapter_plugin(Patient().will("whole")))
    await agent.when_idle()

    [retry] = events_of(agent, "llm/retry")
    assert retry["failure"]["code"] == "TRANSPORT"
    assert (
        "the adapter of the provider 'other' was unloaded during the call"
        in (retry["failure"]["message"])
    )
    assert reasons(agent) == [{"kind": "completed"}]
    assert len(reported) == 1


async def test_a_change_that_swaps_adapter_and_tools_at_once_does_not_stall(loop: Loop) -> None:
    gate, model = Gate(), ScriptedModel()
    say = await loop.root.plugin(tool_plugin("old", gate))
    adapter = await loop.root.plugin(
        adapter_plugin(ScriptedModel().will(calls(("1", "say", "{}"))))
    )
    agent = await other_agent(loop)
    agent.followup(user("go"))
    await gate.reached.wait()

    async def change() -> None:
        await adapter.dispose()
        await say.dispose()
        await loop.root.plugin(tool_plugin("new"))
        await loop.root.plugin(adapter_plugin(model.will(calls(("2", "say", "{}")), "end")))

    changing = asyncio.create_task(change())
    await ticks(10)
    gate.go.set()
    async with asyncio.timeout(5):
        await agent.when_idle()
        await changing

    assert texts(agent) == ["old", "new"]
    assert_balanced(agent.session)


async def test_a_call_that_nobody_prepared_is_held_and_waits_as_well(loop: Loop) -> None:
    held = Held()
    fiber = await loop.root.plugin(adapter_plugin(ScriptedModel().will(held)))
    await fiber.dispose()
    llm = loop.root.require(LlmRuntime)
    seen: list[StreamChunk] = []

    async def ask() -> None:
        options = GenerateOptions("other", "m", (), signal=AbortController().signal)
        seen.extend([chunk async for chunk in llm.stream(options)])

    asking = asyncio.create_task(ask())
    await ticks(10)
    fiber = await loop.root.plugin(adapter_plugin(ScriptedModel().will(held)))
    await held.reached.wait()
    assert fiber.leases == ("a call of the model other/m",)
    held.go.set()
    await asking

    assert seen[-1]["type"] == "finish"
    assert fiber.leases == ()
    assert LlmProviderInfo("other", "other") in llm.providers()


async def test_nothing_stays_held_after_a_failure(loop: Loop) -> None:
    async def broken(_: GenerateOptions) -> AsyncIterator[StreamChunk]:
        raise RuntimeError("no")
        yield text_delta(0, "never")

    tool = await loop.root.plugin(tool_plugin("old"))
    adapter = await loop.root.plugin(adapter_plugin(ScriptedModel().will(broken)))
    agent = await other_agent(loop)
    agent.followup(user("go"))
    await agent.when_idle()

    await until(lambda: not tool.leases)
    assert adapter.leases == ()
    assert reasons(agent)[0]["kind"] == "error"
