from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from code_world import World

from dsh.capability.code_runtime.process import ProcessCodeRuntime
from dsh.capability.code_runtime.service import CodeRuntime
from dsh.capability.subprocess.service import SubprocessRuntime
from dsh.kernel import Context, Fiber

Make = Callable[..., Awaitable[World]]


@pytest.fixture
def make(root: Context, runtime: SubprocessRuntime) -> Make:
    """Mounts a code runtime with the given config, in place of the one before.

    There is no sandbox policy, so that programs may only write to their own folder.
    """
    if runtime.grants_enforcement() is None:
        pytest.skip("this kernel does not offer Landlock")

    mounted: list[Fiber] = []

    async def mount(**config: Any) -> World:
        for fiber in mounted:
            await fiber.dispose()
        mounted.append(await root.plugin(ProcessCodeRuntime, config))
        return World(root.require(CodeRuntime), mounted[-1])

    return mount


@pytest.fixture
async def world(make: Make) -> World:
    """A code runtime with its default budgets."""
    return await make()
