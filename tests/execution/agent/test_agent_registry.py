from __future__ import annotations

import asyncio
from collections.abc import Callable
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


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not holds():  # noqa: ASYNC110  # there is nothing to wait for
            await asyncio.sleep(0)


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
    owners = [agents.owner_of(SessionId(name)) for name in "cpx"]
    assert owners == [parent, None, None]


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


async def test_every_listener_of_a_contained_event_runs_and_each_failure_is_reported(
    root: Context, agents: AgentRegistry
) -> None:
    agent = someone("a")
    reported: list[str] = []
    ran: list[str] = []
    root.set_reporter(lambda error, *_: reported.append(str(error)))

    def raises(_: Any) -> None:
        raise RuntimeError("at once")

    async def fails(_: Any) -> None:
        await asyncio.sleep(0)
        raise RuntimeError("later")

    for listener in (raises, fails, lambda _: ran.append("x")):
        root.on(AGENT_STATUS, listener)
    agent_events(root, agent).emit(AGENT_STATUS, AgentStatusChanged(agent, "running"))
    assert ran == ["x"]
    await until(lambda: len(reported) == 2)
    assert reported == ["at once", "later"]


async def test_listeners_above_an_agent_hear_it_and_those_below_do_not(
    root: Context, agents: AgentRegistry
) -> None:
    parent, child, other = someone("p"), someone("c"), someone("o")
    heard: list[str] = []
    scopes = {
        "parent": create_scope(root, parent),
        "child": create_scope(root, child, parent),
        "other": create_scope(root, other),
    }
    for name, scope in scopes.items():
        scope.ctx.on(AGENT_STATUS, lambda _, name=name: heard.append(name))  # type: ignore[misc]
    scopes["other"].ctx.on(AGENT_STATUS, lambda _: heard.append("everywhere"), everywhere=True)
    agent_events(root, child).emit(AGENT_STATUS, AgentStatusChanged(child, "running"))
    assert heard == ["parent", "child", "everywhere"]
    heard.clear()
    agent_events(root, parent).emit(AGENT_STATUS, AgentStatusChanged(parent, "running"))
    assert heard == ["parent", "everywhere"]


async def test_a_late_failure_at_the_announcement_takes_nothing_back(
    root: Context, agents: AgentRegistry
) -> None:
    reported: list[str] = []
    root.set_reporter(lambda error, *_: reported.append(str(error)))

    async def fails(_: Any) -> None:
        await asyncio.sleep(0)
        raise RuntimeError("too late")

    root.on(AGENT_CREATED, fails)
    agent = someone("a")
    agents.register(agent)
    await until(lambda: bool(reported))
    assert reported == ["too late"]
    assert agents.get(SessionId("a")) is agent


async def test_an_agent_belongs_to_the_agent_whose_context_registers_it(
    root: Context, agents: AgentRegistry
) -> None:
    parent, child = someone("p"), someone("c")
    agents.register(parent)
    root.extend(meta={AGENT: parent}).require(AgentRegistry).register(child)
    assert agents.roots() == [parent]
    assert agents.is_owned_by(SessionId("c"), parent)


async def test_the_registry_lists_a_fresh_list_in_the_order_of_entry(
    agents: AgentRegistry,
) -> None:
    entered = [someone(name) for name in "bca"]
    for agent in entered:
        agents.enter(agent, None)
    agents.all().clear()
    agents.roots().clear()
    assert agents.all() == agents.roots() == entered


async def test_the_factory_goes_with_its_plugin_and_gets_the_callers_context(
    root: Context, agents: AgentRegistry
) -> None:
    asked: list[Context] = []

    class Factory:
        async def create_agent(self, owner: Context, options: CreateAgent) -> Any:
            asked.append(owner)

        async def resume_agent(self, owner: Context, options: ResumeAgent) -> Any:
            asked.append(owner)

    loop = await root.inject(
        [AgentRegistry], lambda ctx: ctx.require(AgentRegistry).set_factory(Factory())
    )
    held: list[Context] = []
    caller = await root.inject([AgentRegistry], held.append)
    mine = held[0].require(AgentRegistry)
    await mine.create(CreateAgent(session_id=SessionId("a")))
    await mine.resume(ResumeAgent(resume_session_id=SessionId("a")))
    assert [owner.fiber for owner in asked] == [caller, caller]
    await loop.dispose()
    with pytest.raises(NoAgentFactory):
        await mine.create(CreateAgent(session_id=SessionId("a")))


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
