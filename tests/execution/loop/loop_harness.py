"""A loop over real parts; only the model's words are scripted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from dsh.execution.agent.registry import LiveAgents
from dsh.execution.agent.service import Agent, AgentHandle, AgentOptions, AgentRegistry, CreateAgent
from dsh.execution.loop.plugin import TurnLoop
from dsh.execution.prompt.assembly import LayeredSystemPrompt
from dsh.execution.tools.author import define_tool
from dsh.execution.tools.runtime import plugin as tool_runtime
from dsh.execution.tools.service import ToolDefinition, ToolRuntime
from dsh.kernel import Context
from dsh.model.chunks import (
    StreamChunk,
    block_end,
    block_start,
    finish,
    finish_failure,
    reasoning_delta,
    text_delta,
    usage_report,
)
from dsh.model.llm.runtime import AdapterRuntime
from dsh.model.llm.service import (
    GenerateOptions,
    LlmAdapter,
    LlmProviderInfo,
    LlmRuntime,
    ResolvedModelInfo,
)
from dsh.model.messages import SessionId, UserMessage, create_user_message
from dsh.state.persistence.service import SessionPersistence, SessionPreparation
from dsh.state.session import invariants
from dsh.state.session.service import SessionStore
from dsh.state.session.session import Session
from dsh.state.session.store import LocalSessionStore

Reply = Callable[[GenerateOptions], AsyncIterator[StreamChunk]]


class ScriptedModel(LlmAdapter):
    """Plays prepared replies in order and keeps the requests it got."""

    def __init__(self) -> None:
        self.replies: list[Reply] = []
        self.requests: list[GenerateOptions] = []
        self.otherwise: Reply | None = None
        self.context_window: int | None = None
        self.default_max_tokens: int | None = None

    def will(self, *replies: Reply | str) -> ScriptedModel:
        self.replies += [says(reply) if isinstance(reply, str) else reply for reply in replies]
        return self

    def provider_info(self, provider: str) -> LlmProviderInfo:
        return LlmProviderInfo(provider, provider)

    async def resolve_model(
        self, provider: str, model: str, signal: object = None
    ) -> ResolvedModelInfo:
        return ResolvedModelInfo(
            provider,
            model,
            model,
            context_window=self.context_window,
            default_max_tokens=self.default_max_tokens,
        )

    async def stream(self, options: GenerateOptions) -> AsyncIterator[StreamChunk]:
        self.requests.append(options)
        reply = self.replies.pop(0) if self.replies else self.otherwise
        assert reply is not None, "the model was asked more often than the script says"
        async with aclosing(reply(options)) as chunks:  # type: ignore[type-var]  # a generator
            async for chunk in chunks:
                yield chunk


def says(text: str, *, reasoning: str = "", kind: str = "stop") -> Reply:
    async def reply(_: GenerateOptions) -> AsyncIterator[StreamChunk]:
        index = 0
        for block_type, words in (("reasoning", reasoning), ("text", text)):
            if not words:
                continue
            delta = text_delta if block_type == "text" else reasoning_delta
            yield block_start(index, block_type)
            yield delta(index, words)
            yield block_end(index, {"type": block_type, "text": words})  # type: ignore[typeddict-item]
            index += 1
        yield usage_report({"inputTokens": 10, "outputTokens": 5})
        yield finish(kind)  # type: ignore[arg-type]

    return reply


def calls(*asked: tuple[str, str, str], text: str = "", kind: str = "tool-calls") -> Reply:
    """Ask for tools: ``(id, name, raw arguments)`` each."""

    async def reply(_: GenerateOptions) -> AsyncIterator[StreamChunk]:
        index = 0
        if text:
            yield block_end(index, {"type": "text", "text": text})
            index += 1
        for call_id, name, arguments in asked:
            yield block_end(
                index, {"type": "tool-call", "id": call_id, "name": name, "arguments": arguments}
            )
            index += 1
        yield finish(kind)  # type: ignore[arg-type]

    return reply


def fails(message: str = "no", code: str = "SERVER") -> Reply:
    async def reply(_: GenerateOptions) -> AsyncIterator[StreamChunk]:
        yield text_delta(0, "half")
        yield finish_failure({"message": message, "code": code})

    return reply


@dataclass
class Held:
    """A reply that streams a prefix and then waits to be let go, or for the abort."""

    chunks: Sequence[StreamChunk] = (text_delta(0, "partial "),)
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    go: asyncio.Event = field(default_factory=asyncio.Event)

    def __call__(self, options: GenerateOptions) -> AsyncIterator[StreamChunk]:
        return self._play(options)

    async def _play(self, options: GenerateOptions) -> AsyncIterator[StreamChunk]:
        for chunk in self.chunks:
            yield chunk
        self.reached.set()
        assert options.signal is not None
        await options.signal.run(self.go.wait())
        yield text_delta(0, "rest")
        yield finish("stop")


@dataclass
class Loop:
    """The mounted parts and shorthands of the tests."""

    root: Context
    model: ScriptedModel

    @property
    def agents(self) -> AgentRegistry:
        return self.root.require(AgentRegistry)

    @property
    def ctx(self) -> Context:
        return self.root

    async def create(self, id: str = "s1", **options: Any) -> AgentHandle:
        options.setdefault("agent_options", AgentOptions(provider="scripted", model="m"))
        return await self.agents.create(CreateAgent(session_id=SessionId(id), **options))

    async def agent(self, id: str = "s1", **options: Any) -> Agent:
        return (await self.create(id, **options)).agent


async def mount(
    root: Context, model: ScriptedModel, *, tools: dict[str, Any] | None = None, **config: Any
) -> Loop:
    await root.plugin(LocalSessionStore)
    await root.plugin(invariants)
    await root.plugin(AdapterRuntime)
    await root.plugin(LayeredSystemPrompt)
    await root.plugin(tool_runtime, tools or {})
    await root.plugin(LiveAgents)
    await root.plugin(TurnLoop, config)
    root.require(LlmRuntime).register_adapter(["scripted"], model)
    return Loop(root, model)


def user(text: str, id: str | None = None) -> UserMessage:
    message = create_user_message(text)
    return message if id is None else {**message, "id": id}  # type: ignore[return-value]


async def ticks(count: int) -> None:
    """Let the event loop turn a few times, to see that something does *not* happen."""
    for _ in range(count):
        await asyncio.sleep(0)


async def until(holds: Callable[[], bool]) -> None:
    """Let the event loop turn until something holds that has no event of its own."""
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110  # there is nothing to wait for
            await asyncio.sleep(0)


def types(agent: Agent, *, without: Iterable[str] = ("assistant/chunk",)) -> list[str]:
    skipped = {*without, "agent/inbox/spliced", "request/header", "request/context"}
    return [event["type"] for event in agent.session.events if event["type"] not in skipped]


def events_of(of: Agent | Session, type: str) -> list[Any]:
    session = of if isinstance(of, Session) else of.session
    return [event["data"] for event in session.events if event["type"] == type]


def reasons(of: Agent | Session) -> list[Any]:
    return [data["reason"] for data in events_of(of, "turn/end")]


def add_tool(
    ctx: Context, body: Callable[..., Any], *, name: str | None = None, **options: Any
) -> ToolDefinition:
    options.setdefault("description", "does it")
    made = define_tool(body, name=name or body.__name__, **options)
    ctx.require(ToolRuntime).register(made)
    return made


def assert_balanced(session: Session) -> None:
    """Every bracket of the log is closed and every call is answered, in the model's order."""
    turn = step = None
    pending: list[str] = []
    for event in session.events:
        data: Any = event["data"]
        match event["type"]:
            case "turn/start":
                assert turn is None
                turn = data["turn"]
            case "turn/end":
                assert (turn, step) == (data["turn"], None)
                turn = None
            case "step/start":
                assert turn == data["turn"]
                assert step is None
                step = data["step"]
            case "step/end":
                assert (turn, step) == (data["turn"], data["step"])
                assert pending == []
                step = None
            case "assistant/message":
                assert step is not None
                content = data["message"]["content"]
                pending = [block["id"] for block in content if block["type"] == "tool-call"]
            case "tool/call":
                assert data["callId"] in pending
            case "tool/result":
                assert pending.pop(0) == data["message"]["source"]["callId"]
            case _:
                pass
    assert (turn, step, pending) == (None, None, [])
    assert_paired(session.derive_messages())


def assert_paired(messages: Sequence[Any]) -> None:
    """Each call of a request's history is answered right after the reply that made it."""
    owed: list[str] = []
    for message in messages:
        for block in message["content"]:
            if block["type"] == "tool-result":
                assert owed.pop(0) == block["toolCallId"]
            elif block["type"] == "tool-call":
                owed.append(block["id"])
            elif message["role"] == "user":
                assert owed == []
    assert owed == []


def assert_nothing_live(loop: Loop) -> None:
    assert loop.agents.all() == []
    assert loop.root.require(SessionStore).all() == []


def results(of: Agent | Session) -> list[tuple[str, bool, str, str | None]]:
    """Per result: call id, whether it is an error, text, and code."""
    found = []
    for data in events_of(of, "tool/result"):
        block = data["message"]["content"][0]
        text = "".join(part["text"] for part in block["content"] if part["type"] == "text")
        code = data.get("error", {}).get("code")
        found.append((block["toolCallId"], block.get("isError", False), text, code))
    return found


class Shelf(SessionPersistence):
    """Keeps sessions in memory; as slow and as broken as a test wants."""

    inject = (SessionStore,)

    def start(self) -> None:
        self.stored: dict[str, Session] = self.config or {}
        self.released: list[str] = []
        self.gate: asyncio.Event | None = None

    async def prepare(self, id: str) -> SessionPreparation:
        if self.gate is not None:
            await self.gate.wait()
        if id not in self.stored:
            raise LookupError(f"session {id!r} not found")
        kept = self.stored[id]
        session = self.ctx.require(SessionStore).restore(kept.header, list(kept.events))
        return SessionPreparation(session, lambda: self.released.append(id))

    async def all(self) -> Any:
        return [session.header for session in self.stored.values()]

    def locate(self, meta: Any) -> None:
        return None

    async def nothing(self, *args: Any) -> Any:
        raise NotImplementedError

    create = append = load = inspect = read_from = list_snapshots = survey = nothing
    newest = delete = nothing


async def shelve(loop: Loop, *sessions: Session) -> Any:
    """Mount a store that holds sessions."""
    await loop.root.plugin(Shelf, {session.id: session for session in sessions})
    return loop.root.require(SessionPersistence)
