"""The shipped rows of titles, projections and storage, in the profiles that have them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dsh.execution.agent.service import Agent, AgentOptions, AgentRegistry, CreateAgent
from dsh.kernel import Context
from dsh.loader.boot import Launch, boot
from dsh.loader.compose import Layer, compose_profile
from dsh.loader.environment import LaunchEnvironment
from dsh.loader.host import AppExit, CommandLine
from dsh.model.messages import SessionId, create_user_message
from dsh.state.feedback import MessageFeedback
from dsh.state.projections import ProjectionCache, ProjectionRegistry
from dsh.state.session.events import SESSION_EVENT, SessionEventAppended
from dsh.state.session.service import SessionStore
from dsh.state.storage import DOMAIN_CHANGED
from dsh.state.titles import fold_session_title

SCRIPT = {
    "conversations": [
        {"when": {"contains": "Name the conversation"}, "replies": [{"text": "Parser repair"}]},
        {"replies": [{"text": "Done.", "repeat": 9}]},
    ]
}


class House:
    """A composed profile whose model plays a script."""

    def __init__(self, root: Context, folder: Path) -> None:
        self.root = root
        self.folder = folder
        self.home = folder / "home"

    async def start(self, profile: str, *more: dict[str, Any]) -> House:
        self.home.mkdir(exist_ok=True)
        script = self.folder / "script.json"
        script.write_text(json.dumps(SCRIPT))
        patches: list[dict[str, Any]] = [
            {"id": "headless-runner", "disabled": True},
            {"id": "headless-startup", "disabled": True},
            {"id": "llm-deepseek", "disabled": True},
            {"id": "agent-default-model", "config": {"provider": "rehearsal", "model": "m"}},
            {
                "insert": [
                    {
                        "id": "llm-rehearsal",
                        "name": "dsh.model.adapters.rehearsal",
                        "config": {"script": str(script)},
                    }
                ]
            },
            *more,
        ]
        if profile == "web":
            patches = patches[2:]
        composition = compose_profile(
            profile, self.home, user_layers=False, overlays=[Layer("test", patches)]
        )
        assert composition.warnings == []
        launch = Launch(
            composition=composition,
            home=self.home,
            environment=LaunchEnvironment({}),
            cmdline=CommandLine(),
            cwd=str(self.folder),
            say=lambda line: None,
        )
        await boot(self.root, launch, AppExit(lambda _: None))
        return self

    async def agent(self) -> Agent:
        options = AgentOptions(provider="rehearsal", model="m")
        asked = CreateAgent(
            session_id=SessionId("talk"), agent_options=options, meta={"cwd": str(self.folder)}
        )
        return (await self.root.require(AgentRegistry).create(asked)).agent


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    root = Context()
    yield House(root, tmp_path)
    await root.dispose()


async def talk(agent: Agent, text: str) -> None:
    agent.followup(create_user_message(text))
    await agent.when_idle()


def seen(root: Context, type: str) -> asyncio.Event:
    """Becomes set with the first event of a type whose source is no fallback."""
    found = asyncio.Event()

    def hear(appended: SessionEventAppended) -> None:
        data: Any = appended.event["data"]
        if appended.event["type"] == type and data["source"]["kind"] == "provider":
            found.set()

    root.on(SESSION_EVENT, hear)
    return found


async def test_in_the_web_app_a_model_names_the_session(house: House) -> None:
    await house.start("web")
    agent = await house.agent()
    named = seen(house.root, "session/title")
    await talk(agent, "Please repair the parser of the settings file")
    async with asyncio.timeout(10):
        await named.wait()
    assert fold_session_title(agent.session.events) == "Parser repair"
    values = house.root.require(ProjectionRegistry).snapshot(agent.session)["values"]
    stats: Any = values["sessionStats"]
    assert values["title"] == "Parser repair"
    assert (stats["turns"], stats["steps"]) == (1, 1)


async def test_in_the_web_app_states_are_kept_and_feedback_is_taken(house: House) -> None:
    await house.start("web")
    agent = await house.agent()
    kept = asyncio.Event()
    house.root.on(
        DOMAIN_CHANGED, lambda change: kept.set() if "projcache" in change.domain else None
    )
    await talk(agent, "hello")
    async with asyncio.timeout(10):
        await kept.wait()
    snapshot = house.root.require(ProjectionCache).cached_snapshot(agent.session.header)
    assert snapshot is not None
    assert snapshot["values"].keys() == {"title", "sessionStats", "permissions", "todos"}
    replies = [e for e in agent.session.events if e["type"] == "assistant/message"]
    data: Any = replies[0]["data"]
    done = await house.root.require(MessageFeedback).put(
        {
            "sessionId": agent.session.id,
            "messageId": data["message"]["id"],
            "rating": "negative",
            "ifVersion": None,
        }
    )
    assert done["ok"] is True
    storages = sorted(path.name for path in (house.home / "storages").glob("*.json"))
    assert storages == ["message_feedback.json", "session_projcache.json"]


async def test_one_task_from_the_command_line_makes_no_second_request(house: House) -> None:
    await house.start("headless")
    agent = await house.agent()
    await talk(agent, "Please repair the parser of the settings file")
    await house.root.require(SessionStore).flush(agent.session)
    types = [event["type"] for event in agent.session.events]
    assert "session/title-llm-request" not in types
    assert types.count("request/header") == 1
    assert fold_session_title(agent.session.events) == "Please repair the parser of"


async def test_a_damaged_cache_does_not_prevent_a_boot(house: House) -> None:
    (house.home / "storages").mkdir(parents=True)
    (house.home / "storages" / "session_projcache.json").write_text("{torn")
    await house.start("web")
    agent = await house.agent()
    await talk(agent, "hello")
    assert (house.home / "storages" / "session_projcache.json.damaged").read_text() == "{torn"


async def test_damaged_feedback_ends_the_boot_and_says_where_it_is(house: House) -> None:
    (house.home / "storages").mkdir(parents=True)
    (house.home / "storages" / "message_feedback.json").write_text("{torn")
    with pytest.raises(Exception, match=r"message-feedback.*message_feedback\.json.*move it away"):
        await house.start("web")
    assert (house.home / "storages" / "message_feedback.json").read_text() == "{torn"


async def test_domains_can_be_kept_in_sqlite(house: House) -> None:
    path = house.folder / "records.db"
    await house.start(
        "web",
        {
            "insert": [
                {
                    "id": "storage-sqlite",
                    "name": "@deepseek-ai/dsh-storage-sqlite",
                    "config": {"path": str(path)},
                }
            ]
        },
        {"id": "storage-domain", "config": {"backend": "sqlite"}},
    )
    await talk(await house.agent(), "hello")
    assert path.exists()
