"""Measure the loop's own work: steps in one turn, chunks of one reply, initiator boundaries.

Run ``python benchmarks/loop.py [--json]``. Everything is real but the model's words; medians and
ratios come from one run, so that they can be compared on any machine.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass
from typing import Any

from dsh.execution.agent.initiator import InitiatorScope
from dsh.execution.agent.registry import LiveAgents
from dsh.execution.agent.service import Agent, AgentOptions, AgentRegistry, CreateAgent
from dsh.execution.loop.plugin import TurnLoop
from dsh.execution.prompt.assembly import LayeredSystemPrompt
from dsh.execution.tools.author import define_tool
from dsh.execution.tools.runtime import plugin as tool_runtime
from dsh.execution.tools.service import ToolRuntime
from dsh.kernel import Context
from dsh.model.assembler import BlockAssembler
from dsh.model.chunks import StreamChunk, block_end, block_start, finish, text_delta
from dsh.model.llm.runtime import AdapterRuntime
from dsh.model.llm.service import (
    GenerateOptions,
    LlmAdapter,
    LlmProviderInfo,
    LlmRuntime,
    ResolvedModelInfo,
)
from dsh.model.messages import SessionId, create_user_message
from dsh.state.session.events import ASSISTANT_CHUNK
from dsh.state.session.store import LocalSessionStore

STEPS = (10, 100, 1_000)
CHUNKS = 20_000


class Model(LlmAdapter):
    """Calls one tool so many times, then says a word; or streams one long reply."""

    def __init__(self) -> None:
        self.steps = 0
        self.marks: list[float] = []
        self.reply: list[StreamChunk] | None = None

    def provider_info(self, provider: str) -> LlmProviderInfo:
        return LlmProviderInfo(provider, provider)

    async def resolve_model(
        self, provider: str, model: str, signal: object = None
    ) -> ResolvedModelInfo:
        return ResolvedModelInfo(provider, model, model, input_modalities=("text",))

    async def stream(self, options: GenerateOptions) -> AsyncIterator[StreamChunk]:
        if self.reply is not None:
            for chunk in self.reply:
                yield chunk
            return
        self.marks.append(time.perf_counter())
        if len(self.marks) > self.steps:
            yield block_end(0, {"type": "text", "text": "done"})
            yield finish("stop")
            return
        number = len(self.marks)
        yield block_end(
            0,
            {
                "type": "tool-call",
                "id": f"call-{number}",
                "name": "add",
                "arguments": f'{{"left": {number}, "right": 1}}',
            },
        )
        yield finish("tool-calls")


async def add(left: int, right: int) -> int:
    """Add two numbers."""
    return left + right


async def mounted(model: Model) -> tuple[Context, Agent]:
    root = Context()
    for plugin in (
        LocalSessionStore,
        AdapterRuntime,
        LayeredSystemPrompt,
        tool_runtime,
        LiveAgents,
    ):
        await root.plugin(plugin)
    await root.plugin(TurnLoop, {})
    root.require(LlmRuntime).register_adapter(["bench"], model)
    root.require(ToolRuntime).register(define_tool(add))
    for number in range(9):
        root.require(ToolRuntime).register(
            define_tool(add, name=f"add{number}", description="Add two numbers as well.")
        )
    handle = await root.require(AgentRegistry).create(
        CreateAgent(
            session_id=SessionId("bench"),
            agent_options=AgentOptions(provider="bench", model="m"),
        )
    )
    return root, handle.agent


@dataclass
class StepFigures:
    """Milliseconds from one request of a turn to the next."""

    steps: int
    median_ms: float
    early_ms: float
    late_ms: float
    late_to_early: float


async def measure_steps(steps: int) -> StepFigures:
    model = Model()
    model.steps = steps
    root, agent = await mounted(model)
    agent.followup(create_user_message("go"))
    await agent.when_idle()
    await root.fiber.dispose()
    gaps = [
        (later - earlier) * 1_000
        for earlier, later in zip(model.marks, model.marks[1:], strict=False)
    ]
    window = max(5, steps // 20)
    early = statistics.median(gaps[5 : 5 + window] or gaps)
    late = statistics.median(gaps[-window:])
    return StepFigures(steps, statistics.median(gaps), early, late, late / early)


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
        root, agent = await mounted(model)
        gc.collect()
        began = time.perf_counter()
        agent.followup(create_user_message("go"))
        await agent.when_idle()
        turn = time.perf_counter() - began
        await root.fiber.dispose()
        root, agent = await mounted(model)
        gc.collect()
        appends = live_appends(agent, model.reply)
        parts = (await bare_stream(root.require(LlmRuntime)), assembly(model.reply))
        await root.fiber.dispose()
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


@dataclass
class BoundaryFigures:
    """Nanoseconds of initiator boundaries."""

    plain_step_ns: float
    bound_step_ns: float
    step_cost_ns: float
    boundary_ns: float
    lookup_ns: float


class Pause:
    """Suspends once without an event loop."""

    def __await__(self) -> Any:
        yield


async def pauses(count: int) -> None:
    for _ in range(count):
        await Pause()


def drive(coroutine: Any) -> float:
    began = time.perf_counter()
    try:
        while True:
            coroutine.send(None)
    except StopIteration:
        return time.perf_counter() - began


def timed(action: Callable[[], object], count: int) -> float:
    began = time.perf_counter()
    for _ in range(count):
        action()
    return (time.perf_counter() - began) / count * 1e9


def measure_boundaries(count: int = 100_000) -> BoundaryFigures:
    scope, agent = InitiatorScope(), Model()
    plain, bound, enter, look = [], [], [], []
    for _ in range(5):
        plain.append(drive(pauses(count)) / count * 1e9)
        bound.append(drive(scope.run(agent, lambda: pauses(count))) / count * 1e9)  # type: ignore[arg-type]
        enter.append(timed(lambda: scope.run(agent, lambda: None), count))  # type: ignore[arg-type]
        look.append(scope.run(agent, lambda: timed(scope.current, count)))  # type: ignore[arg-type]
    figures = [statistics.median(values) for values in (plain, bound, enter, look)]
    return BoundaryFigures(figures[0], figures[1], figures[1] - figures[0], figures[2], figures[3])


async def measure() -> dict[str, Any]:
    await measure_steps(50)
    return {
        "steps": [asdict(await measure_steps(steps)) for steps in STEPS],
        "chunks": asdict(await measure_chunks(CHUNKS)),
        "boundaries": asdict(measure_boundaries()),
    }


def show(figures: dict[str, Any]) -> None:
    print("steps in one turn, one small tool each (aim: < 2 ms, late <= 1.3 x early)")
    for row in figures["steps"]:
        print(
            f"  {row['steps']:>5} steps: median {row['median_ms']:.3f} ms, "
            f"early {row['early_ms']:.3f}, late {row['late_ms']:.3f}, "
            f"late/early {row['late_to_early']:.2f}"
        )
    ends = [row["late_ms"] for row in figures["steps"]]
    print(f"  step {STEPS[-1]} to step {STEPS[0]}: {ends[-1] / ends[0]:.2f} x")
    row = figures["chunks"]
    print(f"one reply of {row['chunks']} chunks, microseconds a chunk")
    print(
        f"  whole turn {row['turn_us']:.2f}: append {row['append_us']:.2f}, "
        f"stream {row['stream_us']:.2f}, assemble {row['assemble_us']:.2f}, "
        f"the loop's own {row['loop_own_us']:.2f}"
    )
    row = figures["boundaries"]
    print("initiator, nanoseconds")
    print(
        f"  coroutine step {row['plain_step_ns']:.0f} plain, {row['bound_step_ns']:.0f} bound "
        f"(+{row['step_cost_ns']:.0f}); boundary {row['boundary_ns']:.0f}; "
        f"lookup {row['lookup_ns']:.0f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    figures = asyncio.run(measure())
    if options.json:
        print(json.dumps(figures, indent=2))
    else:
        show(figures)


if __name__ == "__main__":
    main()
