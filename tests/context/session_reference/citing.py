"""Agents over the real loop and store that cite each other's sessions; the model is scripted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsh.context.session_reference.resolver import LocalSessionReferences
from dsh.context.session_reference.service import SessionReferenceResolver
from dsh.execution.agent.registry import LiveAgents
from dsh.execution.agent.service import Agent, AgentOptions, AgentRegistry, CreateAgent
from dsh.execution.loop.plugin import TurnLoop
from dsh.execution.prompt.assembly import LayeredSystemPrompt
from dsh.execution.tools.runtime import plugin as tool_runtime
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
from dsh.model.messages import SessionId, create_user_message
from dsh.state.persistence.jsonl import JsonlPersistence
from dsh.state.query.sqlite import SqliteSessionQuery
from dsh.state.session import invariants
from dsh.state.session.events import USER_MESSAGE
from dsh.state.session.service import SessionStore
from dsh.state.session.session import Session
from dsh.state.session.store import LocalSessionStore
from dsh.state.titles.events import SESSION_TITLE, SessionTitleData


class Agreeable(LlmAdapter):
    """Answers everything with "yes", and keeps the requests it got."""

    def __init__(self) -> None:
        self.requests: list[GenerateOptions] = []

    def provider_info(self, provider: str) -> LlmProviderInfo:
        return LlmProviderInfo(provider, provider)

    async def resolve_model(
        self, provider: str, model: str, signal: object = None
    ) -> ResolvedModelInfo:
        return ResolvedModelInfo(provider, model, model)

    async def stream(self, options: GenerateOptions) -> AsyncIterator[StreamChunk]:
        self.requests.append(options)
        yield block_end(0, {"type": "text", "text": "yes"})
        yield finish("stop")


@dataclass(eq=False)
class Study:
    """The mounted parts."""

    root: Context
    model: Agreeable

    @property
    def store(self) -> SessionStore:
        return self.root.require(SessionStore)

    @property
    def references(self) -> SessionReferenceResolver:
        return self.root.require(SessionReferenceResolver)

    def session(self, id: str, *texts: str, **meta: Any) -> Session:
        session = self.store.create(id, meta=meta)  # type: ignore[arg-type]
        for text in texts:
            session.append(USER_MESSAGE, create_user_message(text), surface_op="append")
        return session

    async def agent(self, id: str = "own", **meta: Any) -> Agent:
        options = AgentOptions(provider="scripted", model="m")
        created = CreateAgent(session_id=SessionId(id), agent_options=options, meta=meta)
        return (await self.root.require(AgentRegistry).create(created)).agent

    async def ask(self, agent: Agent, text: str) -> None:
        agent.followup(create_user_message(text))
        await agent.when_idle()


def give_title(session: Session, text: str) -> None:
    data = SessionTitleData(title=text, messageSeqs=[], source={"kind": "user"})
    session.append(SESSION_TITLE, data)


async def open_study(root: Context, folder: Path, **config: Any) -> Study:
    model = Agreeable()
    await root.plugin(LocalSessionStore)
    await root.plugin(invariants)
    await root.plugin(JsonlPersistence, {"root": str(folder)})
    await root.plugin(AdapterRuntime)
    await root.plugin(LayeredSystemPrompt)
    await root.plugin(tool_runtime, {})
    await root.plugin(LiveAgents)
    await root.plugin(TurnLoop, {})
    await root.plugin(SqliteSessionQuery, {"path": ":memory:", "openAt": "never"})
    await root.plugin(LocalSessionReferences, config)
    root.require(LlmRuntime).register_adapter(["scripted"], model)
    root.require(SessionStore).declare(SESSION_TITLE)
    return Study(root, model)
