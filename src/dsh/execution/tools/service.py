"""The seam of model-facing tools: what a tool is, what a call is, and what runs it.

Everything that offers, restricts, wraps or runs tools depends on this module alone. The
provider is `dsh.execution.tools.runtime`; authors usually start at `dsh.execution.tools.author`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import field
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, TypeAlias, get_args

from dsh.base.json import JsonObject, JsonValue
from dsh.base.signal import AbortSignal
from dsh.base.values import value
from dsh.execution.tools.contexts import context_of
from dsh.execution.tools.errors import JsonSchemaError as JsonSchemaError
from dsh.execution.tools.errors import ToolArgsError as ToolArgsError
from dsh.execution.tools.errors import ToolNotFound as ToolNotFound
from dsh.execution.tools.errors import ToolOutputError as ToolOutputError
from dsh.execution.tools.errors import ToolRegistrationError as ToolRegistrationError
from dsh.execution.tools.errors import ToolUnloaded as ToolUnloaded
from dsh.execution.tools.raw import parse_call as parse_call
from dsh.kernel import Effect, Service
from dsh.model.messages import CallId, ContentBlock, UserMessage

if TYPE_CHECKING:
    from dsh.execution.agent.service import Agent
    from dsh.kernel import Fiber
    from dsh.model.llm.service import ToolSchema

_CALLS: Final = count(1)

RESERVED_TOOL_NAME = "run_code"
"""The transport of Code Mode; nobody may register, shadow or restrict it."""

ABORTED = "ABORTED"
"""Code of a call that was cancelled after its body had been invoked."""

ABORTED_BEFORE_DISPATCH = "ABORTED_BEFORE_DISPATCH"
"""Code of a call that was cancelled before its body was invoked."""

TOOL_TIMEOUT = "TOOL_TIMEOUT"
"""Code of a call whose deadline passed."""

ABORTED_TEXT = "tool call aborted"
ABORTED_BEFORE_DISPATCH_TEXT = "tool call aborted before dispatch"

CancelStyle: TypeAlias = Literal["task", "signal"]
"""How a running body is told to stop.

``task``: the signal is set and the body's task is cancelled. ``signal``: only the signal is
set; for bodies that tear down by themselves and would be hurt by a ``CancelledError``.
"""

PresentationMode: TypeAlias = Literal["native", "code", "both"]
"""How tools reach the model: as schemas, through ``run_code`` only, or both."""

PRESENTATION_MODES: tuple[PresentationMode, ...] = get_args(PresentationMode)
"""Every mode."""

ToolArguments: TypeAlias = Any
"""What a body takes: the frozen JSON of the call, or what ``parse_arguments`` made of it."""


@value
class ToolOutput:
    """The result side of a tool."""

    schema: JsonObject
    """Shape of the canonical value, in the supported subset of JSON Schema."""
    render: Callable[[ToolArguments, Any], Sequence[ContentBlock]]
    """What the model reads for a value. Pure: it runs again when a policy replaces the value."""
    presentation_meta: Callable[[ToolArguments, Any], JsonValue] | None = None
    """Durable facts for user interfaces; never shown to the model."""


@value
class ToolResultFacts:
    """The durable part of a result, as presenters see it (also when a log is replayed)."""

    content: Sequence[ContentBlock]
    is_error: bool
    meta: JsonValue = None


@value(kw_only=True)
class ToolDefinition:
    """One tool as the registry holds it. Authors rarely build it by hand: see ``define_tool``.

    All callbacks get the frozen JSON arguments of the call, except ``execute``, which gets what
    ``parse_arguments`` returned when there is one.
    """

    name: str
    description: str
    parameters: JsonObject
    """JSON Schema of the arguments for the model to read; ``parse_arguments`` enforces it."""
    output: ToolOutput
    execute: Callable[[ToolArguments, ToolRunContext], Awaitable[JsonValue] | JsonValue]
    """The body; returns the canonical value only. A function that is not ``async`` runs in a thread
    of its own, so it may block; it sees cancellation through ``run.signal``."""
    parse_arguments: Callable[[JsonValue], ToolArguments] | None = None
    """Checks and converts the arguments, before anybody is asked to approve the call.

    Raises ``ToolArgsError``."""
    timeout_s: float | None = None
    """Deadline of one call in seconds, applied by the timeout policy; never shown to the model."""
    cancel: CancelStyle = "task"
    is_concurrency_safe: Callable[[JsonValue], bool] | None = None
    """Exactly ``True`` lets this call overlap with other such calls. Pure and synchronous."""
    resources: Callable[[JsonValue], Iterable[Resource | str]] | None = None
    """What a call that may overlap touches: calls on one resource keep their order. Synchronous.

    A plain string stands for exclusive use; a ``file:`` path may be relative to the session's
    folder."""
    polls: Callable[[JsonValue], bool] | None = None
    """Exactly ``True`` says that a call only waits for something outside, so that repeating it is
    patience. Pure and synchronous."""
    finalize_content: (
        Callable[[ToolExecution, ToolResult], Sequence[ContentBlock] | None] | None
    ) = None
    """Last word on the content of every outcome; ``None`` keeps it. Called once per call."""
    present_call: Callable[[JsonValue], Mapping[str, object] | None] | None = None
    """View of a call, see `dsh.execution.tools.views`. Pure; ``None`` means the generic view."""
    present_result: Callable[[JsonValue, ToolResultFacts], Mapping[str, object] | None] | None = (
        None
    )
    """View of a result, likewise. Pure; interfaces go through ``call_view``, ``result_view``."""


class ExecutionToken:
    """Identity of one call; compared by ``is`` and without content.

    Attributes:
        number: Later calls of a process have greater ones.
    """

    __slots__ = ("__weakref__", "number")

    def __init__(self) -> None:
        self.number: Final = next(_CALLS)


@value
class ToolInput:
    """A request to run one tool."""

    call_id: CallId
    name: str
    arguments: JsonValue
    """Parsed JSON. A ``str`` stands for raw text that is not a JSON object (see ``parse_call``)."""
    signal: AbortSignal
    agent: Agent | None = None
    root_call_id: CallId | None = None
    """The model's call that a nested call belongs to; ``None`` for the model's call itself."""
    parent: ExecutionToken | None = None
    """Token of the call that makes this one from inside its body."""


@value
class ToolExecution:
    """One call, the same for every stage: listeners, guards, body, observers."""

    call_id: CallId
    name: str
    arguments: JsonValue
    """Detached and frozen."""
    signal: AbortSignal
    """The caller's signal."""
    agent: Agent | None
    root_call_id: CallId
    parent: ExecutionToken | None
    token: ExecutionToken


@value
class ToolRunContext(ToolExecution):
    """A call as its body sees it; ``signal`` also carries deadlines that wrappers added."""

    _deferred: list[UserMessage] = field(default_factory=list, repr=False, compare=False)
    _conclusions: list[bool] = field(default_factory=list, repr=False, compare=False)

    def defer_context(self, message: UserMessage) -> None:
        """Hand the model a message right after this call's result.

        Messages are kept in order, also when the call fails or is cancelled; a blocking
        post-execute decision drops them.

        Raises:
            TypeError: it is no user message.
            NotLossless: it is not JSON.
        """
        self._deferred.append(context_of(message))

    def conclude_turn(self) -> None:
        """End the turn after this step. Only counts when the call succeeds in the end."""
        self._conclusions.append(True)


@value
class ToolErrorInfo:
    """Routable identity of a failure, as the session log keeps it."""

    name: str
    code: str


@value
class ToolError:
    """Why a call failed."""

    message: str
    info: ToolErrorInfo | None = None


@value(kw_only=True)
class ToolSuccess:
    """A call that ended with a value."""

    value: JsonValue
    content: Sequence[ContentBlock]
    meta: JsonValue = None
    additional_contexts: tuple[UserMessage, ...] = ()
    concludes_turn: bool = False
    is_error: ClassVar[Literal[False]] = False


@value(kw_only=True)
class ToolFailure:
    """A call that was denied, failed or was cancelled; it has no value."""

    error: ToolError
    content: Sequence[ContentBlock]
    meta: JsonValue = None
    additional_contexts: tuple[UserMessage, ...] = ()
    concludes_turn: ClassVar[Literal[False]] = False
    is_error: ClassVar[Literal[True]] = True


ToolResult: TypeAlias = ToolSuccess | ToolFailure


@value
class Resource:
    """Something outside of a call that it uses: a file, a terminal."""

    key: str
    """``kind:name``, such as ``file:/src/a.py`` or ``terminal:1``. A name that is an absolute path
    stands for everything below it too."""
    shared: bool = False
    """Whether others that only share it may use it at the same time."""


@value
class ExecutionMode:
    """How a call may be scheduled; a tagged value, so that finer kinds can join."""

    kind: Literal["parallel", "exclusive"]
    resources: tuple[Resource, ...] = ()
    """Of a parallel call: it waits for earlier calls that use one of them in a conflicting way."""


PARALLEL = ExecutionMode("parallel")
EXCLUSIVE = ExecutionMode("exclusive")


class Staged(ABC):
    """A call between its stages; only the runtime that made it can go on with it."""

    __slots__ = ()

    @property
    @abstractmethod
    def execution(self) -> ToolExecution:
        """The call."""

    @property
    @abstractmethod
    def result(self) -> ToolResult | None:
        """What is known of the outcome.

        After ``prepare``: ``None`` when the body may be dispatched, else the result to finalize.
        After ``dispatch``, also one that ended in ``CancelledError``: the result to finalize.
        """


@value
class Stray:
    """A body that did not end in its grace period and still runs; its result is discarded."""

    call_id: CallId
    tool: str
    cause: str
    since_ms: int
    """Wall clock time in milliseconds at which the call was given up."""


class ToolRuntime(Service, ABC):
    """The registry of tools by scope, and the pipeline that every call goes through."""

    name = "tools"

    @abstractmethod
    def register(self, definition: ToolDefinition) -> Effect:
        """Offer a tool in the calling context's scope until the calling plugin unloads.

        A scoped tool shadows an inherited one of the same name.

        Raises:
            ToolRegistrationError: the definition is unusable, the name is reserved or taken in
                this scope.
            JsonSchemaError: the output schema is outside the supported subset.
        """

    @abstractmethod
    def restrict(
        self, *, allow: Iterable[str] | None = None, deny: Iterable[str] | None = None
    ) -> Effect:
        """Hide inherited tools from the calling scope and the scopes below it.

        ``allow`` keeps only these names, also against tools that are registered later; ``deny``
        removes these names. Own tools of the scope are never hidden. This shapes what is seen; it
        is not a barrier against code.

        Raises:
            ToolRegistrationError: the context has no scope, neither list is given, or a name is
                not inherited here.
        """

    @abstractmethod
    def guard(self, guard: Callable[[ToolExecution], str | None]) -> Effect:
        """Add a check that can only deny: its first reason wins over every permission.

        Global guards run first, then those of the calling agent's scopes, outermost first.
        """

    @abstractmethod
    def present_as(self, mode: PresentationMode) -> Effect:
        """Choose how this scope's tools reach the model; once per scope."""

    @abstractmethod
    def get(self, name: str, scope: object | None = None) -> ToolDefinition | None:
        """The tool that ``scope`` sees under ``name``. Never cached."""

    @abstractmethod
    def schemas(self, scope: object | None = None) -> list[ToolSchema]:
        """What the model is told of every visible tool, sorted by name, detached."""

    @abstractmethod
    def hold(
        self, names: Iterable[str], *, scope: object | None = None, owner: Fiber | None = None
    ) -> AbstractContextManager[tuple[str, ...]]:
        """Return what keeps the plugins of tools loaded while entered, for a grace at most.

        For whoever tells a model of these tools and will run what it asks for. Entering gives the
        names of those that cannot be kept, because their plugins are on their way out or have
        just gone.

        Args:
            names: The tools.
            scope: Whose view of the registry counts.
            owner: The plugin whose unload would end the work; see ``Fiber.lease``.
        """

    @abstractmethod
    async def settle(
        self, *, scope: object | None = None, signal: AbortSignal | None = None
    ) -> None:
        """Wait while tools that a scope sees are being swapped, for a second at most.

        For whoever is about to tell a model of its tools. A tool whose plugin is on its way out,
        or is gone for less than that, may be back in the next moment.

        Raises:
            AbortedError: ``signal`` aborted first; or its reason, when that is an exception.
        """

    @abstractmethod
    def execution_mode(self, input: ToolInput) -> ExecutionMode:
        """Parallel only if the visible tool says exactly ``True`` for these arguments."""

    @abstractmethod
    async def execute(self, input: ToolInput) -> ToolResult:
        """Run one call through all stages. Failures are results, not exceptions.

        Cancelling the surrounding task is delivered to the body; the ``ABORTED`` result reaches
        the observers before ``CancelledError`` goes on.
        """

    @abstractmethod
    async def prepare(self, input: ToolInput) -> Staged:
        """Do everything that comes before the body: policies, approval, guards, arguments."""

    @abstractmethod
    async def dispatch(self, staged: Staged) -> ToolResult:
        """Run the body of a prepared call inside its wrappers. At most once per call.

        Cancelled from outside, it stops the body, leaves ``staged.result`` set and raises.
        """

    @abstractmethod
    async def finalize(self, staged: Staged, result: ToolResult) -> ToolResult:
        """Let post-execute policies judge the result, then publish it. Once per call."""

    @abstractmethod
    def finish(self, staged: Staged, result: ToolResult) -> ToolResult:
        """Publish a result without asking any policy; what cancellation paths use."""

    @abstractmethod
    def strays(self) -> tuple[Stray, ...]:
        """Bodies that were given up and still run, oldest first."""
