"""The tool runtime of a process: row ``tools``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractContextManager, asynccontextmanager
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field

from dsh.base.json import NotLossless, snapshot
from dsh.execution.prompt.service import AssembleContext, SystemPrompt, ToolContribution
from dsh.execution.tools.bodies import Bodies
from dsh.execution.tools.call import Call
from dsh.execution.tools.events import TOOLS_CHANGE, ToolsChanged
from dsh.execution.tools.holds import Holds
from dsh.execution.tools.pipeline import Pipeline
from dsh.execution.tools.registry import ToolLayers
from dsh.execution.tools.service import (
    EXCLUSIVE,
    PARALLEL,
    ExecutionMode,
    PresentationMode,
    Staged,
    Stray,
    ToolDefinition,
    ToolExecution,
    ToolInput,
    ToolRegistrationError,
    ToolResult,
    ToolRuntime,
)
from dsh.kernel import Context, Effect

if TYPE_CHECKING:
    from dsh.base.signal import AbortSignal
    from dsh.kernel import Fiber
    from dsh.model.llm.service import ToolSchema


class ToolsConfig(BaseModel):
    """How tools are presented and how long they may take to stop."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    mode: PresentationMode = "native"
    """How tools reach the model; only ``native`` is built yet."""
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
        _check_mode(self._config.mode)
        self._layers = ToolLayers(self._announce)
        self._bodies = Bodies(self._config.grace_ms / 1000)
        self._holds = Holds(self._layers)
        self._pipeline = Pipeline(ctx, self._layers, self._bodies, self._holds)

    @asynccontextmanager
    async def start(self) -> AsyncIterator[None]:
        """Contribute the schemas to prompts; when unloading, wait for bodies that still run."""
        self.ctx.require(SystemPrompt).tools(self._contribution)
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
        _check_mode(mode)
        return self._layers.present(self.caller, mode)

    def get(self, name: str, scope: object | None = None) -> ToolDefinition | None:
        """See `ToolRuntime.get`."""
        return self._layers.get(name, scope)

    def schemas(self, scope: object | None = None) -> list[ToolSchema]:
        """See `ToolRuntime.schemas`."""
        return [_schema_of(definition) for definition in self._layers.visible(scope).values()]

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

    def execution_mode(self, input: ToolInput) -> ExecutionMode:
        """See `ToolRuntime.execution_mode`."""
        definition = self._layers.get(input.name, input.agent)
        if definition is None or definition.is_concurrency_safe is None:
            return EXCLUSIVE
        try:
            safe = definition.is_concurrency_safe(input.arguments)
        except Exception:
            return EXCLUSIVE
        return PARALLEL if safe is True else EXCLUSIVE

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
        self.ctx.emit(TOOLS_CHANGE, ToolsChanged())

    def _contribution(self, context: AssembleContext) -> ToolContribution:
        names = self._layers.known_names(context.scope)
        return ToolContribution(tuple(self.schemas(context.scope)), names)


plugin = LayeredToolRuntime


def _own(staged: Staged) -> Call:
    if not isinstance(staged, Call):
        raise TypeError(f"expected a call that this runtime prepared, got {type(staged).__name__}")
    return staged


def _check_mode(mode: PresentationMode) -> None:
    if mode != "native":
        raise ToolRegistrationError(
            f"tools cannot be presented as {mode!r}: Code Mode is not built yet; use 'native'"
        )


def _schema_of(definition: ToolDefinition) -> ToolSchema:
    try:
        parameters = snapshot(definition.parameters)
    except NotLossless as error:
        raise ToolRegistrationError(
            f"tool {definition.name!r}: its parameter schema is not lossless JSON at "
            f"{error.path}: {error.problem}"
        ) from error
    return {
        "name": definition.name,
        "description": definition.description,
        "parameters": parameters,
    }
