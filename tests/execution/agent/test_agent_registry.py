from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from dsh.execution.agent.dispatch import agent_events
from dsh.execution.agent.events import (
    AGENT_CREATED,
    AGENT_DISPOSED,
    AGENT_STATUS,
    AgentStatusChanged,
)
from dsh.execution.agent.registry import LiveAgents
from dsh.execution.agent.service import (
    Agent,
    AgentRegistry,
    AgentRegistryError,
    CreateAgent,
    InitiatorScopeDisposed,
    NoAgentFactory,
    ResumeAgent,
)
from dsh.kernel import AGENT, INTERNAL_DISPATCH, Context, create_scope
from dsh.model.messages import SessionId


class Named:
    def __init__(self, id: str) -> None:
        self.id = id


class Someone(Named):
    """An agent of another loop, as far as the registry looks at it."""

    def __init__(self, id: str, session: str | None = None) -> None:
        super().__init__(id)
        self.session = Named(session or id)


def someone(id: str, session: str | None = None) -> Agent:
    return cast("Agent", Someone(id, session))


@pytest.fixture
async def agents(root: Context) -> AgentRegistry:
    await root.plugin(LiveAgents)
    return root.require(AgentRegistry)


def log_of(root: Context) -> list[str]:
    log: list[str] = []
    root.on(AGENT_CREATED, lambda event: log.append(f"created {event.agent.id}"))
    root.on(AGENT_DISPOSED, lambda event: log.append(f"disposed {event.agent.id}"))
    return log


async def test_a_registered_agent_goes_with_its_plugin(
    root: Context, agents: AgentRegistry
) -> None:
    log = log_of(root)
    agent = someone("a")
    fiber = await root.inject(
        [AgentRegistry], lambda ctx: ctx.require(AgentRegistry).register(agent)
    )
    assert agents.get(SessionId("a")) is agent
    assert agents.all() == [agent]

    await fiber.dispose()

    assert agents.all() == []
    assert log == ["created a", "disposed a"]


async def test_entering_says_nothing_and_announcing_once_does(
    root: Context, agents: AgentRegistry
) -> None:
    log = log_of(root)
    agent = someone("a")
    detach = agents.enter(agent, None)
    assert (log, agents.get(SessionId("a"))) == ([], agent)
    agents.announce(agent)
    with pytest.raises(AgentRegistryError, match="already announced"):
        agents.announce(agent)
    detach()
    detach()
    assert log == ["created a", "disposed a"]


async def test_an_entry_that_was_never_announced_leaves_silently(
    root: Context, agents: AgentRegistry
) -> None:
    log = log_of(root)
    agents.enter(someone("a"), None)()
    assert log == []


async def test_refusals_name_the_agent(agents: AgentRegistry) -> None:
    agent = someone("a")
    agents.enter(agent, None)
    with pytest.raises(AgentRegistryError, match="'a' is already registered"):
        agents.enter(someone("a"), None)
    with pytest.raises(AgentRegistryError, match="one id"):
        agents.enter(someone("b", session="c"), None)
    with pytest.raises(AgentRegistryError, match="not live"):
        agents.announce(someone("a"))
    with pytest.raises(AgentRegistryError, match="not live"):
        agents.announce(someone("z"))


async def test_announcing_from_inside_the_announcement_is_refused(
    root: Context, agents: AgentRegistry
) -> None:
    agent = someone("a")
    refused: list[str] = []

    def on_created(_: Any) -> None:
        with pytest.raises(AgentRegistryError, match="already announced"):
            agents.announce(agent)
        refused.append("x")

    root.on(AGENT_CREATED, on_created)
    agents.enter(agent, None)
    agents.announce(agent)
    assert refused == ["x"]


async def test_a_stale_detachment_leaves_a_later_agent_alone(agents: AgentRegistry) -> None:
    stale = agents.enter(someone("a"), None)
    stale()
    later = someone("a")
    agents.enter(later, None)
    stale()
    assert agents.get(SessionId("a")) is later


async def test_a_veto_takes_the_agent_back_with_its_disposed_edge(
    root: Context, agents: AgentRegistry
) -> None:
    log = log_of(root)

    def veto(_: Any) -> None:
        raise RuntimeError("not here")

    root.on(AGENT_CREATED, veto)
    root.on(AGENT_CREATED, lambda event: log.append("never told"))
    with pytest.raises(RuntimeError, match="not here"):
        agents.register(someone("a"))
    assert agents.all() == []
    assert log == ["created a", "disposed a"]


async def test_a_detachment_during_the_announcement_waits_for_its_listeners(
    root: Context, agents: AgentRegistry
) -> None:
    agent = someone("a")
    detach = agents.enter(agent, None)
    seen: list[object] = []
    root.on(AGENT_CREATED, lambda _: detach())
    root.on(AGENT_CREATED, lambda _: seen.append(agents.get(SessionId("a"))))
    agents.announce(agent)
    assert seen == [agent]
    assert agents.get(SessionId("a")) is None


async def test_owners_are_told_apart(agents: AgentRegistry) -> None:
    parent, child = someone("p"), someone("c")
    agents.enter(parent, None)
    agents.enter(child, parent)
    assert agents.roots() == [parent]
    assert agents.is_owned_by(SessionId("c"), parent)
    assert not agents.is_owned_by(SessionId("p"), parent)
    assert not agents.is_owned_by(SessionId("x"), parent)


async def test_without_a_loop_nobody_can_make_agents(agents: AgentRegistry) -> None:
    with pytest.raises(NoAgentFactory, match="agent-loop plugin"):
        await agents.create(CreateAgent(session_id=SessionId("a")))
    with pytest.raises(NoAgentFactory):
        await agents.resume(ResumeAgent(resume_session_id=SessionId("a")))


async def test_there_is_one_factory_at_a_time(agents: AgentRegistry) -> None:
    first = agents.set_factory(cast("Any", object()))
    with pytest.raises(AgentRegistryError, match="already"):
        agents.set_factory(cast("Any", object()))
    first.dispose()
    agents.set_factory(cast("Any", object()))


async def test_plain_contexts_belong_to_nobody(root: Context, agents: AgentRegistry) -> None:
    assert root.agent is None
    agent = someone("a")
    assert root.extend(meta={AGENT: agent}).extend().agent is agent


async def test_dispatch_keeps_subject_and_scope_together(
    root: Context, agents: AgentRegistry
) -> None:
    one, two = someone("1"), someone("2")
    heard: list[str] = []
    scope = create_scope(root, one)
    scope.ctx.on(AGENT_STATUS, lambda event: heard.append(f"one {event.agent.id}"))
    root.on(AGENT_STATUS, lambda event: heard.append(f"all {event.agent.id}"))

    agent_events(root, one).emit(AGENT_STATUS, AgentStatusChanged(one, "running"))
    agent_events(root, two).emit(AGENT_STATUS, AgentStatusChanged(two, "running"))
    assert heard == ["one 1", "all 1", "all 2"]

    with pytest.raises(ValueError, match="cannot be dispatched"):
        agent_events(root, one).emit(AGENT_STATUS, AgentStatusChanged(two, "running"))


async def test_contained_events_never_reach_their_dispatcher(
    root: Context, agents: AgentRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    agent = someone("a")
    ran: list[int] = []

    def cancelled(_: Any) -> None:
        raise asyncio.CancelledError

    def veto(event: Any) -> None:
        if event.name == AGENT_STATUS.name:
            raise RuntimeError("vetoed")

    first = root.on(AGENT_STATUS, cancelled)
    events = agent_events(root, agent)
    events.emit(AGENT_STATUS, AgentStatusChanged(agent, "running"))
    first.dispose()
    root.on(AGENT_STATUS, lambda _: ran.append(1))
    root.on(INTERNAL_DISPATCH, veto)
    events.emit(AGENT_STATUS, AgentStatusChanged(agent, "idle"))
    assert "vetoed" in caplog.text


async def test_boundaries_of_the_registry_carry_and_clear_the_agent(
    agents: AgentRegistry,
) -> None:
    agent = someone("a")

    async def body() -> Agent:
        await asyncio.sleep(0)
        assert agents.without_initiator(agents.current_initiator) is None
        return agents.require_initiator()

    assert await agents.with_initiator(agent, body) is agent
    assert await agents.spawn_with_initiator(agent, body, name="work") is agent
    assert agents.current_initiator() is None


async def test_unloading_the_registry_waits_for_active_work_and_then_all_reads_raise(
    root: Context,
) -> None:
    fiber = await root.plugin(LiveAgents)
    agents = root.require(AgentRegistry)
    agent, go = someone("a"), asyncio.Event()

    async def body() -> Agent | None:
        await go.wait()
        return agents.current_initiator()

    task = agents.spawn_with_initiator(agent, body, name="work")
    ending = asyncio.ensure_future(fiber.dispose())
    await asyncio.sleep(0)
    with pytest.raises(InitiatorScopeDisposed):
        agents.with_initiator(agent, lambda: None)
    assert root.get(AgentRegistry) is None
    assert agents.current_initiator() is None
    for _ in range(5):
        await asyncio.sleep(0)
    assert not ending.done()
    go.set()
    assert await task is agent
    await ending
    for read in (
        agents.current_initiator,
        agents.require_initiator,
        lambda: agents.with_initiator(agent, lambda: None),
        lambda: agents.without_initiator(lambda: None),
    ):
        with pytest.raises(InitiatorScopeDisposed):
            read()


@pytest.mark.parametrize("nested", [1, 2])
async def test_work_that_waits_for_the_end_of_its_own_registry_is_let_go(
    root: Context, nested: int
) -> None:
    fiber = await root.plugin(LiveAgents)
    agents = root.require(AgentRegistry)
    agent, done = someone("a"), []

    async def dispose() -> None:
        await fiber.dispose()
        done.append("gone")

    async def body() -> None:
        await (agents.with_initiator(someone("b"), dispose) if nested == 2 else dispose())

    await asyncio.wait_for(agents.with_initiator(agent, body), 5)
    assert done == ["gone"]


async def test_a_later_joiner_inside_a_boundary_is_let_go_too(root: Context) -> None:
    fiber = await root.plugin(LiveAgents)
    agents = root.require(AgentRegistry)
    begun = asyncio.Event()

    async def joiner() -> None:
        begun.set()
        await go.wait()
        await fiber.dispose()

    go = asyncio.Event()
    task = agents.spawn_with_initiator(someone("a"), joiner, name="joiner")
    await begun.wait()
    ending = asyncio.ensure_future(fiber.dispose())
    await asyncio.sleep(0)
    go.set()
    await asyncio.wait_for(asyncio.gather(task, ending), 5)


async def test_work_that_waits_for_the_end_of_the_root_is_let_go(root: Context) -> None:
    await root.plugin(LiveAgents)
    agents = root.require(AgentRegistry)

    async def body() -> None:
        await root.fiber.dispose()

    await asyncio.wait_for(agents.with_initiator(someone("a"), body), 5)
