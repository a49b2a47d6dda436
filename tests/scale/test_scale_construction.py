"""What an agent weighs before it does anything."""

from __future__ import annotations

import gc
import tracemalloc

from scale_harness import Crowd, gather

from dsh.execution.tools.author import define_tool
from dsh.execution.tools.service import ToolRuntime
from dsh.kernel import Context

AGENTS, TOOLS = 200, 20
BOUND_BYTES = 50_000


async def test_an_agent_that_shares_its_tools_weighs_under_fifty_kilobytes(root: Context) -> None:
    crowd = await gather(root, Crowd)
    for number in range(TOOLS):
        tool = define_tool(crowd.work, name=f"work-{number}")
        root.require(ToolRuntime).register(tool)
    await crowd.create("first")
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        handles = [await crowd.create(f"agent-{number}") for number in range(AGENTS)]
        gc.collect()
        held = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert len(crowd.agents.all()) == len(handles) + 1
    assert held / AGENTS < BOUND_BYTES
