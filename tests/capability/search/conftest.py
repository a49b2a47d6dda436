from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from search_harness import Desk, mount

from dsh.kernel import Context


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    return folder


@pytest.fixture(params=["ripgrep", "python"])
def engine(request: pytest.FixtureRequest) -> str:
    """Each engine that this machine can have."""
    if request.param == "ripgrep" and shutil.which("rg") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("ripgrep is missing, and CI=true asks for it")
        pytest.skip("ripgrep is missing")
    return str(request.param)


@pytest.fixture
async def desk(root: Context, workspace: Path, engine: str) -> Desk:
    return await mount(root, workspace, engine=engine)
