"""Agents that the loop's own configuration names: which session they get, and when."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from loop_harness import Held, Loop, mount, reasons, shelve, ticks, until, user

from dsh.execution.agent.service import AgentRegistry
from dsh.execution.loop.events import AGENT_LOOP_CONFIG_START_FAILED
from dsh.execution.loop.plugin import TurnLoop
from dsh.execution.loop.service import CONFIGURED_AGENT_IDENTITIES, AgentIdentity, AgentLoop
from dsh.kernel import Context, ValidationError
from dsh.model.messages import SessionId
from dsh.state.persistence.jsonl import JsonlPersistence
from dsh.state.session.service import SessionStore
from dsh.state.session.session import Session


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
    assert loop.agents.all() == []
    assert loop.root.require(SessionStore).all() == []


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


ROW = {"id": "x", "sessionId": "s1", "provider": "scripted", "model": "m"}


async def without_loop(root: Context, model: Any) -> Loop:
    """Mount everything but the loop."""
    loop = await mount(root, model)
    await root.require(AgentLoop).ctx.fiber.dispose()
    return loop


async def live(loop: Loop, id: str = "s1") -> Any:
    await until(lambda: loop.agents.get(SessionId(id)) is not None)
    return loop.agents.get(SessionId(id))


async def test_a_configured_session_without_a_store_is_made(root: Context, model: Any) -> None:
    loop = await configured(root, model, ROW)
    (agent,) = loop.agents.all()
    assert agent.id == "s1"
    assert len(agent.session.events) == 0


async def test_a_configured_session_that_no_store_knows_is_made(root: Context, model: Any) -> None:
    loop = await without_loop(root, model)
    await shelve(loop)
    await root.plugin(TurnLoop, {"agents": [{**ROW, "cwd": "/tmp"}]})
    agent = await live(loop)
    assert agent.session.header["cwd"] == "/tmp"


async def test_a_configured_session_that_cannot_be_loaded_is_told_and_not_replaced(
    root: Context, model: Any
) -> None:
    failures: list[Any] = []
    root.on(AGENT_LOOP_CONFIG_START_FAILED, failures.append)
    loop = await without_loop(root, model)
    shelf = await shelve(loop, Session.create("s1"))

    async def broken(id: str) -> Any:
        raise RuntimeError("the file is damaged")

    shelf.prepare = broken
    await root.plugin(TurnLoop, {"agents": [ROW]})
    await until(lambda: bool(failures))
    assert [(each.session_id, str(each.error)) for each in failures] == [
        ("s1", "the file is damaged")
    ]
    assert loop.agents.all() == []


@pytest.mark.parametrize("how", ["sessionId", "resumeSessionId"])
async def test_a_configured_session_waits_for_whoever_has_it(
    root: Context, model: Any, how: str
) -> None:
    failures: list[Any] = []
    root.on(AGENT_LOOP_CONFIG_START_FAILED, failures.append)
    loop = await without_loop(root, model)
    await shelve(loop, Session.create("s1"))
    sessions = root.require(SessionStore)
    session = sessions.prepare("s1")
    leave = sessions.enter(session)
    sessions.announce(session)
    await root.plugin(TurnLoop, {"agents": [{"id": "x", how: "s1"}]})
    await ticks(20)
    assert loop.agents.all() == []
    leave()
    assert (await live(loop)).session.events[-1]["type"] == "session/end-seed"
    assert failures == []


async def test_a_restarted_loop_resumes_the_exact_session_from_disk(
    root: Context, model: Any, tmp_path: Path
) -> None:
    loop = await without_loop(root, model)
    await root.plugin(JsonlPersistence, {"root": str(tmp_path)})
    fiber = root.plugin(TurnLoop, {"agents": [ROW]})
    await fiber
    before = await live(loop)
    held = Held()
    model.will("one", held)
    before.followup(user("first"))
    await before.when_idle()
    before.followup(user("second"))
    await held.reached.wait()

    await fiber.restart()

    after = await live(loop)
    assert after is not before
    model.will("three")
    after.followup(user("third"))
    await after.when_idle()
    assert [reason["kind"] for reason in reasons(after)] == ["completed", "aborted", "completed"]


async def test_a_store_that_is_about_to_load_is_waited_for(root: Context, model: Any) -> None:
    class Loading:
        """Stands for the loader: rows are loading until the store is there."""

        async def quiesce(self) -> None:
            await shelve(loop, Session.create("s1"))

    loop = await without_loop(root, model)
    root.provide("loader", Loading())
    await root.plugin(TurnLoop, {"agents": [ROW]})
    assert (await live(loop)).session.events[-1]["type"] == "session/end-seed"


@pytest.mark.parametrize(
    ("row", "resume"),
    [
        ({"id": "x"}, False),
        ({"id": "x", "resumeSessionId": "other"}, False),
        ({"id": "x", "sessionId": "other"}, True),
    ],
)
async def test_an_identity_of_the_launcher_replaces_both_of_the_row(
    root: Context, model: Any, row: dict[str, Any], resume: bool
) -> None:
    loop = await without_loop(root, model)
    if resume:
        await shelve(loop, Session.create("s1"))
    identities = {"x": AgentIdentity(SessionId("s1"), resume)}
    below = root.extend(meta={CONFIGURED_AGENT_IDENTITIES: identities})
    await below.plugin(TurnLoop, {"agents": [row, {"id": "y", "sessionId": "untouched"}]})
    assert {(await live(loop, each)).id for each in ("s1", "untouched")} == {"s1", "untouched"}


async def test_identities_of_the_launcher_may_not_coincide_either(
    root: Context, model: Any
) -> None:
    await without_loop(root, model)
    identities = {name: AgentIdentity(SessionId("s1")) for name in ("x", "y")}
    below = root.extend(meta={CONFIGURED_AGENT_IDENTITIES: identities})
    with pytest.raises(ValueError, match="both ask for session"):
        await below.plugin(TurnLoop, {"agents": [{"id": "x"}, {"id": "y"}]})


async def test_an_identity_for_nobody_is_told(
    root: Context, model: Any, caplog: pytest.LogCaptureFixture
) -> None:
    await without_loop(root, model)
    below = root.extend(meta={CONFIGURED_AGENT_IDENTITIES: {"z": AgentIdentity(SessionId("s"))}})
    await below.plugin(TurnLoop, {"agents": [{"id": "x"}]})
    assert "no configured agent has the id 'z'" in caplog.text


async def test_a_start_that_the_end_of_the_loop_cuts_short_is_no_failure(
    root: Context, model: Any
) -> None:
    failures: list[Any] = []
    root.on(AGENT_LOOP_CONFIG_START_FAILED, failures.append)
    loop = await without_loop(root, model)
    shelf = await shelve(loop, Session.create("s1"))
    shelf.gate = asyncio.Event()
    fiber = root.plugin(TurnLoop, {"agents": [ROW, {"id": "y", "resumeSessionId": "s2"}]})
    await fiber
    await ticks(5)
    await fiber.dispose()
    assert failures == []
    assert loop.agents.all() == []


async def test_configured_agents_are_nobodys_children(root: Context, model: Any) -> None:
    loop = await configured(root, model, ROW)
    assert root.require(AgentRegistry).roots() == loop.agents.all()
