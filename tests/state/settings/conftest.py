"""Fixtures of the settings' tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from settings_harness import Tree

from dsh.kernel import Context


@pytest.fixture
async def tree(root: Context, tmp_path: Path) -> Tree:
    """Settings in a file that is not there yet."""
    return await Tree(root, tmp_path / "home" / "settings.yaml").open()
