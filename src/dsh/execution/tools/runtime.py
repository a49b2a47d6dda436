"""The tool runtime of a process: row ``tools``."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractContextManager, asynccontextmanager
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field

from dsh.execution.prompt.service import AssembleContext, SystemPrompt, ToolContribution
from dsh.execution.tools.bodies import Bodies
from dsh.execution.tools.call import Call
from dsh.execution.tools.code.mode import CodeMode
from dsh.execution.tools.events import TOOLS_CHANGE, ToolsChanged
from dsh.execution.tools.holds import Holds
from dsh.execution.tools.pipeline import Pipeline
from dsh.execution.tools.registry import ToolLayers
from dsh.execution.tools.resources import canonical_all
from dsh.execution.tools.service import (
    EXCLUSIVE,
    PARALLEL,
    RESERVED_TOOL_NAME,
    ExecutionMode,
    PresentationMode,
    Staged,
    Stray,
    ToolArgsError,
    ToolDefinition,
    ToolExecution,
    ToolInput,
    ToolResult,
    ToolRuntime,
)
from dsh.kernel import Context, Effect

if TYPE_CHECKING:
    from dsh.base.signal import AbortSignal
    from dsh.kernel import Fiber
    from dsh.model.llm.service import ToolSchema


_log = logging.getLogger("dsh.tools")


class ToolsConfig(BaseModel):
    """How tools are presented and how long they may take to stop."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    mode: PresentationMode = "native"
    """How tools reach the model where no scope says otherwise; ``code`` and ``both`` need a code
    runtime."""
    max_parallel_sub_calls: int = Field(default=10, ge=1, alias="maxParallelSubCalls")
    """How many calls one program of Code Mode may overlap."""
    grace_ms: float = Field(default=2000, ge=0, alias="graceMs", allow_inf_nan=False)
    """Milliseconds that a body may take to end after it was told to stop."""
    stray_join_ms: float = Field(default=2000, ge=0, alias="strayJoinMs", allow_inf_nan=False)
    """Milliseconds that unloading waits for bodies that did not stop."""


class LayeredToolRuntime(ToolRuntime):
    """The registry by scope, and the pipeline over it."""

    inject = (SystemPrompt,)
    Config = ToolsConfig

    def __init__(self, ctx: Context, config: ToolsConfig | None = None) -> None:
        super().__init__(ctx, config)
        self._config = config or ToolsConfig()
        self._layers = ToolLayers(self._announce)
        self._bodies = Bodies(self._config.grace_ms / 1000)
        self._holds = Holds(self._layers)
        config = self._config
        self._code = CodeMode(ctx, self, self._layers, config.mode, config.max_parallel_sub_calls)
        self._layers.transport = self._code.transport
        self._pipeline = Pipeline(
            ctx, self._layers, self._bodies, self._holds, is_collapsed=self._code.is_collapsed
        )

    @asynccontextmanager
    async def start(self) -> AsyncIterator[None]:
        """Contribute the schemas to prompts; when unloading, wait for bodies that still run."""
        self.ctx.require(SystemPrompt).tools(self._contribution)
        self._code.contribute()
        yield
        await self._bodies.join(self._config.stray_join_ms / 1000)

    def register(self, definition: ToolDefinition) -> Effect:
        """See `ToolRuntime.register`."""
        return self._layers.register(self.caller, definition)

    def restrict(
        self, *, allow: Iterable[str] | None = None, deny: Iterable[str] | None = None
    ) -> Effect:
        """See `ToolRuntime.restrict`."""
        return self._layers.restrict(self.caller, allow, deny)

    def guard(self, guard: Callable[[ToolExecution], str | None]) -> Effect:
        """See `ToolRuntime.guard`."""
        return self._layers.guard(self.caller, guard)

    def present_as(self, mode: PresentationMode) -> Effect:
        """See `ToolRuntime.present_as`."""
        return self._layers.present(self.caller, mode)

    def get(self, name: str, scope: object | None = None) -> ToolDefinition | None:
        """See `ToolRuntime.get`."""
        return self._layers.get(name, scope)

    def schemas(self, scope: object | None = None) -> list[ToolSchema]:
        """See `ToolRuntime.schemas`."""
        seen = self._layers.visible_entries(scope)
        return [seen[name].schema for name in sorted(seen)]

    def hold(
        self, names: Iterable[str], *, scope: object | None = None, owner: Fiber | None = None
    ) -> AbstractContextManager[tuple[str, ...]]:
        """See `ToolRuntime.hold`."""
        return self._holds.of(names, scope, owner)

    async def settle(
        self, *, scope: object | None = None, signal: AbortSignal | None = None
    ) -> None:
        """See `ToolRuntime.settle`."""
        await self._layers.swaps.settle(self._layers, scope, signal)
        await self._code.settle(scope, signal)

    def execution_mode(self, input: ToolInput) -> ExecutionMode:
        """See `ToolRuntime.execution_mode`."""
        definition = self._layers.get(input.name, input.agent)
        if definition is None or definition.is_concurrency_safe is None:
            return EXCLUSIVE
        try:
            if definition.is_concurrency_safe(input.arguments) is not True:
                return EXCLUSIVE
            if definition.resources is None:
                return PARALLEL
            folder = None if input.agent is None else input.agent.session.header.get("cwd")
            used = canonical_all(definition.resources(input.arguments), folder)
            return ExecutionMode("parallel", used)
        except ToolArgsError:
            return EXCLUSIVE
        except Exception:
            _log.warning("a call of tool %r runs alone", input.name, exc_info=True)
            return EXCLUSIVE

    async def execute(self, input: ToolInput) -> ToolResult:
        """See `ToolRuntime.execute`."""
        call = await self._pipeline.prepare(input)
        result = call.result
        if result is None:
            try:
                result = await self._pipeline.dispatch(call)
            except asyncio.CancelledError:
                if call.result is not None:
                    self._pipeline.finish(call, call.result)
                raise
        return await self._pipeline.finalize(call, result)

    async def prepare(self, input: ToolInput) -> Staged:
        """See `ToolRuntime.prepare`."""
        return await self._pipeline.prepare(input)

    async def dispatch(self, staged: Staged) -> ToolResult:
        """See `ToolRuntime.dispatch`."""
        return await self._pipeline.dispatch(_own(staged))

    async def finalize(self, staged: Staged, result: ToolResult) -> ToolResult:
        """See `ToolRuntime.finalize`."""
        return await self._pipeline.finalize(_own(staged), result)

    def finish(self, staged: Staged, result: ToolResult) -> ToolResult:
        """See `ToolRuntime.finish`."""
        return self._pipeline.finish(_own(staged), result)

    def strays(self) -> tuple[Stray, ...]:
        """See `ToolRuntime.strays`."""
        return self._bodies.strays()

    def _announce(self) -> None:
        self._code.forget()
        self.ctx.emit(TOOLS_CHANGE, ToolsChanged())

    def _contribution(self, context: AssembleContext) -> ToolContribution:
        schemas = self.schemas(context.scope)
        mode = self._code.of(context.scope)
        if mode == "code":
            # A native name in the order of tools would stand for a schema that nobody gets.
            only = tuple(each for each in schemas if each["name"] == RESERVED_TOOL_NAME)
            return ToolContribution(only, (RESERVED_TOOL_NAME,))
        names = self._layers.known_names(context.scope)
        return ToolContribution(
            tuple(schemas), names if mode == "native" else (*names, RESERVED_TOOL_NAME)
        )


plugin = LayeredToolRuntime


def _own(staged: Staged) -> Call:
    if not isinstance(staged, Call):
        raise TypeError(f"expected a call that this runtime prepared, got {type(staged).__name__}")
    return staged
