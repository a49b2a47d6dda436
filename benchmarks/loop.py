"""Measure the loop's own work in a step, beside other agent frameworks, and in a streamed chunk.

``python benchmarks/loop.py [--json] [--only NAME] [--rounds N]``. Each framework runs the same
task in one run of this script: a scripted model that asks for one small tool in every step. Short
tasks alternate between the frameworks, so that a busy machine slows all of them. A framework that
is not installed is named, not measured.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from dsh.execution.agent.service import Agent
from dsh.model.assembler import BlockAssembler
from dsh.model.chunks import StreamChunk, block_start, finish, text_delta
from dsh.model.llm.service import GenerateOptions, LlmRuntime
from dsh.model.messages import create_user_message
from dsh.state.session.events import ASSISTANT_CHUNK
from report import table
from spine import Mark, Model, create, mounted

PEERS = {
    "dsh": "peers.loop_dsh",
    "dsh, profile headless": "peers.loop_profile",
    "langgraph": "peers.loop_langgraph",
    "pydantic-ai": "peers.loop_pydantic_ai",
}
SHORT, LONG = 20, 1_000
CHUNKS = 20_000


@dataclass
class Cost:
    """Milliseconds of one step, by the clock and of the processor."""

    wall_ms: float
    cpu_ms: float


@dataclass
class StepCosts:
    """What a step costs early and late in one task; each the median of all rounds."""

    name: str
    at_10: Cost
    at_1000: Cost

    @property
    def growth(self) -> float:
        return self.at_1000.cpu_ms / self.at_10.cpu_ms


def gaps(marks: Sequence[Mark], first: int, last: int) -> list[Mark]:
    """Milliseconds from the request of each step to that of the next."""
    return [
        ((end[0] - start[0]) * 1e3, (end[1] - start[1]) * 1e3)
        for start, end in zip(marks[first - 1 : last], marks[first : last + 1], strict=True)
    ]


def cost_of(samples: Sequence[Mark]) -> Cost:
    wall, cpu = (statistics.median(values) for values in zip(*samples, strict=True))
    return Cost(wall, cpu)


async def measure_steps(peers: Sequence[Any], rounds: int) -> list[StepCosts]:
    early: dict[str, list[Mark]] = {peer.name: [] for peer in peers}
    late: dict[str, list[Mark]] = {peer.name: [] for peer in peers}
    for peer in peers:
        await peer.run(SHORT)  # imports and caches
    for _ in range(rounds):
        for peer in peers:
            gc.collect()
            early[peer.name] += gaps(await peer.run(SHORT), 6, 14)
    for peer in peers:
        gc.collect()
        late[peer.name] += gaps(await peer.run(LONG), LONG - 49, LONG)
    return [
        StepCosts(peer.name, cost_of(early[peer.name]), cost_of(late[peer.name])) for peer in peers
    ]


@dataclass
class ChunkFigures:
    """Microseconds a chunk: the whole turn, its parts measured alone, and what is left."""

    chunks: int
    turn_us: float
    append_us: float
    stream_us: float
    assemble_us: float
    loop_own_us: float


async def measure_chunks(count: int) -> ChunkFigures:
    model = Model()
    words = [text_delta(0, "word ") for _ in range(count)]
    model.reply = [block_start(0, "text"), *words, finish("stop")]
    rounds: list[tuple[float, ...]] = []
    for _ in range(5):
        root = await mounted(model, more_tools=9)
        agent = (await create(root)).agent
        gc.collect()
        began = time.perf_counter()
        agent.followup(create_user_message("go"))
        await agent.when_idle()
        turn = time.perf_counter() - began
        await root.dispose()
        root = await mounted(model, more_tools=9)
        agent = (await create(root)).agent
        gc.collect()
        appends = live_appends(agent, model.reply)
        parts = (await bare_stream(root.require(LlmRuntime)), assembly(model.reply))
        await root.dispose()
        rounds.append((turn, appends, *parts))
    turn_us, append_us, stream_us, assemble_us = (
        statistics.median(values) / count * 1e6 for values in zip(*rounds, strict=True)
    )
    own = turn_us - append_us - stream_us - assemble_us
    return ChunkFigures(count, turn_us, append_us, stream_us, assemble_us, own)


def live_appends(agent: Agent, chunks: Sequence[StreamChunk]) -> float:
    began = time.perf_counter()
    for chunk in chunks:
        agent.session.append(ASSISTANT_CHUNK, {"turn": 1, "step": 1, "chunk": chunk})
    return time.perf_counter() - began


async def bare_stream(llm: LlmRuntime) -> float:
    began = time.perf_counter()
    async with aclosing(llm.stream(GenerateOptions("bench", "m", []))) as chunks:
        async for _ in chunks:
            pass
    return time.perf_counter() - began


def assembly(chunks: Sequence[StreamChunk]) -> float:
    assembler = BlockAssembler()
    began = time.perf_counter()
    for chunk in chunks:
        assembler.push(chunk)
    assembler.blocks()
    return time.perf_counter() - began


def load(only: str | None) -> tuple[list[Any], list[str]]:
    """Load the frameworks; say which are left out, and why."""
    peers: list[Any] = []
    left_out: list[str] = []
    for name, module in PEERS.items():
        if only is None or name == only:
            try:
                peers.append(import_module(module).Adapter())
            except ImportError as error:
                left_out.append(f"{name}: not measured: {error}")
    return peers, left_out


def show(steps: Sequence[StepCosts], chunks: ChunkFigures | None, left_out: Sequence[str]) -> None:
    print("one step with one small tool, milliseconds by the clock (of the processor)")
    print("aim: < 2 ms at step 10, at most 1.3 x that at step 1,000, a third of either peer")
    own = steps[0]
    rows = [["", "step 10", "step 1,000", "1,000 / 10", "theirs / ours", "at 1,000"]]
    for row in steps:
        cells = [f"{cost.wall_ms:.2f} ({cost.cpu_ms:.2f})" for cost in (row.at_10, row.at_1000)]
        ratios = [
            f"{theirs.cpu_ms / ours.cpu_ms:.1f}"
            for theirs, ours in ((row.at_10, own.at_10), (row.at_1000, own.at_1000))
        ]
        rows.append([row.name, *cells, f"{row.growth:.2f}", *ratios])
    table(rows)
    for line in left_out:
        print(line)
    if chunks is not None:
        print(f"one reply of {chunks.chunks} chunks, microseconds a chunk")
        print(
            f"  whole turn {chunks.turn_us:.2f}: append {chunks.append_us:.2f}, "
            f"stream {chunks.stream_us:.2f}, assemble {chunks.assemble_us:.2f}, "
            f"the loop's own {chunks.loop_own_us:.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--rounds", type=int, default=15, help="short tasks of each framework")
    parser.add_argument("--only", choices=sorted(PEERS), help="measure one framework")
    options = parser.parse_args()
    peers, left_out = load(options.only)
    if not peers:
        sys.exit("\n".join(left_out))
    steps = asyncio.run(measure_steps(peers, options.rounds))
    chunks = asyncio.run(measure_chunks(CHUNKS)) if options.only in (None, "dsh") else None
    if options.json:
        figures = {
            "steps": [asdict(row) for row in steps],
            "chunks": chunks and asdict(chunks),
            "left_out": left_out,
        }
        print(json.dumps(figures, indent=2))
    else:
        show(steps, chunks, left_out)


if __name__ == "__main__":
    main()
