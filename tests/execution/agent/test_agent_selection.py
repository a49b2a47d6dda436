"""A policy that chooses an agent's model, at the seams that it uses."""

from __future__ import annotations

from typing import Any

import pytest
from initiator_faces import someone

from dsh.base.signal import AbortController, AbortSignal
from dsh.control.default_model.service import ModelSelection
from dsh.execution.agent.dispatch import agent_events, assemble_context_for
from dsh.execution.agent.events import AGENT_REQUEST, AgentRequest
from dsh.execution.agent.selection import SelectionRef, install_model_selection
from dsh.execution.agent.service import Agent
from dsh.execution.prompt.assembly import LayeredSystemPrompt
from dsh.execution.prompt.events import SYSTEM_PROMPT_ASSEMBLE
from dsh.execution.prompt.service import AssembleContext, SystemPrompt
from dsh.kernel import Context, create_scope
from dsh.model.llm.service import LlmCallConfig

A, B = someone("a"), someone("b")
OWN: LlmCallConfig = {
    "provider": "own",
    "model": "own-m",
    "reasoningEffort": "low",
    "maxTokens": 9,
}


class Desk:
    """One agent's scope, with what its prompts and requests come out as."""

    def __init__(self, root: Context) -> None:
        self.root = root
        self.ctx = create_scope(root, A).ctx
        self.turn = AbortController().signal
        self.prompt = root.require(SystemPrompt)
        self.prompt.variable("provider", lambda _: "own")
        self.prompt.variable("model", lambda _: "own-m")

    async def assembled(self, agent: Agent = A) -> tuple[str | None, str | None]:
        return await self.shown(assemble_context_for(agent, self.turn))

    async def shown(self, context: AssembleContext) -> tuple[str | None, str | None]:
        variables = (await self.prompt.assemble(context)).variables
        return variables["provider"], variables["model"]

    async def requested(self, agent: Agent = A) -> Any:
        asked = AgentRequest(agent, 1, 1, self.turn)
        return await agent_events(self.root, agent).waterfall(AGENT_REQUEST, asked, lambda: OWN)


@pytest.fixture
async def desk(root: Context) -> Desk:
    await root.plugin(LayeredSystemPrompt)
    return Desk(root)


async def test_a_switch_in_the_middle_of_a_step_waits_for_the_next_prompt(desk: Desk) -> None:
    ref = SelectionRef(ModelSelection("one", "m1"))
    install_model_selection(desk.ctx, ref)
    assert await desk.assembled() == ("one", "m1")
    ref.current = ModelSelection("two", "m2")
    assert (await desk.requested())["model"] == "m1"
    assert await desk.assembled() == ("two", "m2")
    assert (await desk.requested())["provider"] == "two"


async def test_a_switch_while_a_prompt_is_made_waits_for_the_one_after(desk: Desk) -> None:
    ref = SelectionRef(ModelSelection("one", "m1"))
    install_model_selection(desk.ctx, ref)

    async def switch(event: Any, following: Any) -> Any:
        ref.current = ModelSelection("two", "m2")
        return await following()

    switching = desk.root.on(SYSTEM_PROMPT_ASSEMBLE, switch)
    assert await desk.assembled() == ("one", "m1")
    switching.dispose()
    assert (await desk.requested())["model"] == "m1"


@pytest.mark.parametrize("signal", [None, AbortController().signal], ids=["none", "its own"])
async def test_a_preview_between_prompt_and_request_changes_no_route(
    desk: Desk, signal: AbortSignal | None
) -> None:
    ref = SelectionRef(ModelSelection("one", "m1"))
    install_model_selection(desk.ctx, ref)
    await desk.assembled()
    ref.current = ModelSelection("two", "m2")
    assert await desk.shown(assemble_context_for(A, signal)) == ("two", "m2")
    assert (await desk.requested())["model"] == "m1"


async def test_a_prompt_that_failed_changes_no_route(desk: Desk) -> None:
    ref = SelectionRef(ModelSelection("one", "m1"))
    install_model_selection(desk.ctx, ref)
    await desk.assembled()
    ref.current = ModelSelection("two", "m2")

    async def fail(event: Any, following: Any) -> Any:
        await following()
        raise LookupError

    failing = desk.root.on(SYSTEM_PROMPT_ASSEMBLE, fail)
    with pytest.raises(LookupError):
        await desk.assembled()
    failing.dispose()
    assert (await desk.requested())["model"] == "m1"


@pytest.mark.parametrize("effort", [None, "high"])
async def test_an_inherited_effort_never_reaches_another_route(
    desk: Desk, effort: str | None
) -> None:
    install_model_selection(desk.ctx, SelectionRef(ModelSelection("one", "m1", effort)))
    await desk.assembled()
    wanted: dict[str, Any] = {"provider": "one", "model": "m1", "maxTokens": 9}
    if effort is not None:
        wanted["reasoningEffort"] = effort
    assert await desk.requested() == wanted


async def test_without_a_choice_the_agents_own_route_stands(desk: Desk) -> None:
    ref = SelectionRef(ModelSelection("one", "m1"))
    install_model_selection(desk.ctx, ref)
    await desk.assembled()
    ref.current = None
    assert await desk.assembled() == ("own", "own-m")
    assert await desk.requested() == OWN


async def test_a_choice_concerns_its_agent_alone_and_ends_with_its_undo(desk: Desk) -> None:
    end = install_model_selection(desk.ctx, SelectionRef(ModelSelection("one", "m1")))
    assert await desk.assembled() == ("one", "m1")
    assert await desk.assembled(B) == ("own", "own-m")
    assert await desk.requested(B) == OWN
    end()
    end()
    assert await desk.assembled() == ("own", "own-m")
    assert await desk.requested() == OWN


async def test_an_assembly_is_for_the_agent_in_its_own_scope() -> None:
    signal = AbortController().signal
    made = assemble_context_for(A, signal)
    assert (made.agent, made.scope, made.signal) == (A, A, signal)
