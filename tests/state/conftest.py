"""A home of sessions, and a second process on the same folder."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from state_home import Home

from dsh.kernel import Context


@pytest.fixture
async def home(root: Context, tmp_path: Path) -> Home:
    return await Home(root, tmp_path / "sessions").open()


@pytest.fixture
async def again(tmp_path: Path) -> AsyncIterator[Home]:
    """What a second process has, on the same folder."""
    context = Context()
    yield await Home(context, tmp_path / "sessions").open()
    await context.fiber.dispose()
