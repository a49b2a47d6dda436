"""Agents that come and go in the shipped profile, with every row of it mounted."""

from __future__ import annotations

import asyncio
import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
from scale_harness import Crowd, blocks

from dsh.execution.tools.author import define_tool
from dsh.execution.tools.service import ToolRuntime
from dsh.kernel import Context
from dsh.loader.boot import Launch, boot
from dsh.loader.compose import Layer, compose_profile
from dsh.loader.environment import LaunchEnvironment
from dsh.loader.host import AppExit, CommandLine
from dsh.model.llm.service import LlmRuntime
from dsh.model.messages import create_user_message

AGENTS, GENERATIONS = 20, 5
PATCHES: list[dict[str, Any]] = [
    {"id": "headless-runner", "disabled": True},
    {"id": "headless-startup", "disabled": True},
    {"id": "hmr", "disabled": True},
    {"id": "llm-deepseek", "disabled": True},
    {"id": "agent-default-model", "config": {"provider": "scripted", "model": "m"}},
]


@pytest.fixture
async def crowd(root: Context, tmp_path: Path) -> Crowd:
    home, workspace = tmp_path / "home", tmp_path / "workspace"
    home.mkdir()
    workspace.mkdir()
    overlay = Layer("scale", PATCHES)
    launch = Launch(
        composition=compose_profile("headless", home, user_layers=False, overlays=[overlay]),
        home=home,
        environment=LaunchEnvironment({"DSH_PERMISSION_MODE": "danger-full-access"}),
        cmdline=CommandLine(),
        cwd=str(workspace),
        say=lambda line: None,
    )
    await boot(root, launch, AppExit(lambda _: None))
    crowd = Crowd(root)
    crowd.cwd = str(workspace)
    root.require(LlmRuntime).register_adapter(["scripted"], crowd)
    root.require(ToolRuntime).register(define_tool(crowd.work))
    return crowd


async def generation(crowd: Crowd, number: int) -> None:
    """Let agents live, and wait until nothing holds them or their sessions any more."""
    handles = [await crowd.create(f"agent-{number}-{each}") for each in range(AGENTS)]
    for handle in handles:
        crowd.asked[handle.agent.id] = 0
        handle.agent.followup(create_user_message("go"))
    await asyncio.gather(*(handle.agent.when_idle() for handle in handles))
    alive: weakref.WeakSet[Any] = weakref.WeakSet()
    for handle in handles:
        alive.add(handle.agent)
        alive.add(handle.agent.session)
        await handle.dispose()
    handles.clear()
    del handle
    crowd.forget()
    async with asyncio.timeout(10):
        while alive:  # the store writes the last events in its own time
            await asyncio.sleep(0.01)
            gc.collect()


async def test_agents_of_the_shipped_profile_leave_nothing_in_memory(crowd: Crowd) -> None:
    for number in range(2):
        await generation(crowd, number)
    before = blocks()
    for number in range(GENERATIONS):
        await generation(crowd, 2 + number)
    assert blocks() - before < AGENTS * GENERATIONS
