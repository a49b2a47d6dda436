"""Many agents over real parts; the model answers from a count of its own for each session."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any, TypeVar

from dsh.execution.agent.registry import LiveAgents
from dsh.execution.agent.service import AgentHandle, AgentOptions, AgentRegistry, CreateAgent
from dsh.execution.loop.plugin import TurnLoop
from dsh.execution.prompt.assembly import LayeredSystemPrompt
from dsh.execution.tools.author import define_tool
from dsh.execution.tools.runtime import plugin as tool_runtime
from dsh.execution.tools.service import ToolRunContext, ToolRuntime
from dsh.kernel import Context
from dsh.model.chunks import StreamChunk, block_end, finish, text_delta
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

C = TypeVar("C", bound="Crowd")


class Crowd(LlmAdapter):
    """The mounted spine, its model, and what went wrong with the identity of any work.

    In each turn the model asks ``steps`` times for the tool ``work``, then says a word.
    """

    def __init__(self, root: Context) -> None:
        self.root = root
        self.steps = 1
        self.cwd = "/"
        self.asked: Counter[str] = Counter()
        """Steps of each session's current turn so far."""
        self.worked: Counter[str] = Counter()
        """Calls of the tool by session."""
        self.spreads: list[int] = []
        """At each step of anybody: how far the first is ahead of the last."""
        self.strangers: list[tuple[str, str]] = []
        """Where work saw somebody else than the agent it was done for."""

    @property
    def agents(self) -> AgentRegistry:
        return self.root.require(AgentRegistry)

    async def create(self, id: str, *, own_tools: int = 0) -> AgentHandle:
        def setup(ctx: Context) -> None:
            for number in range(own_tools):
                tool = define_tool(self.work, name=f"own-{number}")
                ctx.require(ToolRuntime).register(tool)

        return await self.agents.create(
            CreateAgent(
                session_id=SessionId(id),
                agent_options=AgentOptions(provider="scripted", model="m"),
                meta={"cwd": self.cwd},
                setup=setup,
            )
        )

    def forget(self) -> None:
        """Drop what was noted of sessions so far."""
        self.asked.clear()
        self.worked.clear()
        self.spreads.clear()

    def check(self, place: str, session: object) -> None:
        """Compare the initiator of the work that runs now with whose work it is."""
        initiator = self.agents.current_initiator()
        if initiator is None or initiator.id != session:
            self.strangers.append((place, str(session)))

    def provider_info(self, provider: str) -> LlmProviderInfo:
        return LlmProviderInfo(provider, provider)

    async def resolve_model(
        self, provider: str, model: str, signal: object = None
    ) -> ResolvedModelInfo:
        return ResolvedModelInfo(provider, model, model)

    async def stream(self, options: GenerateOptions) -> AsyncIterator[StreamChunk]:
        session = str(options.session_id)
        self.check("model", session)
        await asyncio.sleep(0)
        self.check("model after a pause", session)
        number = self.asked[session] = self.asked[session] + 1
        if number <= self.steps:
            self.spreads.append(max(self.asked.values()) - min(self.asked.values()))
            arguments = f'{{"number": {number}}}'
            yield block_end(
                0, {"type": "tool-call", "id": f"c{number}", "name": "work", "arguments": arguments}
            )
            yield finish("tool-calls")
        else:
            yield text_delta(0, "done")
            yield finish("stop")
        self.check("model at its end", session)

    async def work(self, number: int, run: ToolRunContext) -> int:
        """Do something that takes a while."""
        assert run.agent is not None
        assert self.agents.require_initiator() is run.agent
        await asyncio.sleep(0)
        assert self.agents.require_initiator() is run.agent
        self.worked[run.agent.id] += 1
        return number


async def gather(root: Context, kind: type[C]) -> C:
    """Mount the spine with a model of some kind."""
    crowd = kind(root)
    for plugin in (
        LocalSessionStore,
        AdapterRuntime,
        LayeredSystemPrompt,
        tool_runtime,
        LiveAgents,
    ):
        await root.plugin(plugin)
    await root.plugin(TurnLoop, {})
    root.require(LlmRuntime).register_adapter(["scripted"], crowd)
    root.require(ToolRuntime).register(define_tool(crowd.work))
    return crowd


def reasons(handle: AgentHandle) -> list[Any]:
    events: Any = handle.agent.session.events
    return [event["data"]["reason"]["kind"] for event in events if event["type"] == "turn/end"]


def blocks() -> int:
    """How many blocks of memory live objects take now; an exact count, not a time or a size."""
    gc.collect()
    return sys.getallocatedblocks()
