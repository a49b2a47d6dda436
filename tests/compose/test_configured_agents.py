"""The shipped rows with agents in the loop's config: a session comes back in the next process."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from dsh.execution.agent.service import Agent, AgentRegistry
from dsh.execution.loop.service import AgentLoop
from dsh.kernel import Context
from dsh.loader.boot import Launch, boot
from dsh.loader.compose import Layer, compose_profile
from dsh.loader.environment import LaunchEnvironment
from dsh.loader.host import AppExit, CommandLine
from dsh.loader.loader import Loader
from dsh.model.messages import SessionId, create_user_message, text_of

ROW = {"id": "helper", "sessionId": "s1", "provider": "deepseek-official", "model": "m"}


async def start(root: Context, folder: Path) -> Agent:
    """Boot the headless rows, without the runner, and wait for the configured agent."""
    quiet = [{"id": name, "disabled": True} for name in ("headless-runner", "headless-startup")]
    home = folder / "home"
    home.mkdir(exist_ok=True)
    overlay: list[Any] = [*quiet, {"id": "agent-loop", "config": {"agents": [ROW]}}]
    composition = compose_profile(
        "headless", home, user_layers=False, overlays=[Layer("test", overlay)]
    )
    launch = Launch(
        composition=composition,
        home=home,
        environment=LaunchEnvironment({}),
        cmdline=CommandLine(),
        cwd=str(folder),
        say=lambda line: None,
    )
    await boot(root, launch, AppExit(lambda _: None))
    return await configured(root)


async def configured(root: Context) -> Agent:
    async with asyncio.timeout(10):
        while (agent := root.require(AgentRegistry).get(SessionId("s1"))) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return agent


async def test_a_configured_session_comes_back_in_the_next_process_and_after_a_reload(
    tmp_path: Path,
) -> None:
    first = Context()
    agent = await start(first, tmp_path)
    agent.inject(create_user_message("remember this"))
    await first.dispose()

    second = Context()
    again = await start(second, tmp_path)
    loop = second.require(AgentLoop).ctx.fiber
    again.inject(create_user_message("and that"))
    await loop.restart()
    await second.require(Loader).quiesce()
    reloaded = await configured(second)
    assert reloaded is not again
    words = [
        text_of(message)
        for event in reloaded.session.events
        if event["type"] == "agent/inbox/spliced"
        for message in event["data"]["inserted"]  # type: ignore[typeddict-item, index]
    ]
    assert words == ["remember this", "and that"]
    await second.dispose()
