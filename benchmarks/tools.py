"""Measure what the pipeline adds to one tool call, and what each listener on its way adds.

``python benchmarks/tools.py [--json] [--rounds N]``. The tool is async and adds two numbers; its
arguments are checked, its value is checked and rendered.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from dsh.base.json import JsonValue
from dsh.base.signal import AbortController
from dsh.capability.code_runtime.process import ProcessCodeRuntime
from dsh.capability.code_runtime.service import BindingNamespace, CodeRun, CodeRuntime
from dsh.capability.subprocess.local import LocalSubprocess
from dsh.execution.agent.service import Agent
from dsh.execution.tools.author import define_tool
from dsh.execution.tools.events import TOOLS_EXECUTE, TOOLS_POST_EXECUTE, TOOLS_PRE_EXECUTE
from dsh.execution.tools.service import ToolInput, ToolRuntime
from dsh.kernel import Context, Waterfall
from dsh.model.messages import CallId
from report import table
from spine import Model, add, create, mounted

CALLS, LISTENERS = 2_000, 20
PROGRAMS, CALLS_BACK = 10, 500
STAGES: dict[str, Waterfall[Any, Any]] = {
    "listener of tools/pre-execute": TOOLS_PRE_EXECUTE,
    "listener of tools/execute": TOOLS_EXECUTE,
    "listener of tools/post-execute": TOOLS_POST_EXECUTE,
}
AIMS = {
    "a call, no listeners": "< 150",
    "a call of an agent, no listeners": "< 150",
    "a call of a function that blocks": "",
    "the bare function": "",
    **dict.fromkeys(STAGES, "< 5"),
    "Code Mode: a program that returns 1": "",
    "Code Mode: each call back into dsh": "",
}


def blocking(left: int, right: int) -> int:
    """Add two numbers in a thread."""
    return left + right


async def timed(tools: ToolRuntime, name: str = "add", agent: Agent | None = None) -> float:
    """Return microseconds a call."""
    signal = AbortController().signal
    began = time.perf_counter()
    for number in range(CALLS):
        arguments = {"left": number, "right": 1}
        result = await tools.execute(ToolInput(CallId("c"), name, arguments, signal, agent))
        assert not result.is_error
    return (time.perf_counter() - began) / CALLS * 1e6


async def bare() -> float:
    began = time.perf_counter()
    for number in range(CALLS):
        await add(number, 1)
    return (time.perf_counter() - began) / CALLS * 1e6


async def passes(event: object, next: Callable[[], Any]) -> Any:
    return await next()


async def listened(root: Context, tools: ToolRuntime, event: Waterfall[Any, Any]) -> float:
    """Return what one listener of an event adds."""
    without = await timed(tools)
    effects = [root.on(event, passes) for _ in range(LISTENERS)]
    with_all = await timed(tools)
    for effect in effects:
        effect.dispose()
    return (with_all - without) / LISTENERS


async def measure() -> dict[str, float]:
    root = await mounted(Model(), more_tools=19)
    tools = root.require(ToolRuntime)
    tools.register(define_tool(blocking))
    agent = (await create(root)).agent
    await timed(tools)
    figures = {
        "a call, no listeners": await timed(tools),
        "a call of an agent, no listeners": await timed(tools, agent=agent),
        "a call of a function that blocks": await timed(tools, "blocking"),
        "the bare function": await bare(),
    }
    for name, event in STAGES.items():
        figures[name] = await listened(root, tools, event)
    await root.dispose()
    return figures


async def programs() -> dict[str, float]:
    """Run programs in interpreters of their own, unconfined, by the shipped provider."""
    root = Context()
    await root.plugin(LocalSubprocess)
    await root.plugin(ProcessCodeRuntime)
    runtime = root.require(CodeRuntime)
    empty = await timed_run(runtime, "return 1", PROGRAMS)
    calls = f"for _ in range({CALLS_BACK}):\n    await back.call({{}})\nreturn 1"
    calling = await timed_run(runtime, calls, 1)
    await root.dispose()
    return {
        "Code Mode: a program that returns 1": empty,
        "Code Mode: each call back into dsh": (calling - empty) / CALLS_BACK,
    }


async def timed_run(runtime: CodeRuntime, program: str, count: int) -> float:
    """Return microseconds a program."""

    async def back(argument: JsonValue) -> JsonValue:
        return argument

    began = time.perf_counter()
    for _ in range(count):
        bindings = [BindingNamespace("back", {"call": back})]
        result = await runtime.run(CodeRun(program, bindings))
        assert result.error is None, result.error
    return (time.perf_counter() - began) / count * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    rounds = [asyncio.run(measure()) | asyncio.run(programs()) for _ in range(options.rounds)]
    medians = {name: statistics.median(each[name] for each in rounds) for name in AIMS}
    if options.json:
        print(json.dumps(medians, indent=2))
        return
    rows = [["median, microseconds", "measured", "aim"]]
    table(rows + [[name, f"{figure:.2f}", AIMS[name]] for name, figure in medians.items()])


if __name__ == "__main__":
    main()
