from __future__ import annotations

import pytest
from command_bench import Bench, mount

from dsh.kernel import Context


@pytest.fixture
async def bench(root: Context) -> Bench:
    return await mount(root)
