from __future__ import annotations

import pytest
from tool_harness import Harness, mount

from dsh.base.signal import AbortSignal
from dsh.kernel import Context


@pytest.fixture
async def harness(root: Context) -> Harness:
    return await mount(root, graceMs=50, strayJoinMs=50)


@pytest.fixture
def signal(harness: Harness) -> AbortSignal:
    return harness.controller.signal
