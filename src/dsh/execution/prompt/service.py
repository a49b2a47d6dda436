"""The seam of the prompt: who contributes what, and what an assembled prompt is.

Sections become the system prompt, contexts the runtime-context snapshot, tool providers the
tool schemas, and variables fill ``{{name}}`` in both texts. Contributions made through an agent's
context count for that agent and what it delegates to; nearer ones replace farther ones by name.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, TypeAlias

from dsh.base.errors import DshError
from dsh.base.signal import AbortSignal
from dsh.base.values import record, value
from dsh.kernel import Effect, Service

if TYPE_CHECKING:
    from dsh.execution.agent.service import Agent
    from dsh.model.llm.service import ToolSchema

UNLISTED_TOOLS = "<unlisted-tools>"
"""Stands in ``tool_order`` for every tool that the order does not list."""

RUNTIME_CONTEXT_SOURCE = "@deepseek-ai/dsh-system-prompt"
"""``plugin`` of the messages that carry runtime-context snapshots (a name in existing logs)."""

VARIABLE_NAME = re.compile(r"[a-z][a-z0-9_]*")
"""What a variable may be called (matched against the whole name)."""

SNAPSHOT_HEADER = (
    "Current runtime context. It replaces every runtime-context snapshot that came before it."
)
"""First line of a runtime-context snapshot."""

CONTEXT_CLEARED = (
    "The runtime context is empty now. Earlier runtime context snapshots no longer apply."
)
"""What the model is told when the last context goes away."""


class PromptError(DshError, ValueError):
    """A prompt cannot be registered, assembled or rendered as configured."""

    code = "PROMPT"


class UnknownVariable(PromptError, LookupError):
    """A text refers to a variable that does not exist, has no value, or is not well formed."""

    code = "PROMPT_VARIABLE"

    def __init__(self, part: str, problem: str, known: Sequence[str]) -> None:
        names = ", ".join(sorted(known)) or "none"
        super().__init__(f"prompt part {part!r} {problem}; known variables: {names}")
        self.part, self.problem, self.known = part, problem, tuple(known)


@value
class AssembleContext:
    """For whom a prompt is assembled."""

    scope: object | None = None
    """Whose contributions count: a scope key (an agent) or ``None`` for the global ones alone."""
    signal: AbortSignal | None = None
    agent: Agent | None = None


PromptText: TypeAlias = str | Callable[[AssembleContext], str]


@value
class PromptSection:
    """A part of the system prompt; parts follow each other in ascending ``order``."""

    name: str
    order: float
    text: PromptText
    complete: bool = False
    """This section is the whole system prompt; at most one effective section may say so."""


@value
class PromptContext:
    """A part of the runtime context: facts that change and are told as a message."""

    name: str
    order: float
    text: PromptText


@value
class ToolContribution:
    """Schemas of one tool provider."""

    schemas: tuple[ToolSchema, ...]
    known_names: tuple[str, ...] | None = None
    """Names that a tool order may list, visible now or not; default: the provided names."""


@value
class PromptPart:
    """An evaluated section or context; its variables are not filled in yet."""

    name: str
    text: str


@record
class PromptAssembly:
    """What one request tells the model beside the messages. Made anew for every assembly."""

    sections: list[PromptPart] = field(default_factory=list)
    contexts: list[PromptPart] = field(default_factory=list)
    tools: list[ToolSchema] = field(default_factory=list)
    variables: dict[str, str | None] = field(default_factory=dict)


ToolProvider: TypeAlias = Callable[[AssembleContext], "ToolContribution | Iterable[ToolSchema]"]
VariableProvider: TypeAlias = Callable[[AssembleContext], "str | None"]


class SystemPrompt(Service, ABC):
    """Collects contributions by scope and assembles them for one request at a time.

    Every contribution is owned by the plugin whose context made the call. A listener of
    `SYSTEM_PROMPT_CHANGE` that raises takes the contribution back.
    """

    name = "system_prompt"

    @abstractmethod
    def section(self, section: PromptSection) -> Effect:
        """Add a section.

        Raises:
            PromptError: the name is taken in this scope.
            TypeError: ``order`` is not finite.
        """

    @abstractmethod
    def context(self, context: PromptContext) -> Effect:
        """Add a runtime context; same rules as `section`."""

    @abstractmethod
    def suppress_runtime_context(self) -> Effect:
        """Tell this scope no runtime context at all; providers are not even asked."""

    @abstractmethod
    def tools(self, provider: ToolProvider) -> Effect:
        """Add a provider of tool schemas."""

    @abstractmethod
    def variable(self, name: str, provider: VariableProvider) -> Effect:
        """Define ``{{name}}``, evaluated at each assembly; ``None`` means it has no value now.

        Raises:
            PromptError: the name does not match ``[a-z][a-z0-9_]*`` or is taken in this scope.
        """

    @abstractmethod
    async def assemble(self, context: AssembleContext | None = None) -> PromptAssembly:
        """Evaluate all contributions for one request and let listeners rewrite the result.

        Raises:
            PromptError: contributions contradict each other or the tool order names an unknown
                tool. What a provider or listener raises passes through.
        """


def render_prompt(assembly: PromptAssembly) -> str:
    """Fill in the variables of the sections and join them; empty sections are left out.

    Raises:
        UnknownVariable: a text refers to what is not there.
    """
    return _joined(_filled(assembly.sections, assembly.variables))


def render_context_sections(assembly: PromptAssembly) -> list[PromptPart]:
    """Fill in the variables of the contexts; empty contexts are left out.

    Raises:
        UnknownVariable: a text refers to what is not there.
    """
    return _filled(assembly.contexts, assembly.variables)


def join_context_sections(sections: Sequence[PromptPart]) -> str:
    """Make the text of a snapshot message from rendered contexts; empty without any."""
    return f"{SNAPSHOT_HEADER}\n\n{_joined(sections)}" if sections else ""


def render_context_snapshot(assembly: PromptAssembly) -> str:
    """Render the contexts as one snapshot text; empty when there are none.

    Raises:
        UnknownVariable: a text refers to what is not there.
    """
    return join_context_sections(render_context_sections(assembly))


def interpolate(text: str, variables: Mapping[str, str | None], *, part: str) -> str:
    """Replace each ``{{name}}``; what is put in is not looked at again.

    Braces that open and never close are text.

    Args:
        text: The template.
        variables: Values by name; ``None`` is no value.
        part: Name of the text, for the error.

    Raises:
        UnknownVariable: a name is malformed, unknown or has no value.
    """
    if "{{" not in text:
        return text
    pieces: list[str] = []
    position = 0
    while (start := text.find("{{", position)) >= 0 and (end := text.find("}}", start + 2)) >= 0:
        pieces += [text[position:start], _value_of(text[start + 2 : end], variables, part)]
        position = end + 2
    pieces.append(text[position:])
    return "".join(pieces)


def _value_of(name: str, variables: Mapping[str, str | None], part: str) -> str:
    known = list(variables)
    if not VARIABLE_NAME.fullmatch(name):
        shown = name if len(name) <= 60 else f"{name[:60]}..."
        raise UnknownVariable(part, f"has a malformed variable {{{{{shown}}}}}", known)
    if name not in variables:
        raise UnknownVariable(part, f"uses the unknown variable {name!r}", known)
    value = variables[name]
    if value is None:
        raise UnknownVariable(part, f"uses the variable {name!r}, which has no value here", known)
    return value


def _filled(parts: Sequence[PromptPart], variables: Mapping[str, str | None]) -> list[PromptPart]:
    filled = [
        PromptPart(part.name, interpolate(part.text, variables, part=part.name)) for part in parts
    ]
    return [part for part in filled if part.text.strip()]


def _joined(parts: Sequence[PromptPart]) -> str:
    return "\n\n".join(part.text for part in parts)
