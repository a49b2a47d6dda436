from __future__ import annotations

from pathlib import Path

import pytest
from fs_harness import Desk, mount

from dsh.kernel import Context


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    return folder


@pytest.fixture
async def desk(root: Context, workspace: Path) -> Desk:
    return await mount(root, workspace)
