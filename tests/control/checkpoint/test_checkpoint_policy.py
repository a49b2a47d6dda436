from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dsh.base.json import freeze
from dsh.base.signal import AbortController
from dsh.control.checkpoint import policy
from dsh.execution.agent.events import AGENT_PRE_STEP, AgentPreStep, Enter
from dsh.execution.tools.events import TOOLS_EXECUTE, ToolDispatch
from dsh.execution.tools.service import (
    ABORTED_BEFORE_DISPATCH,
    ExecutionToken,
    ToolExecution,
    ToolFailure,
    ToolSuccess,
)
from dsh.kernel import Context
from dsh.model.llm.events import LLM_STREAM, LlmStream
from dsh.model.llm.service import GenerateOptions
from dsh.model.messages import CallId, create_user_message
from dsh.state.persistence.artifact.store import ArtifactStore
from dsh.state.persistence.jsonl import JsonlPersistence
from dsh.state.session.events import SESSION_FLUSH, USER_MESSAGE
from dsh.state.session.session import Session
from dsh.state.session.store import LocalSessionStore

OK = ToolSuccess(value=None, content=freeze([]))


class Agent:
    """Of an agent, the policy needs its session alone."""

    def __init__(self, session: Session) -> None:
        self.session = session


class World:
    """What was durable each time something happened that cannot be taken back."""

    def __init__(self, root: Context, folder: Path, session: Session) -> None:
        self.root = root
        self.folder = folder
        self.session = session
        self.agent: Any = Agent(session)
        self.seen: list[int] = []
        self.abort = AbortController()

    def say(self) -> None:
        self.session.append(USER_MESSAGE, create_user_message("x"), surface_op="append")

    def happen(self) -> None:
        stored = ArtifactStore(self.folder).load(self.session.id)
        self.seen.append(0 if stored is None else len(stored.events))

    async def request(self, session_id: str | None) -> None:
        async def inner() -> Any:
            self.happen()

        options = GenerateOptions("p", "m", [], session_id=session_id)
        await self.root.waterfall(LLM_STREAM, LlmStream(options), inner)

    async def tool(self, *, agent: bool = True, nested: bool = False) -> Any:
        async def inner() -> Any:
            self.happen()
            return OK

        execution = ToolExecution(
            CallId("c"),
            "bash",
            freeze({}),
            self.abort.signal,
            self.agent if agent else None,
            CallId("c"),
            ExecutionToken() if nested else None,
            ExecutionToken(),
        )
        return await self.root.waterfall(
            TOOLS_EXECUTE, ToolDispatch(execution, self.abort.signal), inner
        )

    async def step(self) -> Any:
        async def inner() -> Any:
            self.happen()
            return Enter([])

        event = AgentPreStep(self.agent, (), 1, 2, self.abort.signal)
        return await self.root.waterfall(AGENT_PRE_STEP, event, inner)


@pytest.fixture
async def world(root: Context, tmp_path: Path) -> World:
    folder = tmp_path / "sessions"
    await root.plugin(LocalSessionStore)
    config = {"root": str(folder), "writeBatchMaxDelayMs": 3_600_000}
    await root.plugin(JsonlPersistence, config)
    await root.plugin(policy)
    return World(root, folder, root.require(LocalSessionStore).create("s"))


async def test_the_request_prefix_is_durable_before_the_request(world: World) -> None:
    world.say()
    await world.request("s")
    assert world.seen == [1]


async def test_requests_of_no_live_session_pass(world: World) -> None:
    world.say()
    await world.request(None)
    await world.request("unknown")
    assert world.seen == [0, 0]


async def test_a_call_is_durable_before_its_body(world: World) -> None:
    world.say()
    assert await world.tool() is OK
    assert world.seen == [1]


async def test_nested_calls_and_calls_of_no_agent_reuse_what_there_is(world: World) -> None:
    world.say()
    await world.tool(nested=True)
    await world.tool(agent=False)
    assert world.seen == [0, 0]


async def test_the_output_of_a_step_is_durable_before_the_next(world: World) -> None:
    world.say()
    assert await world.step() == Enter([])
    assert world.seen == [1]


async def test_a_call_cancelled_meanwhile_is_not_dispatched(world: World) -> None:
    world.root.on(SESSION_FLUSH, lambda _: world.abort.abort("user"))
    result = await world.tool()
    assert isinstance(result, ToolFailure)
    assert result.error.info is not None
    assert (result.error.info.name, result.error.info.code) == (
        "AbortError",
        ABORTED_BEFORE_DISPATCH,
    )
    assert world.seen == []


def fail(_: object) -> None:
    raise OSError("disk on fire")


async def test_without_a_durable_prefix_there_is_no_request(world: World) -> None:
    world.root.on(SESSION_FLUSH, fail)
    with pytest.raises(OSError, match="on fire"):
        await world.request("s")
    with pytest.raises(OSError, match="on fire"):
        await world.step()
    assert world.seen == []


async def test_without_a_durable_call_there_is_no_tool_but_a_result(world: World) -> None:
    world.root.on(SESSION_FLUSH, fail)
    result = await world.tool()
    assert isinstance(result, ToolFailure)
    assert "was not run" in result.error.message
    assert "disk on fire" in result.error.message
    assert result.error.info is not None
    assert result.error.info.code == policy.NOT_DURABLE
    assert world.seen == []


async def test_an_agent_whose_session_left_is_not_flushed(world: World) -> None:
    world.agent = Agent(Session.create("elsewhere"))
    assert await world.tool() is OK
    assert await world.step() == Enter([])


async def test_the_policy_goes_with_its_plugin(root: Context) -> None:
    await root.plugin(LocalSessionStore)
    before = root.listener_count()
    fiber = await root.plugin(policy)
    assert root.listener_count() == before + 3
    await fiber.dispose()
    assert root.listener_count() == before
