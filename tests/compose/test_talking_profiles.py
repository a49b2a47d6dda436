"""Commands and questions in the shipped profiles, with real agents."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dsh.control.commands import CommandRuntime
from dsh.control.questions import Answer, QuestionRequest, UserQuestionService
from dsh.execution.agent.service import Agent, AgentOptions, AgentRegistry, CreateAgent
from dsh.kernel import Context
from dsh.loader.boot import Launch, boot
from dsh.loader.compose import Layer, compose_profile
from dsh.loader.environment import LaunchEnvironment
from dsh.loader.host import AppExit, CommandLine
from dsh.model.messages import SessionId, create_user_message

ASK = {"questions": [{"id": "db", "question": "Which?", "options": [{"label": "SQLite"}]}]}
SCRIPT = {
    "replies": [
        {"calls": [{"name": "ask_user_question", "arguments": ASK}]},
        {"text": "As you like."},
    ]
}
QUIET = [
    {"id": row, "disabled": True} for row in ("headless-runner", "headless-startup", "llm-deepseek")
]


async def start(root: Context, folder: Path, profile: str) -> None:
    script = folder / "script.json"
    script.write_text(json.dumps(SCRIPT))
    rehearsal = {"name": "dsh.model.adapters.rehearsal", "config": {"script": str(script)}}
    patches: list[dict[str, Any]] = [
        *(QUIET if profile == "headless" else QUIET[2:]),
        {"id": "agent-default-model", "config": {"provider": "rehearsal", "model": "m"}},
        {"insert": [{"id": "llm-rehearsal", **rehearsal}]},
        {"insert": [{"id": "tool-ask-user", "name": "@deepseek-ai/dsh-tool-ask-user"}]},
    ]
    home = folder / "home"
    home.mkdir()
    overlays = [Layer("test", patches)]
    composition = compose_profile(profile, home, user_layers=False, overlays=overlays)
    assert composition.warnings == []
    launch = Launch(
        composition=composition,
        home=home,
        environment=LaunchEnvironment({}),
        cmdline=CommandLine(),
        cwd=str(folder),
        say=lambda line: None,
    )
    await boot(root, launch, AppExit(lambda _: None))


@pytest.fixture
async def tree() -> AsyncIterator[Context]:
    root = Context()
    yield root
    await root.dispose()


async def new_agent(root: Context, folder: Path) -> Agent:
    options = AgentOptions(provider="rehearsal", model="m")
    asked = CreateAgent(
        session_id=SessionId("talk"), agent_options=options, meta={"cwd": str(folder)}
    )
    return (await root.require(AgentRegistry).create(asked)).agent


@pytest.mark.parametrize(
    ("profile", "names"), [("headless", {"feedback"}), ("web", {"feedback", "export"})]
)
async def test_a_profile_has_its_commands(
    tree: Context, tmp_path: Path, profile: str, names: set[str]
) -> None:
    await start(tree, tmp_path, profile)
    agent = await new_agent(tree, tmp_path)
    commands = tree.require(CommandRuntime)
    assert names <= {found.name for found in commands.all(agent)}
    execution = await commands.execute(agent, "/feedback it is slow")
    assert execution is not None
    assert execution.result.kind == "success"
    assert (tmp_path / "home" / ".anonymous-user-id").read_text().strip() in (
        execution.result.text or ""
    )
    assert [event["type"] for event in agent.session.events if "inbox" not in event["type"]][
        -3:
    ] == ["command/run", "feedback/record", "command/done"]


async def test_an_agent_asks_and_goes_on_with_the_answer(tree: Context, tmp_path: Path) -> None:
    class Person:
        asked: QuestionRequest | None = None

        async def ask(self, request: QuestionRequest) -> list[Answer]:
            self.asked = request
            return [Answer("db", ("SQLite",))]

    person = Person()
    await start(tree, tmp_path, "headless")
    tree.require(UserQuestionService).register_provider(person)
    agent = await new_agent(tree, tmp_path)
    agent.followup(create_user_message("build it"))
    await agent.when_idle()
    assert person.asked is not None
    assert person.asked.agent is agent
    [result] = [
        event["data"]["message"]  # type: ignore[index]
        for event in agent.session.events
        if event["type"] == "tool/result"
    ]
    assert '{"answers":[{"id":"db","selected":["SQLite"]}]}' in str(result)
