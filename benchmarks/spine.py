"""The agent spine as the benchmarks mount it: everything is real but the model's words."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence

from dsh.execution.agent.registry import LiveAgents
from dsh.execution.agent.service import AgentHandle, AgentOptions, AgentRegistry, CreateAgent
from dsh.execution.loop.plugin import TurnLoop
from dsh.execution.prompt.assembly import LayeredSystemPrompt
from dsh.execution.tools.author import define_tool
from dsh.execution.tools.runtime import plugin as tool_runtime
from dsh.execution.tools.service import ToolRuntime
from dsh.kernel import Context
from dsh.model.chunks import StreamChunk, block_end, finish
from dsh.model.llm.runtime import AdapterRuntime
from dsh.model.llm.service import (
    GenerateOptions,
    LlmAdapter,
    LlmProviderInfo,
    LlmRuntime,
    ResolvedModelInfo,
)
from dsh.model.messages import SessionId
from dsh.state.session.store import LocalSessionStore

Mark = tuple[float, float]
"""Seconds on the wall clock and of the processor."""


def mark() -> Mark:
    return time.perf_counter(), time.process_time()


class Model(LlmAdapter):
    """Calls one tool ``steps`` times, then says a word; or streams one reply that is given."""

    def __init__(self, steps: int = 0) -> None:
        self.steps = steps
        self.marks: list[Mark] = []
        self.reply: Sequence[StreamChunk] | None = None

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
        self.marks.append(mark())
        number = len(self.marks)
        if number > self.steps:
            yield block_end(0, {"type": "text", "text": "done"})
            yield finish("stop")
            return
        arguments = f'{{"left": {number}, "right": 1}}'
        yield block_end(
            0, {"type": "tool-call", "id": f"call-{number}", "name": "add", "arguments": arguments}
        )
        yield finish("tool-calls")


async def add(left: int, right: int) -> int:
    """Add two numbers."""
    return left + right


async def mounted(model: Model, *, more_tools: int = 0) -> Context:
    """Mount the spine with the tool ``add``, and others that are never called."""
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
    tools = root.require(ToolRuntime)
    tools.register(define_tool(add))
    for number in range(more_tools):
        tools.register(
            define_tool(add, name=f"add{number}", description="Add two numbers as well.")
        )
    return root


async def create(root: Context, id: str = "bench", *, cwd: str = "/") -> AgentHandle:
    options = CreateAgent(
        session_id=SessionId(id),
        agent_options=AgentOptions(provider="bench", model="m"),
        meta={"cwd": cwd},
    )
    return await root.require(AgentRegistry).create(options)
