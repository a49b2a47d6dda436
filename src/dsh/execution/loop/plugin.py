"""The turn loop as a plugin (row ``agent-loop``)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from dsh.execution.agent.events import INBOX_SPLICED
from dsh.execution.agent.service import AgentOptions, AgentRegistry, CreateAgent, ResumeAgent
from dsh.execution.loop.config import Config, LoopSettings, refuse_shared_identities
from dsh.execution.loop.configured import identified, start_configured
from dsh.execution.loop.lifecycle import AgentLifetime, Lifetimes
from dsh.execution.loop.service import CONFIGURED_AGENT_IDENTITIES, AgentLoop, NoPersistence
from dsh.execution.loop.services import LoopServices
from dsh.execution.prompt.service import AssembleContext, SystemPrompt
from dsh.execution.tools.service import ToolRuntime
from dsh.model.llm.service import LlmRuntime
from dsh.state.persistence.service import SessionPersistence, SessionPreparation
from dsh.state.session.service import SessionStore
from dsh.state.settings.service import LiveSection

if TYPE_CHECKING:
    from dsh.base.json import JsonValue
    from dsh.execution.agent.service import Agent, AgentHandle, SessionStartSource
    from dsh.kernel import Context
    from dsh.model.messages import SessionId
    from dsh.state.session.session import Session

__all__ = ["Config", "TurnLoop", "plugin"]


class TurnLoop(AgentLoop):
    """Makes agents that work in turns and steps."""

    inject: ClassVar[Any] = (AgentRegistry, SessionStore, LlmRuntime, ToolRuntime, SystemPrompt)
    Config: ClassVar[Any] = Config

    def __init__(self, ctx: Context, config: Config) -> None:
        super().__init__(ctx, config)
        self._configured = identified(config.agents, ctx[CONFIGURED_AGENT_IDENTITIES] or {})
        refuse_shared_identities(self._configured)
        self._limit: int | None = None
        row = {"maxParallelToolCalls": config.max_parallel_tool_calls}
        self._settings = LiveSection(ctx, "agent-loop", LoopSettings, row=row)
        self._services = LoopServices(
            ctx=ctx,
            agents=ctx.require(AgentRegistry),
            sessions=ctx.require(SessionStore),
            llm=ctx.require(LlmRuntime),
            tools=ctx.require(ToolRuntime),
            system_prompt=ctx.require(SystemPrompt),
            max_parallel_tool_calls=lambda: self.max_parallel_tool_calls,
            grace_s=config.grace_ms / 1000,
        )
        self._lifetimes = Lifetimes(self._services)

    def start(self) -> None:
        """Serve as the factory of agents until this plugin unloads; then end them all."""
        services, ctx = self._services, self.ctx
        services.sessions.declare(INBOX_SPLICED)
        prompt = services.system_prompt
        prompt.variable("provider", lambda context: _option(context, "provider"))
        prompt.variable("model", lambda context: _option(context, "model"))
        prompt.variable("cwd", _working_directory)
        # Undone last in, first out: agents end while all of the above still holds.
        ctx.defer(self._lifetimes.close, "agent_loop.close")
        services.agents.set_factory(self)
        for row in self._configured:
            ctx.spawn(start_configured(self, ctx, row), f"start of agent {row.id}")

    @property
    def max_parallel_tool_calls(self) -> int:
        """See `AgentLoop.max_parallel_tool_calls`; what is set here outranks the settings."""
        return self._settings.get().max_parallel_tool_calls if self._limit is None else self._limit

    @max_parallel_tool_calls.setter
    def max_parallel_tool_calls(self, limit: int) -> None:
        if type(limit) is not int or limit < 1:
            raise ValueError(f"max_parallel_tool_calls must be a positive integer, got {limit!r}")
        self._limit = limit

    def create(
        self,
        id: SessionId,
        options: AgentOptions | None = None,
        meta: Mapping[str, JsonValue] | None = None,
    ) -> Agent:
        """See `AgentLoop.create`."""
        session = self._services.sessions.prepare(id, meta=meta)  # type: ignore[arg-type]  # checked there
        lifetime = self._lifetimes.begin(self.caller, id)
        try:
            agent = lifetime.construct(session, options or AgentOptions())
            lifetime.publish("startup")
        except BaseException as error:
            lifetime.end()
            raise lifetime.failure(error) from error.__cause__
        return agent

    async def create_agent(self, owner: Context, options: CreateAgent) -> AgentHandle:
        """See `AgentLoop.create_agent`."""
        session = self._services.sessions.prepare(
            options.session_id,
            seed=options.seed,
            meta=options.meta,  # type: ignore[arg-type]  # the store checks each field
        )
        lifetime = self._lifetimes.begin(owner, options.session_id, options.signal)
        try:
            await self._bring_up(lifetime, session, options, "startup")
        except BaseException as error:
            await self._roll_back(lifetime, error)
        return lifetime

    async def resume_agent(self, owner: Context, options: ResumeAgent) -> AgentHandle:
        """See `AgentLoop.resume_agent`."""
        session_id = options.resume_session_id
        persistence = self.ctx.get(SessionPersistence)
        if persistence is None:
            raise NoPersistence(session_id)
        lifetime = self._lifetimes.begin(owner, session_id, options.signal)
        try:
            stored = persistence.prepare(session_id)
            session = lifetime.hold(await lifetime.guard(stored, SessionPreparation.release))
            await self._bring_up(lifetime, session, options, "resume")
        except BaseException as error:
            await self._roll_back(lifetime, error)
        return lifetime

    async def _bring_up(
        self,
        lifetime: AgentLifetime,
        session: Session,
        options: CreateAgent | ResumeAgent,
        source: SessionStartSource,
    ) -> None:
        lifetime.construct(session, options.agent_options)
        await lifetime.compose(options.setup)
        lifetime.publish(source)

    async def _roll_back(self, lifetime: AgentLifetime, error: BaseException) -> NoReturn:
        await asyncio.wait([lifetime.end()])
        raise lifetime.failure(error)


def _option(context: AssembleContext, name: str) -> str | None:
    if context.agent is None:
        return None
    value = getattr(context.agent.options, name)
    return value if isinstance(value, str) else None


def _working_directory(context: AssembleContext) -> str | None:
    return None if context.agent is None else context.agent.session.header.get("cwd")


plugin = TurnLoop
