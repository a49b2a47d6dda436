"""Which tools a scope sees: one layer a scope, restrictions that intersect, nearer names first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import field
from sys import float_info
from typing import TYPE_CHECKING, cast, get_args

from dsh.base.json import FrozenDict, NotLossless, snapshot
from dsh.base.text import did_you_mean
from dsh.base.values import record, value
from dsh.execution.tools.callbacks import check_callbacks
from dsh.execution.tools.holds import Swaps
from dsh.execution.tools.schema import assert_supported_json_schema
from dsh.execution.tools.service import (
    PRESENTATION_MODES,
    RESERVED_TOOL_NAME,
    CancelStyle,
    JsonSchemaError,
    PresentationMode,
    ToolDefinition,
    ToolExecution,
    ToolRegistrationError,
)
from dsh.kernel import AnonymousEntries, FiberState, NamedEntries, ScopedLayers, scope_of

if TYPE_CHECKING:
    from dsh.kernel import Context, Effect
    from dsh.model.llm.service import ToolSchema

Guard = Callable[[ToolExecution], str | None]

_OPTIONAL_CALLBACKS = (
    "parse_arguments",
    "is_concurrency_safe",
    "resources",
    "polls",
    "finalize_content",
    "present_call",
    "present_result",
)


@value
class Restriction:
    """Which inherited names a layer lets through."""

    allow: frozenset[str] | None
    deny: frozenset[str]

    def admits(self, name: str) -> bool:
        """Whether a name gets through."""
        return name not in self.deny and (self.allow is None or name in self.allow)


@value(eq=False)
class RegisteredGuard:
    """One registration of a guard; the same callable may be registered twice."""

    check: Guard


class Registered:
    """One registration of a tool.

    Attributes:
        definition: The tool.
        ctx: The context whose plugin owns it.
        schema: What a model is told of it, frozen as it was registered.
    """

    __slots__ = ("ctx", "definition", "schema")

    def __init__(self, definition: ToolDefinition, ctx: Context) -> None:
        self.definition = definition
        self.ctx = ctx
        self.schema = _schema_of(definition)

    @property
    def is_leaving(self) -> bool:
        """Whether the plugin was told to go, or is going."""
        fiber = self.ctx.fiber
        return fiber.uid is None or fiber.state is FiberState.UNLOADING


def _duplicate(name: str) -> Exception:
    return ToolRegistrationError(
        f"tool {name!r} is registered in this scope already; unload its plugin first, or register "
        "through agent.ctx to replace it for one agent"
    )


@record
class Layer:
    """What one scope adds."""

    tools: NamedEntries[Registered] = field(default_factory=lambda: NamedEntries(_duplicate))
    restrictions: AnonymousEntries[Restriction] = field(default_factory=AnonymousEntries)
    guards: AnonymousEntries[RegisteredGuard] = field(default_factory=AnonymousEntries)
    modes: AnonymousEntries[PresentationMode] = field(default_factory=AnonymousEntries)

    def is_empty(self) -> bool:
        """Whether nothing is registered here."""
        parts = (self.tools, self.restrictions, self.guards, self.modes)
        return all(part.is_empty() for part in parts)


class ToolLayers:
    """The layers of one runtime, and the views they add up to. Nothing is cached."""

    def __init__(self, changed: Callable[[], object]) -> None:
        self._layers: ScopedLayers[Layer] = ScopedLayers(Layer, changed)
        self.swaps = Swaps()
        self.transport: Callable[[object | None], Registered | None] = lambda _: None
        """Gives ``run_code`` to the scopes that have it; set once, by the runtime."""

    def register(self, ctx: Context, definition: ToolDefinition) -> Effect:
        """Add a tool to the layer of ``ctx``'s scope."""
        check_definition(definition)
        entry, name, scope = Registered(definition, ctx), definition.name, scope_of(ctx)

        def insert(layer: Layer) -> Callable[[], None]:
            undo = layer.tools.insert(name, entry)
            self.swaps.registered(name, scope)

            def remove() -> None:
                undo()
                self.swaps.removed(name, scope, entry)

            return remove

        return self._layers.effect(ctx, insert, label=f"tools.register({name!r})")

    def restrict(
        self, ctx: Context, allow: Iterable[str] | None, deny: Iterable[str] | None
    ) -> Effect:
        """Add a restriction to the layer of ``ctx``'s scope."""
        scope = scope_of(ctx)
        if scope is None:
            raise ToolRegistrationError(
                "restrict() needs a scope: call it through an agent's context (agent.ctx)"
            )
        if allow is None and deny is None:
            raise ToolRegistrationError("restrict() needs allow, deny or both")
        restriction = Restriction(
            None if allow is None else frozenset(allow), frozenset(deny or ())
        )
        self._check_names(scope, (restriction.allow or frozenset()) | restriction.deny)
        return self._layers.effect(
            ctx, lambda layer: layer.restrictions.append(restriction), label="tools.restrict"
        )

    def guard(self, ctx: Context, guard: Guard) -> Effect:
        """Add a guard to the layer of ``ctx``'s scope; no change of the registry is announced."""
        entry = RegisteredGuard(guard)
        return self._layers.effect(
            ctx, lambda layer: layer.guards.append(entry), label="tools.guard", notify=False
        )

    def present(self, ctx: Context, mode: PresentationMode) -> Effect:
        """Set the presentation of ``ctx``'s scope."""
        if mode not in PRESENTATION_MODES:
            modes = ", ".join(PRESENTATION_MODES)
            raise ToolRegistrationError(f"tools are presented as one of {modes}, not as {mode!r}")
        scope = scope_of(ctx)
        if scope is None:
            raise ToolRegistrationError(
                "present_as() needs a scope: call it through an agent's context (agent.ctx)"
            )
        layer = self._layers.peek(scope)
        if layer is not None and not layer.modes.is_empty():
            raise ToolRegistrationError("this scope has chosen a presentation already")
        return self._layers.effect(
            ctx, lambda layer: layer.modes.append(mode), label=f"tools.present_as({mode!r})"
        )

    def get(self, name: str, scope: object | None) -> ToolDefinition | None:
        """The tool that a scope sees under a name."""
        found = self.find(name, scope)
        return None if found is None else found.definition

    def find(self, name: str, scope: object | None) -> Registered | None:
        """The registration that a scope sees under a name."""
        if name == RESERVED_TOOL_NAME:
            return self.transport(scope)
        chain = self._layers.chain_layers(scope)
        if not chain:
            return self._layers.global_.tools.get(name)
        own = self._layers.peek(scope)
        if own is not None and (found := own.tools.get(name)) is not None:
            return found
        found = None
        admitted = True
        for layer in chain:
            if layer is not own and (nearer := layer.tools.get(name)) is not None:
                found = nearer
            admitted = admitted and _admits(layer, name)
        if not admitted:
            return None
        return found if found is not None else self._layers.global_.tools.get(name)

    def visible(self, scope: object | None) -> dict[str, ToolDefinition]:
        """Every tool that a scope sees, sorted by name."""
        seen = self.visible_entries(scope)
        return {name: seen[name].definition for name in sorted(seen)}

    def visible_entries(self, scope: object | None) -> dict[str, Registered]:
        """The registration of every tool that a scope sees, in no particular order."""
        seen = self._inherited(scope)
        if chain := self._layers.chain_layers(scope):
            seen = {
                name: entry
                for name, entry in seen.items()
                if all(_admits(layer, name) for layer in chain)
            }
            if (own := self._layers.peek(scope)) is not None:
                seen.update(own.tools.entries())
        if (run_code := self.transport(scope)) is not None:
            seen[RESERVED_TOOL_NAME] = run_code
        return seen

    def known_names(self, scope: object | None) -> tuple[str, ...]:
        """Names that a scope could see if nothing were restricted, sorted."""
        names = set(self._inherited(scope))
        if scope is not None and (own := self._layers.peek(scope)) is not None:
            names.update(own.tools.keys())
        return tuple(sorted(names))

    def guards(self, scope: object | None) -> Iterator[Guard]:
        """Guards in their order: global, then from the farthest layer to the nearest.

        A guard that is registered while the iteration runs is seen by it.
        """
        layers = [self._layers.global_]
        if scope is not None:
            layers += self._layers.chain_layers(scope)
        for layer in layers:
            seen: set[RegisteredGuard] = set()
            while fresh := [entry for entry in layer.guards.values() if entry not in seen]:
                for entry in fresh:
                    seen.add(entry)
                    yield entry.check

    def mode(self, scope: object | None, default: PresentationMode) -> PresentationMode:
        """The nearest presentation of a scope."""
        mode = default
        if scope is not None:
            for layer in self._layers.chain_layers(scope):
                for chosen in layer.modes.values():
                    mode = chosen
        return mode

    def _inherited(self, scope: object | None) -> dict[str, Registered]:
        """Tools of the global layer and of the ancestors, before any restriction."""
        seen = dict(self._layers.global_.tools.entries())
        if scope is not None:
            own = self._layers.peek(scope)
            for layer in self._layers.chain_layers(scope):
                if layer is not own:
                    seen.update(layer.tools.entries())
        return seen

    def _check_names(self, scope: object, names: frozenset[str]) -> None:
        inherited = sorted(self._inherited(scope))
        for name in sorted(names):
            if name == RESERVED_TOOL_NAME:
                raise ToolRegistrationError(f"{name!r} is reserved and cannot be restricted")
            if name not in inherited:
                raise ToolRegistrationError(
                    f"cannot restrict {name!r}: it is not inherited here"
                    f"{did_you_mean(name, inherited)}; inherited: {', '.join(inherited) or 'none'}"
                )


def check_definition(definition: ToolDefinition) -> None:
    """Refuse a definition that could only fail later.

    Raises:
        ToolRegistrationError: a field is unusable; names the tool and the field.
        JsonSchemaError: the output schema is outside the supported subset.
    """
    name, output = definition.name, definition.output
    if not isinstance(name, str) or not name:
        raise ToolRegistrationError("a tool needs a name that is text")
    if name == RESERVED_TOOL_NAME:
        raise ToolRegistrationError(f"the tool name {name!r} is reserved")
    if not isinstance(definition.description, str):
        raise ToolRegistrationError(f"tool {name!r}: description must be text")
    _check_parameters(definition)
    if not callable(definition.execute):
        raise ToolRegistrationError(f"tool {name!r}: execute must be callable")
    optional = {key: getattr(definition, key) for key in _OPTIONAL_CALLBACKS}
    optional["output.presentation_meta"] = getattr(output, "presentation_meta", None)
    given = {key: callback for key, callback in optional.items() if callback is not None}
    check_callbacks(name, {"output.render": getattr(output, "render", None), **given})
    timeout = definition.timeout_s
    if timeout is not None and not (
        isinstance(timeout, int | float) and 0 < timeout <= float_info.max
    ):
        raise ToolRegistrationError(
            f"tool {name!r}: timeout_s must be a positive finite number, got {timeout!r}"
        )
    if definition.cancel not in get_args(CancelStyle):
        raise ToolRegistrationError(
            f"tool {name!r}: cancel must be 'task' or 'signal', got {definition.cancel!r}"
        )
    try:
        assert_supported_json_schema(output.schema)
    except JsonSchemaError as error:
        raise JsonSchemaError(error.violations, of=f"output of tool {name!r}") from None


def _schema_of(definition: ToolDefinition) -> ToolSchema:
    schema = {
        "name": definition.name,
        "description": definition.description,
        "parameters": snapshot(definition.parameters),
    }
    return cast("ToolSchema", FrozenDict(schema))


def _check_parameters(definition: ToolDefinition) -> None:
    # One schema that cannot be sent would fail every request of every agent that sees the tool.
    try:
        parameters = snapshot(definition.parameters)
    except NotLossless as error:
        raise ToolRegistrationError(
            f"tool {definition.name!r}: its parameter schema is not lossless JSON at "
            f"{error.path}: {error.problem}"
        ) from error
    if not isinstance(parameters, dict):
        raise ToolRegistrationError(
            f"tool {definition.name!r}: its parameter schema must be a JSON object"
        )
    if (kind := parameters.get("type", "object")) != "object":
        raise ToolRegistrationError(
            f"tool {definition.name!r}: its parameter schema must have the type 'object', "
            f"got {kind!r}: parameters have names"
        )


def _admits(layer: Layer, name: str) -> bool:
    return all(restriction.admits(name) for restriction in layer.restrictions.values())
