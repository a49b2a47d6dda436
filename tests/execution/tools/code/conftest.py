from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
from code_desk import Desk, mount_desk  # noqa: E402  # found through the line above

from dsh.kernel import Context  # noqa: E402


@pytest.fixture
async def desk(root: Context) -> Desk:
    """Tools presented as code, a real code runtime, and an agent with an open turn."""
    return await mount_desk(root)
