"""How agents come to life and end."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from loop_harness import (
    Held,
    Loop,
    add_tool,
    assert_nothing_live,
    calls,
    mount,
    reasons,
    ticks,
    types,
    until,
    user,
)

from dsh.base.signal import AbortController
from dsh.execution.agent.events import (
    AGENT_CREATED,
    AGENT_DISPOSED,
    AGENT_INBOX_DISCARDED,
    AGENT_SESSION_START,
    AGENT_STATUS,
)
from dsh.execution.agent.service import AgentOptions, AgentRegistry, CreateAgent
from dsh.execution.loop.service import (
    AgentLoop,
    CreationAborted,
)
from dsh.execution.tools.service import ToolRuntime
from dsh.kernel import INTERNAL_STATUS, Context, FiberState, InactiveEffect, StatusChanged
from dsh.model.messages import SessionId
from dsh.state.session.events import SESSION_CREATED, SESSION_DISPOSED, SESSION_EVENT
from dsh.state.session.service import SessionStore


def edges(loop: Loop) -> list[str]:
    log: list[str] = []
    for event, word in (
        (SESSION_CREATED, "session created"),
        (SESSION_DISPOSED, "session disposed"),
        (AGENT_CREATED, "agent created"),
        (AGENT_DISPOSED, "agent disposed"),
    ):
        loop.root.on(event, lambda _, word=word: log.append(word), everywhere=True)  # type: ignore[misc]
    return log


class Commit:
    def __init__(self, action: Callable[[], None]) -> None:
        self.commit = action


async def test_publication_tells_session_then_agent_then_start(loop: Loop) -> None:
    log = edges(loop)
    sources: list[str] = []

    def on_start(event: Any) -> None:
        sources.append(event.source)
        assert loop.agents.get(event.agent.id) is event.agent
        event.agent.inject(user("context"))

    loop.root.on(AGENT_SESSION_START, on_start)
    handle = await loop.create()
    assert log == ["session created", "agent created"]
    assert sources == ["startup"]
    assert handle.agent.ctx.agent is handle.agent
    assert handle.agent.inbox.has_pending

    await handle.dispose()
    assert log == ["session created", "agent created", "agent disposed", "session disposed"]
    assert_nothing_live(loop)


async def test_disposal_ends_the_turn_before_it_tells_anybody(loop: Loop) -> None:
    handle = await loop.create()
    agent = handle.agent
    held = Held()
    loop.model.will(held)
    agent.inject(user("waiting"))
    agent.followup(user("first"))
    await held.reached.wait()
    agent.followup(user("queued"))
    seen: list[object] = []

    def on_disposed(event: Any) -> None:
        seen.append(types(agent)[-1])
        seen.append(loop.agents.get(agent.id))
        seen.append(loop.root.require(SessionStore).get(agent.id))
        with pytest.raises(InactiveEffect):
            agent.ctx.defer(lambda: None)

    loop.root.on(AGENT_DISPOSED, on_disposed)
    await asyncio.gather(handle.dispose(), handle.dispose())

    assert seen == ["turn/end", None, agent.session]
    assert not agent.inbox.has_pending


async def test_setup_composes_the_agent_before_anybody_sees_it(loop: Loop) -> None:
    seen: list[object] = []

    async def setup(ctx: Context) -> Commit:
        await asyncio.sleep(0)
        seen.append(loop.agents.all())
        add_tool(ctx, act)
        return Commit(lambda: seen.append("committed"))

    async def act() -> str:
        return "done"

    handle = await loop.create(setup=setup)
    tools = loop.root.require(ToolRuntime)
    assert seen == [[], "committed"]
    assert tools.get("act", handle.agent) is not None
    assert tools.get("act") is None
    await handle.dispose()
    assert tools.get("act", handle.agent) is None


def raises(error: Exception) -> Callable[[Any], Any]:
    def setup(_: Any) -> Any:
        raise error

    return setup


@pytest.mark.parametrize(
    "setup",
    [
        raises(RuntimeError("refused")),
        lambda _: Commit(lambda: raises(RuntimeError("refused"))(None)),
    ],
    ids=["setup", "commit"],
)
async def test_a_refusing_setup_publishes_nothing_and_frees_the_id(loop: Loop, setup: Any) -> None:
    log = edges(loop)
    with pytest.raises(RuntimeError, match="refused"):
        await loop.create(setup=setup)
    assert log == []
    assert_nothing_live(loop)
    await loop.create()


async def never(_: Context) -> None:
    await asyncio.Event().wait()


async def test_the_callers_signal_ends_a_creation_and_nothing_later(loop: Loop) -> None:
    stop = AbortController()
    creating = asyncio.create_task(loop.create(setup=never, signal=stop.signal))
    await asyncio.sleep(0)
    stop.abort("changed my mind")
    with pytest.raises(CreationAborted, match="agent 's1' creation aborted"):
        await creating
    assert_nothing_live(loop)

    with pytest.raises(CreationAborted):
        await loop.create(signal=stop.signal)

    own = AbortController()
    handle = await loop.create(signal=own.signal)
    own.abort()
    loop.model.will("ok")
    handle.agent.followup(user("still here"))
    await handle.agent.when_idle()
    assert reasons(handle.agent) == [{"kind": "completed"}]


async def test_an_exception_as_the_reason_is_what_the_caller_gets(loop: Loop) -> None:
    stop = AbortController()
    creating = asyncio.create_task(loop.create(setup=never, signal=stop.signal))
    await asyncio.sleep(0)
    stop.abort(LookupError("mine"))
    with pytest.raises(LookupError, match="mine"):
        await creating


async def test_cancelling_the_creating_task_rolls_back(loop: Loop) -> None:
    creating = asyncio.create_task(loop.create(setup=never))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    creating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await creating
    assert_nothing_live(loop)
    await loop.create()


async def test_unloading_the_owner_ends_creations_and_agents(loop: Loop) -> None:
    made: list[Any] = []

    async def own(ctx: Context) -> None:
        agents = ctx.require(AgentRegistry)
        options = AgentOptions(provider="scripted", model="m")
        made.append(
            await agents.create(CreateAgent(session_id=SessionId("done"), agent_options=options))
        )
        made.append(
            asyncio.create_task(
                agents.create(CreateAgent(session_id=SessionId("begun"), setup=never))
            )
        )
        await asyncio.sleep(0)

    owner = await loop.root.inject([AgentRegistry], own)
    handle, creating = made
    held = Held()
    loop.model.will(held)
    handle.agent.followup(user("first"))
    await held.reached.wait()

    await owner.dispose()

    with pytest.raises((CreationAborted, InactiveEffect)):
        await creating
    assert_nothing_live(loop)
    assert reasons(handle.agent)[0]["reason"] == {"kind": "disposed"}
    await handle.dispose()


async def test_an_owner_that_waits_for_a_creation_in_its_body_can_be_unloaded(loop: Loop) -> None:
    begun = asyncio.Event()

    async def setup(ctx: Context) -> None:
        begun.set()
        await asyncio.Event().wait()

    async def own(ctx: Context) -> None:
        await ctx.require(AgentRegistry).create(
            CreateAgent(session_id=SessionId("begun"), setup=setup)
        )

    owner = loop.root.inject([AgentRegistry], own)
    await begun.wait()
    await asyncio.wait_for(owner.dispose(), 5)
    assert_nothing_live(loop)


async def test_unloading_the_loop_ends_creations_and_agents(root: Context, model: Any) -> None:
    loop = await mount(root, model)
    fiber = loop.root.require(AgentLoop).ctx.fiber
    handle = await loop.create()
    held = Held()
    loop.model.will(held)
    handle.agent.followup(user("first"))
    await held.reached.wait()
    creating = asyncio.create_task(loop.create("begun", setup=never))
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    await fiber.dispose()

    with pytest.raises(CreationAborted):
        await creating
    assert_nothing_live(loop)
    assert reasons(handle.agent)[0]["reason"] == {"kind": "disposed"}
    from dsh.execution.agent.service import NoAgentFactory

    with pytest.raises(NoAgentFactory):
        await loop.create("later")


async def test_tools_of_an_agent_stay_while_its_driver_drains(root: Context, model: Any) -> None:
    loop = await mount(root, model)
    seen: list[object] = []

    async def act() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            await ticks(20)
            seen.append(loop.root.require(ToolRuntime).get("act", handle.agent) is not None)
        return "done"

    handle = await loop.create(setup=lambda ctx: add_tool(ctx, act) and None)
    loop.model.will(calls(("c1", "act", "{}")))
    handle.agent.followup(user("first"))
    await until(lambda: "tool/call" in types(handle.agent))
    await ticks(5)
    await loop.root.require(AgentLoop).ctx.fiber.dispose()
    assert seen == [True]


@pytest.mark.parametrize("event", [SESSION_CREATED, AGENT_CREATED])
async def test_a_throwing_creation_listener_rolls_back_with_paired_edges(
    loop: Loop, event: Any
) -> None:
    log = edges(loop)

    def veto(_: Any) -> None:
        raise RuntimeError("not here")

    refusing = loop.root.on(event, veto, everywhere=True)
    with pytest.raises(RuntimeError, match="not here"):
        await loop.create()
    for word in ("session", "agent"):
        assert log.count(f"{word} created") == log.count(f"{word} disposed")
    assert "session created" in log
    assert_nothing_live(loop)
    refusing.dispose()
    await loop.create()


@pytest.mark.parametrize("event", [SESSION_CREATED, AGENT_CREATED, AGENT_SESSION_START])
async def test_an_end_asked_for_during_publication_waits_for_the_listeners(
    loop: Loop, event: Any
) -> None:
    seen: list[object] = []
    stop = AbortController()

    def end(_: Any) -> None:
        stop.abort("enough")

    loop.root.on(event, end, everywhere=True)
    loop.root.on(
        event, lambda _: seen.append(len(loop.root.require(SessionStore).all())), everywhere=True
    )
    with pytest.raises(CreationAborted):
        await loop.create(signal=stop.signal)
    assert seen == [1]
    assert_nothing_live(loop)


async def test_an_agent_that_ends_when_it_is_told_never_starts(loop: Loop) -> None:
    stop = AbortController()
    started: list[object] = []
    loop.root.on(AGENT_CREATED, lambda _: stop.abort("enough"))
    loop.root.on(AGENT_SESSION_START, started.append)
    with pytest.raises(CreationAborted):
        await loop.create(signal=stop.signal)
    assert started == []


async def test_two_creations_of_one_id_leave_one_agent(loop: Loop) -> None:
    async def setup(_: Context) -> None:
        await asyncio.sleep(0)

    made = await asyncio.gather(
        loop.create(setup=setup), loop.create(setup=setup), return_exceptions=True
    )
    errors = [result for result in made if isinstance(result, BaseException)]
    assert len(errors) == 1
    assert len(loop.agents.all()) == 1


async def test_the_owner_at_run_time_is_the_agent_of_the_creating_context(loop: Loop) -> None:
    parent = await loop.agent("parent")
    child = await parent.ctx.require(AgentRegistry).create(
        CreateAgent(session_id=SessionId("child"))
    )
    assert loop.agents.roots() == [parent]
    assert loop.agents.is_owned_by(child.agent.id, parent)


@pytest.mark.parametrize("limit", [0, -1, True, 2**53])
async def test_an_unusable_token_limit_is_refused(loop: Loop, limit: int) -> None:
    with pytest.raises(TypeError, match="max_tokens"):
        await loop.create(agent_options=AgentOptions(max_tokens=limit))
    assert_nothing_live(loop)


async def test_a_bad_seed_raises_before_anything_is_registered(loop: Loop) -> None:
    with pytest.raises(Exception, match="seed"):
        await loop.create(seed=[{"type": "nonsense"}])
    assert_nothing_live(loop)


async def test_an_end_that_is_requested_again_while_it_begins_is_one_end(loop: Loop) -> None:
    fiber = loop.root.require(AgentLoop).ctx.fiber
    handle = await loop.create()
    handle.agent.inject(user("waits"))
    loop.root.on(AGENT_INBOX_DISCARDED, lambda _: fiber.dispose())
    ending = asyncio.create_task(handle.dispose())
    await asyncio.sleep(0)
    ends = [task for task in asyncio.all_tasks() if task.get_name() == "end of agent s1"]
    await ending
    await fiber.dispose()
    assert len(ends) == 1
    assert_nothing_live(loop)


async def test_what_the_log_would_not_withdraw_at_once_is_withdrawn_at_the_end(loop: Loop) -> None:
    fiber = loop.root.require(AgentLoop).ctx.fiber
    agent = await loop.agent()
    agent.inject(user("waits"))
    loop.root.on(SESSION_EVENT, lambda _: fiber.dispose(), everywhere=True)
    agent.inject(user("ends it"))
    assert agent.inbox.has_pending
    await fiber.dispose()
    assert not agent.inbox.has_pending


async def test_a_disposed_agent_can_be_collected(loop: Loop) -> None:
    handle: Any = await loop.create()
    loop.model.will("ok")
    handle.agent.followup(user("first"))
    await handle.agent.when_idle()
    await handle.dispose()
    gone = weakref.ref(handle.agent)
    del handle
    loop.model.requests.clear()
    await asyncio.sleep(0)
    gc.collect()
    assert gone() is None


async def test_create_at_once_is_owned_by_the_calling_plugin(loop: Loop) -> None:
    made: list[Any] = []

    def own(ctx: Context) -> None:
        made.append(
            ctx.require(AgentLoop).create(
                SessionId("now"), AgentOptions(provider="scripted", model="m"), {"cwd": "/tmp"}
            )
        )

    owner = await loop.root.inject([AgentLoop], own)
    loop.model.will("ok")
    made[0].followup(user("first"))
    await made[0].when_idle()
    assert reasons(made[0]) == [{"kind": "completed"}]
    await owner.dispose()
    assert_nothing_live(loop)


# resume


async def test_unloading_the_registry_restarts_the_loop_against_the_next_one(
    root: Context, model: Any
) -> None:
    loop = await mount(root, model)
    old = loop.agents
    handle = await loop.create()
    held = Held()
    loop.model.will(held, "ok")
    handle.agent.followup(user("first"))
    await held.reached.wait()
    seen: list[object] = []
    loop.root.on(AGENT_STATUS, lambda event: seen.append(old.current_initiator() is event.agent))

    await old.ctx.fiber.restart()
    await loop.root.fiber.wait()

    from dsh.execution.agent.service import InitiatorScopeDisposed

    assert reasons(handle.agent)[0]["reason"] == {"kind": "disposed"}
    assert seen == [True]
    with pytest.raises(InitiatorScopeDisposed):
        old.current_initiator()
    await loop.root.require(AgentRegistry).ctx.fiber.wait()
    await until(lambda: loop.root.get(AgentLoop) is not None)
    agent = await loop.agent("s2")
    agent.followup(user("first"))
    await agent.when_idle()
    assert reasons(agent) == [{"kind": "completed"}]


async def test_a_message_that_comes_when_the_registry_is_going_stays_parked(loop: Loop) -> None:
    registry = loop.agents.ctx.fiber
    agent = await loop.agent()
    told: list[str] = []
    loop.root.on(AGENT_STATUS, lambda event: told.append(event.status))

    def wake(event: StatusChanged) -> None:
        if event.fiber is registry and registry.state is FiberState.UNLOADING:
            agent.followup(user("first"))

    loop.root.on(INTERNAL_STATUS, wake, everywhere=True)
    await registry.dispose()
    assert types(agent) == []
    assert told == ["running", "idle"]
    assert agent.status == "idle"


async def test_disposing_the_root_in_a_turn_drains_it_with_its_identity(
    root: Context, model: Any
) -> None:
    loop = await mount(root, model)
    agents = loop.agents
    seen: list[object] = []

    async def act() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            seen.append(agents.current_initiator())
        return "never"

    add_tool(loop.root, act)
    handle = await loop.create()
    loop.model.will(calls(("c1", "act", "{}")))
    handle.agent.followup(user("first"))
    await until(lambda: "tool/call" in types(handle.agent))
    await ticks(5)

    await root.fiber.dispose()

    assert seen == [handle.agent]
    assert types(handle.agent)[-3:] == ["tool/result", "step/end", "turn/end"]
