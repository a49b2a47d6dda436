from __future__ import annotations

from typing import Any

import pytest
from initiator_faces import someone

from dsh.base.signal import AbortController
from dsh.execution.agent import invariants
from dsh.execution.agent.dispatch import agent_events
from dsh.execution.agent.events import AGENT_STATUS, AGENT_TURN_STOPPING, AgentStatusChanged
from dsh.execution.agent.invariants import MisroutedEvent
from dsh.execution.prompt.assembly import LayeredSystemPrompt
from dsh.execution.prompt.events import SYSTEM_PROMPT_ASSEMBLE, PromptAssembling
from dsh.execution.prompt.service import AssembleContext, PromptAssembly, SystemPrompt
from dsh.execution.tools.author import define_tool
from dsh.execution.tools.events import TOOLS_RESULT
from dsh.execution.tools.runtime import plugin as tool_runtime
from dsh.execution.tools.service import ToolInput, ToolRuntime
from dsh.kernel import Context, Emit, scope_target
from dsh.model.messages import CallId
from dsh.state.session.events import SESSION_FLUSH
from dsh.state.session.store import LocalSessionStore

A, B = someone("a"), someone("b")


class About:
    """A payload of an event that some plugin dispatches itself."""

    def __init__(self, agent: Any) -> None:
        self.agent = agent


@pytest.fixture
async def heard(root: Context) -> list[object]:
    await root.plugin(invariants)
    return []


@pytest.mark.parametrize(
    "target",
    [None, B, scope_target(None, None), scope_target(None, B)],
    ids=lambda it: type(it).__name__,
)
@pytest.mark.parametrize("name", ["agent/status", "agent/of-a-plugin", "goal/changed"])
async def test_an_event_about_an_agent_needs_the_carrier_of_that_agent(
    root: Context, heard: list[object], name: str, target: Any
) -> None:
    event = Emit[About](name)
    root.on(event, heard.append)
    with pytest.raises(MisroutedEvent, match=name):
        root.emit(event, About(A), target)
    assert heard == []
    root.emit(event, About(A), scope_target(root, A))
    assert len(heard) == 1


async def test_an_unscoped_event_is_nobodys_business(root: Context, heard: list[object]) -> None:
    event = Emit[About]("agent-loop/config-start-failed")
    root.on(event, heard.append)
    root.emit(event, About(A))
    assert len(heard) == 1


async def test_a_contained_event_that_is_misrouted_is_reported_and_told_to_nobody(
    root: Context, heard: list[object]
) -> None:
    reported: list[BaseException] = []
    root.set_reporter(lambda error, *_: reported.append(error))
    root.on(AGENT_STATUS, heard.append)
    agent_events(root, A, scope_target(None, B)).emit(
        AGENT_STATUS, AgentStatusChanged(A, "running")
    )
    assert [type(error) for error in reported] == [MisroutedEvent]
    assert heard == []


async def test_an_assembly_is_routed_by_its_scope(root: Context, heard: list[object]) -> None:
    await root.plugin(LayeredSystemPrompt)
    prompt = root.require(SystemPrompt)
    await prompt.assemble()
    await prompt.assemble(AssembleContext(scope=A))
    made = PromptAssembly()
    asked = PromptAssembling(made, AssembleContext(scope=A))
    with pytest.raises(MisroutedEvent):
        await root.waterfall(SYSTEM_PROMPT_ASSEMBLE, asked, lambda: made, scope_target(None, B))


async def test_a_call_for_nobody_needs_a_carrier_of_no_agent(
    root: Context, heard: list[object]
) -> None:
    await root.plugin(LayeredSystemPrompt)
    await root.plugin(tool_runtime)

    async def act() -> str:
        return "done"

    tools = root.require(ToolRuntime)
    tools.register(define_tool(act, description="does it"))
    root.on(TOOLS_RESULT, heard.append)
    await tools.execute(ToolInput(CallId("c"), "act", {}, AbortController().signal))
    assert len(heard) == 1


async def test_an_event_about_a_session_needs_some_carrier(
    root: Context, heard: list[object]
) -> None:
    await root.plugin(LocalSessionStore)
    root.require(LocalSessionStore).create("s")
    with pytest.raises(MisroutedEvent, match="session/flush"):
        await root.parallel(SESSION_FLUSH, About(A))  # type: ignore[arg-type]


async def test_the_checks_go_with_their_row(root: Context) -> None:
    row = await root.plugin(invariants)
    await row.dispose()
    await root.serial(AGENT_TURN_STOPPING, About(A), scope_target(None, B))  # type: ignore[arg-type]
