"""Measure what an agent costs before it does anything, and what its identity costs afterwards.

``python benchmarks/agents.py [--json] [--rounds N]``. All agents share one set of tools.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from dsh.execution.agent.service import AgentRegistry
from dsh.kernel import Context
from report import table
from shipped import booted
from spine import Model, create, mounted

AGENTS, TOOLS = 1_000, 20
STEPS = 100_000
AIMS = {
    "agent: construction, us": "< 1,000",
    "agent: memory, KiB": "< 50",
    "agent: disposal, us": "",
    "agent in the profile headless: construction, us": "",
    "agent in the profile headless: memory, KiB": "",
    "initiator: added to a coroutine step, us": "< 3",
    "initiator: one boundary, us": "",
    "initiator: one look-up, us": "",
}


async def construction() -> dict[str, float]:
    root = await mounted(Model(), more_tools=TOOLS - 1)
    made_us, held_kib, ended_us = await weighed(root, AGENTS, "/")
    await root.dispose()
    async with booted(Model()) as (root, cwd):
        shipped_us, shipped_kib, _ = await weighed(root, AGENTS // 5, cwd)
    return {
        "agent: construction, us": made_us,
        "agent: memory, KiB": held_kib,
        "agent: disposal, us": ended_us,
        "agent in the profile headless: construction, us": shipped_us,
        "agent in the profile headless: memory, KiB": shipped_kib,
    }


async def weighed(root: Context, count: int, cwd: str) -> tuple[float, float, float]:
    """Return microseconds and KiB an agent: construction, memory, disposal."""
    for warm in [await create(root, f"warm-{number}", cwd=cwd) for number in range(10)]:
        await warm.dispose()
    gc.collect()
    began = time.perf_counter()
    handles = [await create(root, f"timed-{number}", cwd=cwd) for number in range(count)]
    made = time.perf_counter()
    for handle in handles:
        await handle.dispose()
    ended = time.perf_counter()
    handles.clear()
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    handles = [await create(root, f"weighed-{number}", cwd=cwd) for number in range(count)]
    gc.collect()
    held = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return (made - began) / count * 1e6, held / count / 1024, (ended - made) / count * 1e6


class Pause:
    """Suspends once without an event loop."""

    def __await__(self) -> Any:
        yield


async def pauses() -> None:
    for _ in range(STEPS):
        await Pause()


def drive(coroutine: Coroutine[Any, Any, None]) -> float:
    """Return microseconds a step."""
    began = time.perf_counter()
    try:
        while True:
            coroutine.send(None)
    except StopIteration:
        return (time.perf_counter() - began) / STEPS * 1e6


def timed(action: Callable[[], object]) -> float:
    """Return microseconds a call."""
    began = time.perf_counter()
    for _ in range(STEPS):
        action()
    return (time.perf_counter() - began) / STEPS * 1e6


async def boundaries() -> dict[str, float]:
    root = await mounted(Model())
    agents, agent = root.require(AgentRegistry), (await create(root)).agent
    plain = drive(pauses())
    figures = {
        "initiator: added to a coroutine step, us": drive(agents.with_initiator(agent, pauses))
        - plain,
        "initiator: one boundary, us": timed(lambda: agents.with_initiator(agent, bool)),
        "initiator: one look-up, us": agents.with_initiator(
            agent, lambda: timed(agents.current_initiator)
        ),
    }
    await root.dispose()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    samples: dict[str, list[float]] = {name: [] for name in AIMS}
    for _ in range(options.rounds):
        for part in (asyncio.run(construction()), asyncio.run(boundaries())):
            for name, figure in part.items():
                samples[name].append(figure)
    medians = {name: statistics.median(values) for name, values in samples.items()}
    if options.json:
        print(json.dumps(medians, indent=2))
        return
    rows = [["median", "measured", "aim"]]
    table(rows + [[name, f"{figure:.2f}", AIMS[name]] for name, figure in medians.items()])


if __name__ == "__main__":
    main()
