"""Build the request of a step, and log what is needed to build it again.

A request is the header that the log has in force plus the messages that the log derives; nothing
else of it reaches the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Literal, cast

from dsh.base.json import FrozenDict, equal, snapshot
from dsh.base.values import value
from dsh.execution.agent.events import AGENT_REQUEST, AgentRequest
from dsh.execution.loop.service import NoModel
from dsh.kernel import InactiveEffect
from dsh.model.failures import LlmError
from dsh.model.llm.events import mark_loop_built
from dsh.model.llm.projection import ConversationReader
from dsh.model.llm.service import GenerateOptions
from dsh.state.session.events import REQUEST_CONTEXT, REQUEST_HEADER
from dsh.state.session.request import canonical_header

if TYPE_CHECKING:
    from dsh.base.signal import AbortSignal
    from dsh.execution.loop.agent import LoopAgent
    from dsh.execution.loop.phase import Running
    from dsh.execution.prompt.service import PromptAssembly
    from dsh.model.llm.service import ChunkStream, LlmCallConfig, PreparedLlmCall, RetryPolicy
    from dsh.state.session.events import EpochHeader, RequestContext, RequestHeaderData
    from dsh.state.session.session import Session


@value
class Route:
    """Where a step's request goes."""

    config: LlmCallConfig
    prepared: PreparedLlmCall | None


@value
class LoopRequest:
    """One attempt at the model, ready to go."""

    options: GenerateOptions
    prepared: PreparedLlmCall | None
    """Pins the adapter; absent when only a listener of ``llm/stream`` serves the route."""

    @property
    def retry_policy(self) -> RetryPolicy | None:
        """The policy of the route, when it has an adapter."""
        return None if self.prepared is None else self.prepared.retry_policy


class RequestBuilder:
    """Builds the requests of one agent for as long as this loop drives it."""

    def __init__(self, agent: LoopAgent) -> None:
        self._agent = agent
        self._reader = ConversationReader()
        self._opened = False

    async def route(self, phase: Running, held: ExitStack) -> Route:
        """Choose the model of a step, and wait for its route when that is being swapped.

        The adapter's plugin is kept loaded until ``held`` is closed.

        Raises:
            NoModel: nobody chose a route.
            LlmError: the adapter refuses the route.
        """
        signal = phase.abort.signal
        with self._agent.patience(signal):
            config = await self._choose(phase, signal)
            prepared = await self._prepare(config, signal, held)
        signal.throw_if_aborted()
        return Route(config, prepared)

    def build(
        self, phase: Running, route: Route, assembly: PromptAssembly, system: str
    ) -> LoopRequest:
        """Log header and context of a request, and derive its messages."""
        header = self._log_header(route.config, route.prepared, assembly, system)
        self._log_context(header["config"], route.prepared)
        options = mark_loop_built(self._options(header, phase.abort.signal))
        return LoopRequest(options, route.prepared)

    def stream(self, request: LoopRequest) -> ChunkStream:
        """Start the model call of a request."""
        if request.prepared is not None:
            return request.prepared.stream(request.options)
        return self._agent.services.llm.stream(request.options)

    async def _choose(self, phase: Running, signal: AbortSignal) -> LlmCallConfig:
        agent = self._agent
        seed = self._seed()
        chosen = await agent.events.waterfall(
            AGENT_REQUEST, AgentRequest(agent, phase.turn, phase.step, signal), lambda: seed
        )
        signal.throw_if_aborted()
        if not (isinstance(chosen, Mapping) and chosen.get("provider") and chosen.get("model")):
            raise NoModel(agent.id)
        return cast("LlmCallConfig", snapshot(dict(chosen), logged=True))

    def _seed(self) -> LlmCallConfig:
        header = self._agent.session.request_header()
        if self._opened and header is not None:
            defaults = header.get("adapterDefaults", {})
            kept = {key: value for key, value in header["config"].items() if key not in defaults}
            return cast("LlmCallConfig", FrozenDict(kept))
        return cast("LlmCallConfig", FrozenDict(_first_config(self._agent, header)))

    async def _prepare(
        self, config: LlmCallConfig, signal: AbortSignal, held: ExitStack
    ) -> PreparedLlmCall | None:
        llm, loop = self._agent.services.llm, self._agent.services.ctx.fiber
        while True:
            await llm.settle_route(config["provider"], signal)
            try:
                prepared = await llm.prepare_call(config, signal)
            except LlmError as error:
                if error.code != "NO_ADAPTER":
                    raise
                return None
            try:
                held.enter_context(prepared.hold(loop))
            except InactiveEffect:
                continue  # its plugin was told to go meanwhile
            return prepared

    def _log_header(
        self,
        config: LlmCallConfig,
        prepared: PreparedLlmCall | None,
        assembly: PromptAssembly,
        system: str,
    ) -> EpochHeader:
        session = self._agent.session
        current = session.request_header()
        wanted: dict[str, Any] = {"config": config, "system": system, "tools": assembly.tools}
        if prepared is not None:
            wanted["config"] = prepared.config
            wanted["adapterDefaults"] = prepared.adapter_defaults
        header = canonical_header(wanted)
        if self._opened and current is not None and equal(header, current):
            return current
        reason: Literal["initial", "resume", "change"] = "change" if self._opened else "resume"
        if current is None:
            reason = "initial"
        data: RequestHeaderData = {"header": header, "reason": reason}
        session.append(REQUEST_HEADER, data)
        self._opened = True
        return _logged_header(session)

    def _log_context(self, config: LlmCallConfig, prepared: PreparedLlmCall | None) -> None:
        session = self._agent.session
        context: RequestContext = {"provider": config["provider"], "model": config["model"]}
        if prepared is not None and prepared.context_window is not None:
            context["contextWindow"] = prepared.context_window
        if session.request_context() != context:
            session.append(REQUEST_CONTEXT, context)

    def _options(self, header: EpochHeader, signal: AbortSignal) -> GenerateOptions:
        session, config = self._agent.session, header["config"]
        return GenerateOptions(
            config["provider"],
            config["model"],
            self._reader.take(session.derive_messages(), session.surface.replace_generation),
            reasoning_effort=config.get("reasoningEffort"),
            system=header.get("system"),
            tools=header.get("tools"),
            temperature=config.get("temperature"),
            max_tokens=config.get("maxTokens"),
            stop=config.get("stop"),
            signal=signal,
            session_id=session.id,
        )


def _first_config(agent: LoopAgent, header: EpochHeader | None) -> dict[str, Any]:
    options = agent.options
    config: dict[str, Any] = {}
    if options.provider is not None:
        config["provider"] = options.provider
    if options.model is not None:
        config["model"] = options.model
    if options.max_tokens is not None:
        config["maxTokens"] = options.max_tokens
    if header is None:
        return config
    old = header["config"]
    same_route = old["provider"] == options.provider and old["model"] == options.model
    was_default = "reasoningEffort" in header.get("adapterDefaults", {})
    if same_route and "reasoningEffort" in old and not was_default:
        config["reasoningEffort"] = old["reasoningEffort"]
    return config


def _logged_header(session: Session) -> EpochHeader:
    header = session.request_header()
    assert header is not None  # it was just appended
    return header
