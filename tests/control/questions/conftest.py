from __future__ import annotations

import pytest
from question_bench import Bench, mount

from dsh.kernel import Context


@pytest.fixture
async def desk(root: Context) -> Bench:
    return await mount(root)
