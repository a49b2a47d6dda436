"""The shipped rows of the agent spine: nothing drives agents without who carries their identity."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dsh.execution.agent.service import AgentOptions, AgentRegistry, CreateAgent
from dsh.execution.agent_execution.service import AgentExecution, AgentExecutionService
from dsh.kernel import Context
from dsh.loader.boot import Launch, boot
from dsh.loader.compose import Layer, compose_profile
from dsh.loader.environment import LaunchEnvironment
from dsh.loader.errors import BootFailed
from dsh.loader.host import AppExit, CommandLine
from dsh.model.messages import SessionId


async def start(root: Context, folder: Path, *patches: dict[str, Any]) -> None:
    """Boot the headless rows without the runner, which would take a task and end."""
    quiet = [{"id": name, "disabled": True} for name in ("headless-runner", "headless-startup")]
    (folder / "home").mkdir()
    composition = compose_profile(
        "headless",
        folder / "home",
        user_layers=False,
        overlays=[Layer("test", [*quiet, *patches])],
    )
    launch = Launch(
        composition=composition,
        home=folder / "home",
        environment=LaunchEnvironment({}),
        cmdline=CommandLine(),
        cwd=str(folder),
        say=lambda line: None,
    )
    await boot(root, launch, AppExit(lambda _: None))


async def test_the_standard_rows_have_both_faces_of_the_carrier(
    root: Context, tmp_path: Path
) -> None:
    await start(root, tmp_path)
    agents, execution = root.require(AgentRegistry), root.require(AgentExecutionService)
    options = AgentOptions(provider="deepseek-official", model="m")
    handle = await agents.create(CreateAgent(session_id=SessionId("s"), agent_options=options))
    seen = agents.with_initiator(handle.agent, execution.current)
    assert seen == AgentExecution(handle.agent)
    inside = execution.run(AgentExecution(handle.agent), agents.current_initiator)
    assert inside is handle.agent
    await handle.dispose()


async def test_without_the_carrier_the_loop_refuses_to_load_and_the_boot_says_why(
    root: Context, tmp_path: Path
) -> None:
    root.set_reporter(lambda *_: None)
    with pytest.raises(BootFailed) as caught:
        await start(root, tmp_path, {"id": "agent", "disabled": True})
    (said,) = caught.value.problems
    waiting, _, reason = said.partition(" did not activate: ")
    assert {'"agent-loop"', '"agent-execution"'} <= set(waiting.replace(",", "").split())
    assert "waiting for service(s): agents" in reason
    assert "no row provides agents" in reason
    assert root.get("agent_loop") is None
    assert root.get("agent_execution") is None
