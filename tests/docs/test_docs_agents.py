"""docs/agents.md: its examples run as they are printed, and its events are those of the code."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from typing import Any

from dsh.execution.agent import events
from dsh.execution.agent.registry import LiveAgents
from dsh.execution.agent.service import AgentRegistry, CreateAgent
from dsh.execution.prompt.assembly import LayeredSystemPrompt
from dsh.execution.prompt.service import SystemPrompt, render_context_sections, render_prompt
from dsh.kernel import Context, Event
from dsh.model.messages import UserMessage

TEXT = (Path(__file__).parents[2] / "docs" / "agents.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def example(number: int) -> Any:
    module = ModuleType(f"example_{number}")
    exec(BLOCKS[number], vars(module))
    return module


class Noted:
    """A handle and its agent, which write down what is done with them."""

    def __init__(self) -> None:
        self.done: list[str] = []

    @property
    def agent(self) -> Noted:
        return self

    def followup(self, message: UserMessage) -> None:
        self.done.append("followup")

    async def when_idle(self) -> None:
        self.done.append("idle")

    async def dispose(self) -> None:
        self.done.append("disposed")


async def test_the_agent_of_the_page_is_made_asked_and_ended(root: Context) -> None:
    await root.plugin(LiveAgents)
    noted, asked = Noted(), list[CreateAgent]()

    class Factory:
        async def create_agent(self, owner: Context, options: CreateAgent) -> Any:
            asked.append(options)
            return noted

        async def resume_agent(self, owner: Context, options: Any) -> Any:
            raise NotImplementedError

    root.require(AgentRegistry).set_factory(Factory())
    await example(0).review(root)
    assert [options.session_id for options in asked] == ["review"]
    assert noted.done == ["followup", "idle", "disposed"]


async def test_the_contributions_of_the_page_make_a_prompt(root: Context) -> None:
    await root.plugin(LayeredSystemPrompt, {"includeHarnessIdentity": False})
    await root.plugin(example(1))
    made = await root.require(SystemPrompt).assemble()
    assert render_prompt(made) == "Work on main. Never force a push."
    assert [part.text for part in render_context_sections(made)] == ["2 files changed"]


def test_the_page_lists_every_event_with_its_kind_and_payload() -> None:
    rows = re.findall(r"^\| (`agent/.*?`) \| (\w+) \| (.*?) \|", TEXT, re.MULTILINE)
    listed = {
        name: (kind, set(re.findall(r"`(\w+)`", payload)))
        for names, kind, payload in rows
        for name in re.findall(r"`(.*?)`", names)
    }
    declared = {item.name: item for item in vars(events).values() if isinstance(item, Event)}
    assert listed.keys() == declared.keys()
    payloads = {
        "agent/status": events.AgentStatusChanged,
        "agent/pre-step": events.AgentPreStep,
        "agent/request": events.AgentRequest,
        "agent/request-error": events.AgentRequestError,
        "agent/turn-stopping": events.AgentTurnStopping,
        "agent/error": events.AgentErrorRaised,
        "agent/session-start": events.AgentSessionStarted,
        "agent/inbox/claimed": events.InboxClaimed,
        "agent/inbox/inserted": events.InboxInserted,
        "agent/inbox/discarded": events.InboxDiscarded,
        "agent/created": events.AgentCreated,
        "agent/disposed": events.AgentDisposed,
    }
    for name, (kind, fields) in listed.items():
        assert kind == declared[name].mode
        assert fields == set(payloads[name].__annotations__) - {"agent"}, name
