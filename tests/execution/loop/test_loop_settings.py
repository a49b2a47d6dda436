"""The section ``agent-loop`` of the settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from loop_harness import Loop, mount

from dsh.execution.loop.service import AgentLoop
from dsh.kernel import Context
from dsh.state.settings import SettingsProvider, SettingsRefused
from dsh.state.settings.file import FileSettings


@pytest.fixture
async def stored(root: Context, model: Any, tmp_path: Path) -> Loop:
    """A loop whose row says 4, over a file of settings."""
    await root.plugin(FileSettings, {"path": str(tmp_path / "settings.yaml")})
    return await mount(root, model, maxParallelToolCalls=4)


async def test_the_users_limit_outranks_the_row_at_once(root: Context, stored: Loop) -> None:
    service = root.require(AgentLoop)
    assert service.max_parallel_tool_calls == 4
    await root.require(SettingsProvider).update("agent-loop", {"maxParallelToolCalls": 1})
    assert service.max_parallel_tool_calls == 1
    await root.require(SettingsProvider).replace("agent-loop", {})
    assert service.max_parallel_tool_calls == 4


@pytest.mark.parametrize("limit", [0, -1, 1.5, "x"])
async def test_a_limit_that_is_no_positive_number_is_refused(
    root: Context, stored: Loop, limit: object
) -> None:
    with pytest.raises(SettingsRefused, match=r"\$\.maxParallelToolCalls"):
        await root.require(SettingsProvider).update("agent-loop", {"maxParallelToolCalls": limit})
    assert root.require(AgentLoop).max_parallel_tool_calls == 4


async def test_agents_of_the_row_are_no_settings(root: Context, stored: Loop) -> None:
    with pytest.raises(SettingsRefused, match=r"\$\.agents"):
        await root.require(SettingsProvider).update("agent-loop", {"agents": []})


async def test_the_loop_and_its_agents_stay_when_the_settings_are_replaced(
    root: Context, model: Any, tmp_path: Path
) -> None:
    provider = await root.plugin(FileSettings, {"path": str(tmp_path / "one.yaml")})
    loop = await mount(root, model)
    agent = await loop.agent()
    await provider.dispose()
    (tmp_path / "two.yaml").write_text("agent-loop: {maxParallelToolCalls: 2}\n")
    await root.plugin(FileSettings, {"path": str(tmp_path / "two.yaml")})
    while root.require(AgentLoop).max_parallel_tool_calls != 2:
        await root.fiber
    assert agent.status == "idle"
