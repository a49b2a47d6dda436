"""The shipped profile ``headless`` in this process: every row of it, sessions kept on disk."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from dsh.execution.tools.author import define_tool
from dsh.execution.tools.service import ToolRuntime
from dsh.kernel import Context
from dsh.loader.boot import Launch, boot
from dsh.loader.compose import Layer, compose_profile
from dsh.loader.environment import LaunchEnvironment
from dsh.loader.host import AppExit, CommandLine
from dsh.model.llm.service import LlmRuntime
from spine import Model, add

PATCHES: list[dict[str, Any]] = [
    {"id": "headless-runner", "disabled": True},
    {"id": "headless-startup", "disabled": True},
    {"id": "hmr", "disabled": True},
    {"id": "llm-deepseek", "disabled": True},
    {"id": "session-title-llm", "disabled": True},
    {"id": "agent-default-model", "config": {"provider": "bench", "model": "m"}},
]


@asynccontextmanager
async def booted(model: Model) -> AsyncIterator[tuple[Context, str]]:
    """Boot the profile with the tool ``add``; gives the root and the working folder."""
    with tempfile.TemporaryDirectory(prefix="dsh-bench-") as folder:
        launch = _launch(Path(folder))
        root = Context()
        await boot(root, launch, AppExit(lambda _: None))
        root.require(LlmRuntime).register_adapter(["bench"], model)
        root.require(ToolRuntime).register(define_tool(add))
        yield root, launch.cwd
        await root.dispose()


def _launch(folder: Path) -> Launch:
    home, workspace = folder / "home", folder / "workspace"
    home.mkdir()
    workspace.mkdir()
    overlay = Layer("bench", PATCHES)
    return Launch(
        composition=compose_profile("headless", home, user_layers=False, overlays=[overlay]),
        home=home,
        environment=LaunchEnvironment({"DSH_PERMISSION_MODE": "danger-full-access"}),
        cmdline=CommandLine(),
        cwd=str(workspace),
        say=lambda line: None,
    )
