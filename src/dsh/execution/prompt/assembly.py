"""Collecting and assembling prompts: row ``system-prompt``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field
from math import isfinite
from typing import TYPE_CHECKING, Any, cast

from pydantic import BaseModel, ConfigDict, Field, field_validator

from dsh.base.json import FrozenDict, NotLossless, snapshot
from dsh.base.text import did_you_mean
from dsh.base.values import record
from dsh.execution.prompt.events import (
    SYSTEM_PROMPT_ASSEMBLE,
    SYSTEM_PROMPT_CHANGE,
    PromptAssembling,
    PromptChanged,
)
from dsh.execution.prompt.service import (
    UNLISTED_TOOLS,
    VARIABLE_NAME,
    AssembleContext,
    PromptAssembly,
    PromptContext,
    PromptError,
    PromptPart,
    PromptSection,
    PromptText,
    SystemPrompt,
    ToolContribution,
    ToolProvider,
    VariableProvider,
)
from dsh.kernel import (
    AnonymousEntries,
    Context,
    Effect,
    NamedEntries,
    ScopedLayers,
    scope_target,
)

if TYPE_CHECKING:
    from dsh.model.llm.service import ToolSchema

IDENTITY_ORDER = -100.0
PERSONA_ORDER = 0.0

IDENTITY = (
    "You are an agent in dsh, a harness that lets you act in a user's workspace through tools. "
    "Do the work with the tools you are given, and report what you did and found."
)

_SCHEMA_KEYS = {"name", "description", "parameters"}


class _NoScope:
    """Scope key of assemblies for nobody: listeners of no agent hear them."""


_NO_SCOPE = _NoScope()


class PromptConfig(BaseModel):
    """What every prompt of this deployment says."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    include_harness_identity: bool = Field(default=True, alias="includeHarnessIdentity")
    """Tell the model what it runs in."""
    include_runtime_context: bool = Field(default=True, alias="includeRuntimeContext")
    """Tell agents their runtime context (policies, environment) as messages."""
    persona: str = ""
    """A section of the deployment's own; may use ``{{variables}}``."""
    tool_order: list[str] | None = Field(default=None, alias="toolOrder")
    """Names of tools in the order the model gets them; must hold ``<unlisted-tools>`` once."""

    @field_validator("tool_order")
    @classmethod
    def _check_tool_order(cls, order: list[str] | None) -> list[str] | None:
        if order is None:
            return None
        if order.count(UNLISTED_TOOLS) != 1:
            raise ValueError(f"must contain {UNLISTED_TOOLS!r} exactly once")
        for name in order:
            if order.count(name) > 1:
                raise ValueError(f"lists {name!r} more than once")
        return order


def _taken(kind: str) -> Callable[[str], Exception]:
    def error(name: str) -> Exception:
        return PromptError(
            f"prompt {kind} {name!r} is registered in this scope already; unload its plugin "
            "first, or register through agent.ctx to replace it for one agent"
        )

    return error


@record
class Layer:
    """What one scope contributes."""

    sections: NamedEntries[PromptSection] = field(
        default_factory=lambda: NamedEntries(_taken("section"))
    )
    contexts: NamedEntries[PromptContext] = field(
        default_factory=lambda: NamedEntries(_taken("context"))
    )
    variables: NamedEntries[VariableProvider] = field(
        default_factory=lambda: NamedEntries(_taken("variable"))
    )
    providers: AnonymousEntries[ToolProvider] = field(default_factory=AnonymousEntries)
    suppressors: AnonymousEntries[bool] = field(default_factory=AnonymousEntries)

    def is_empty(self) -> bool:
        """Whether nothing is contributed."""
        return all(
            part.is_empty()
            for part in (
                self.sections,
                self.contexts,
                self.variables,
                self.providers,
                self.suppressors,
            )
        )


class LayeredSystemPrompt(SystemPrompt):
    """Contributions by scope, assembled anew for each request."""

    Config = PromptConfig

    def __init__(self, ctx: Context, config: PromptConfig | None = None) -> None:
        super().__init__(ctx, config)
        self._config = config or PromptConfig()
        self._layers: ScopedLayers[Layer] = ScopedLayers(Layer, self._announce)

    def start(self) -> None:
        """Contribute what the row says."""
        if self._config.include_harness_identity:
            self.section(PromptSection("harness:identity", IDENTITY_ORDER, IDENTITY))
        if self._config.persona:
            self.section(PromptSection("deployment:persona", PERSONA_ORDER, self._config.persona))
        if not self._config.include_runtime_context:
            self.suppress_runtime_context()

    def section(self, section: PromptSection) -> Effect:
        """See `SystemPrompt.section`."""
        _check_order(section)
        return self._add(
            lambda layer: layer.sections.insert(section.name, section), "section", section.name
        )

    def context(self, context: PromptContext) -> Effect:
        """See `SystemPrompt.context`."""
        _check_order(context)
        return self._add(
            lambda layer: layer.contexts.insert(context.name, context), "context", context.name
        )

    def suppress_runtime_context(self) -> Effect:
        """See `SystemPrompt.suppress_runtime_context`."""
        return self._add(lambda layer: layer.suppressors.append(True), "suppress_runtime_context")

    def tools(self, provider: ToolProvider) -> Effect:
        """See `SystemPrompt.tools`."""
        return self._add(lambda layer: layer.providers.append(provider), "tools")

    def variable(self, name: str, provider: VariableProvider) -> Effect:
        """See `SystemPrompt.variable`."""
        if not isinstance(name, str) or not VARIABLE_NAME.fullmatch(name):
            raise PromptError(
                f"a prompt variable cannot be called {name!r}: use lower-case letters, digits and "
                "underscores, a letter first"
            )
        return self._add(lambda layer: layer.variables.insert(name, provider), "variable", name)

    async def assemble(self, context: AssembleContext | None = None) -> PromptAssembly:
        """See `SystemPrompt.assemble`."""
        context = context or AssembleContext()
        layers = self._chain(context.scope)
        variables = _evaluate_variables(layers, context)
        sections, complete = _evaluate_sections(layers, context)
        suppressed = any(not layer.suppressors.is_empty() for layer in layers)
        assembly = PromptAssembly(
            sections=sections,
            contexts=[] if suppressed else _evaluate_contexts(layers, context),
            tools=self._tools(layers, context),
            variables=variables,
        )
        made = await self.ctx.waterfall(
            SYSTEM_PROMPT_ASSEMBLE,
            PromptAssembling(assembly, context),
            lambda: assembly,
            scope_target(None, _NO_SCOPE if context.scope is None else context.scope),
        )
        if not isinstance(made, PromptAssembly):
            raise TypeError(
                "a system-prompt/assemble listener must return a PromptAssembly, "
                f"got {type(made).__name__}"
            )
        if complete is not None:
            made.sections = [complete]
        if suppressed:
            made.contexts = []
        return made

    def _tools(self, layers: Sequence[Layer], context: AssembleContext) -> list[ToolSchema]:
        providers = [provider for layer in layers for provider in layer.providers.values()]
        schemas: list[ToolSchema] = []
        known: set[str] = set()
        for provider in providers:
            given = provider(context)
            if not isinstance(given, ToolContribution):
                given = ToolContribution(tuple(given))
            made = [_reduced(schema) for schema in given.schemas]
            schemas += made
            known.update(
                given.known_names
                if given.known_names is not None
                else (schema["name"] for schema in made)
            )
        return _ordered_tools(schemas, known, self._config.tool_order)

    def _chain(self, scope: object | None) -> list[Layer]:
        """The layers that count for a scope: global, then farthest to nearest."""
        chain = [self._layers.global_]
        if scope is not None:
            chain += self._layers.chain_layers(scope)
        return chain

    def _add(
        self, action: Callable[[Layer], Callable[[], object]], kind: str, name: str | None = None
    ) -> Effect:
        detail = f"({name!r})" if name else ""
        return self._layers.effect(self.caller, action, label=f"system_prompt.{kind}{detail}")

    def _announce(self) -> None:
        self.ctx.emit(SYSTEM_PROMPT_CHANGE, PromptChanged())


plugin = LayeredSystemPrompt


def _check_order(part: PromptSection | PromptContext) -> None:
    order = part.order
    if not isinstance(order, int | float) or isinstance(order, bool) or not isfinite(order):
        raise TypeError(f"prompt part {part.name!r}: order must be a finite number, got {order!r}")


def _evaluate_variables(layers: Iterable[Layer], context: AssembleContext) -> dict[str, str | None]:
    """Evaluate providers in order; one that another provider adds meanwhile is seen, too."""
    variables: dict[str, str | None] = {}
    for layer in layers:
        for name, provider in layer.variables.live():
            variables[name] = _checked_text(provider(context), f"variable {name!r}")
    return variables


def _checked_text(value: object, what: str) -> str | None:
    if value is not None and not isinstance(value, str):
        raise TypeError(f"prompt {what} must be text or None, got {type(value).__name__}")
    return value


def _evaluate_sections(
    layers: Iterable[Layer], context: AssembleContext
) -> tuple[list[PromptPart], PromptPart | None]:
    """Evaluate the effective sections; a complete one stands alone."""
    merged = _by_order(layer.sections.entries() for layer in layers)
    complete = [section for section in merged if section.complete]
    if len(complete) > 1:
        names = ", ".join(repr(section.name) for section in complete)
        raise PromptError(f"more than one section wants to be the complete prompt: {names}")
    parts = [_evaluated(section, context) for section in complete or merged]
    return parts, parts[0] if complete else None


def _evaluate_contexts(layers: Iterable[Layer], context: AssembleContext) -> list[PromptPart]:
    merged = _by_order(layer.contexts.entries() for layer in layers)
    return [_evaluated(part, context) for part in merged]


def _by_order(entries: Iterator[Iterable[tuple[str, Any]]]) -> list[Any]:
    """Let nearer parts replace farther ones of their name, then sort by order."""
    merged: dict[str, Any] = {}
    for layer in entries:
        merged.update(layer)
    return sorted(merged.values(), key=lambda part: part.order)


def _evaluated(part: PromptSection | PromptContext, context: AssembleContext) -> PromptPart:
    text: PromptText = part.text
    value = text if isinstance(text, str) else text(context)
    if not isinstance(value, str):
        raise TypeError(f"prompt part {part.name!r} must be text, got {type(value).__name__}")
    return PromptPart(part.name, value)


def _reduced(schema: ToolSchema) -> ToolSchema:
    """Keep what a model may see of a schema, detached; nobody can change what is frozen."""
    if type(schema) is FrozenDict and schema.keys() == _SCHEMA_KEYS:
        return cast("ToolSchema", schema)  # mypy takes a typed dict to be of type dict alone
    reduced = {
        "name": schema["name"],
        "description": schema["description"],
        "parameters": schema["parameters"],
    }
    try:
        return cast("ToolSchema", snapshot(reduced))
    except NotLossless as error:
        raise PromptError(f"the schema of tool {schema['name']!r}: {error.message}") from error


def _ordered_tools(
    schemas: list[ToolSchema], known: set[str], order: list[str] | None
) -> list[ToolSchema]:
    for schema in schemas:
        if schema["name"] == UNLISTED_TOOLS:
            raise PromptError(f"a tool cannot be called {UNLISTED_TOOLS!r}")
    schemas.sort(key=lambda schema: schema["name"])
    if order is None:
        return schemas
    names = sorted(known)
    for name in order:
        if name != UNLISTED_TOOLS and name not in known:
            raise PromptError(
                f"toolOrder lists the unknown tool {name!r}{did_you_mean(name, names)}; "
                f"known: {', '.join(names) or 'none'}"
            )
    place = {name: index for index, name in enumerate(order)}
    rest = place[UNLISTED_TOOLS]
    return sorted(schemas, key=lambda schema: place.get(schema["name"], rest))
