from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from loop_harness import (
    Held,
    Loop,
    add_tool,
    calls,
    events_of,
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
    AGENT_SESSION_START,
    AGENT_STATUS,
    AGENT_TURN_STOPPING,
)
from dsh.execution.agent.service import AgentOptions, AgentRegistry, CreateAgent, ResumeAgent
from dsh.execution.loop.events import AGENT_LOOP_CONFIG_START_FAILED
from dsh.execution.loop.plugin import TurnLoop
from dsh.execution.loop.service import (
    AgentLoop,
    CreationAborted,
    DisposalFromWithin,
    NoPersistence,
)
from dsh.execution.tools.service import ToolRuntime
from dsh.kernel import Context, InactiveEffect, ValidationError
from dsh.model.messages import SessionId
from dsh.state.persistence.service import SessionPersistence, SessionPreparation
from dsh.state.session.events import SESSION_CREATED, SESSION_DISPOSED
from dsh.state.session.service import SessionStore
from dsh.state.session.session import Session


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


def assert_nothing_live(loop: Loop) -> None:
    assert loop.agents.all() == []
    assert loop.root.require(SessionStore).all() == []


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


async def test_a_turn_that_waits_for_the_end_of_its_agent_fails_fast(loop: Loop) -> None:
    handle = await loop.create()
    loop.model.will("ok")
    caught: list[BaseException] = []

    async def on_stopping(_: Any) -> None:
        try:
            await handle.dispose()
        except DisposalFromWithin as error:
            caught.append(error)
            raise

    loop.root.on(AGENT_TURN_STOPPING, on_stopping)
    handle.agent.followup(user("first"))
    await asyncio.wait_for(handle.agent.when_idle(), 5)
    await asyncio.wait_for(handle.dispose(), 5)
    assert len(caught) == 1
    assert reasons(handle.agent)[0]["reason"] == {"kind": "disposed"}
    assert_nothing_live(loop)


async def test_a_tool_that_waits_for_the_end_of_its_agent_does_not_hang(loop: Loop) -> None:
    handle = await loop.create()

    async def suicide() -> str:
        await handle.dispose()
        return "never"

    add_tool(loop.root, suicide)
    loop.model.will(calls(("c1", "suicide", "{}")))
    handle.agent.followup(user("first"))
    await asyncio.wait_for(handle.agent.when_idle(), 5)
    await asyncio.wait_for(handle.dispose(), 5)
    assert_nothing_live(loop)


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


class Shelf(SessionPersistence):
    """Keeps sessions in memory; as slow and as broken as a test wants."""

    inject = (SessionStore,)

    def start(self) -> None:
        self.stored: dict[str, Session] = self.config or {}
        self.released: list[str] = []
        self.gate: asyncio.Event | None = None

    async def prepare(self, id: str) -> SessionPreparation:
        if self.gate is not None:
            await self.gate.wait()
        if id not in self.stored:
            raise LookupError(f"session {id!r} not found")
        kept = self.stored[id]
        session = self.ctx.require(SessionStore).restore(kept.header, list(kept.events))
        return SessionPreparation(session, lambda: self.released.append(id))

    async def all(self) -> Any:
        return [session.header for session in self.stored.values()]

    def locate(self, meta: Any) -> None:
        return None

    async def nothing(self, *args: Any) -> Any:
        raise NotImplementedError

    create = append = load = inspect = read_from = list_snapshots = survey = nothing
    newest = delete = nothing


async def shelve(loop: Loop, *sessions: Session) -> Any:
    await loop.root.plugin(Shelf, {session.id: session for session in sessions})
    return loop.root.require(SessionPersistence)


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
    with pytest.raises(RuntimeError, match="refused"):
        await resume(loop, setup=raises(RuntimeError("refused")))
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


# configured agents


async def configured(root: Context, model: Any, *rows: dict[str, Any]) -> Loop:
    loop = await mount(root, model, agents=list(rows))
    await ticks(20)
    return loop


async def test_configured_agents_start_with_the_loop(root: Context, model: Any) -> None:
    loop = await configured(
        root,
        model,
        {"id": "fresh", "provider": "scripted", "model": "m", "cwd": "/tmp"},
        {"id": "exact", "sessionId": "s1"},
    )
    first, second = loop.agents.all()
    assert first.id.startswith("fresh-session-")
    assert first.session.header["cwd"] == "/tmp"
    assert second.id == "s1"


async def test_a_configured_session_that_is_stored_is_resumed(root: Context, model: Any) -> None:
    failures: list[Any] = []
    root.on(AGENT_LOOP_CONFIG_START_FAILED, failures.append)
    loop = await mount(root, model)
    await loop.root.require(AgentLoop).ctx.fiber.dispose()
    await shelve(loop, Session.create("s1"))
    await root.plugin(TurnLoop, {"agents": [{"id": "x", "sessionId": "s1"}]})
    await ticks(20)
    assert failures == []
    (agent,) = loop.agents.all()
    assert agent.session.events[-1]["type"] == "session/end-seed"


async def test_restarting_the_loop_alone_brings_a_configured_session_back(
    root: Context, model: Any
) -> None:
    loop = await mount(root, model)
    row = loop.root.require(AgentLoop).ctx.fiber
    await row.dispose()
    await shelve(loop, Session.create("s1"))
    settings = {"id": "x", "sessionId": "s1", "provider": "scripted", "model": "m"}
    fiber = root.plugin(TurnLoop, {"agents": [settings]})
    await fiber
    await until(lambda: loop.agents.get(SessionId("s1")) is not None)
    before = loop.agents.all()[0]
    held = Held()
    model.will(held)
    before.followup(user("first"))
    await held.reached.wait()

    await fiber.restart()
    await until(lambda: loop.agents.get(SessionId("s1")) is not None)
    (after,) = loop.agents.all()
    assert after is not before
    assert reasons(before) == [{"kind": "aborted", "reason": {"kind": "disposed"}}]
    model.will("ok")
    after.followup(user("second"))
    await after.when_idle()
    assert reasons(after)[-1] == {"kind": "completed"}


async def test_a_configured_resume_waits_for_the_store_and_tells_when_it_fails(
    root: Context, model: Any, caplog: pytest.LogCaptureFixture
) -> None:
    failures: list[Any] = []
    root.on(AGENT_LOOP_CONFIG_START_FAILED, failures.append)
    loop = await configured(root, model, {"id": "x", "resumeSessionId": "missing"})
    assert failures == []
    await shelve(loop)
    await ticks(20)
    assert [failure.session_id for failure in failures] == ["missing"]
    assert_nothing_live(loop)


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([{"id": "x", "sessionId": "a", "resumeSessionId": "b"}], "both sessionId and"),
        ([{"id": "x", "sessionId": ""}], "at least 1 character"),
        ([{"id": "x", "maxTokens": 0}], "greater than 0"),
        ([{"id": "x", "sessionId": "a"}, {"id": "y", "sessionId": "a"}], "both ask for session"),
        ([{"id": "x", "sessionId": "a"}, {"id": "y", "resumeSessionId": "a"}], "both ask for"),
    ],
)
async def test_contradicting_identities_fail_at_load(
    root: Context, model: Any, rows: Any, problem: str
) -> None:
    with pytest.raises((ValidationError, ValueError), match=problem):
        await mount(root, model, agents=rows)
