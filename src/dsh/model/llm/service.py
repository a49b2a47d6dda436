"""The model seam: what callers ask of ``ctx.llm`` and what an adapter must be."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NotRequired, Protocol, TypeAlias, TypedDict, cast

from dsh.base.json import equal, snapshot
from dsh.base.signal import AbortSignal
from dsh.kernel import Service
from dsh.model.chunks import StreamChunk
from dsh.model.failures import LlmError
from dsh.model.messages import Message

if TYPE_CHECKING:
    from dsh.kernel import Fiber

__all__ = [
    "DEFAULT_RETRYABLE_CODES",
    "AdapterCall",
    "AdapterDefaults",
    "AdapterRegistration",
    "AlwaysRetry",
    "Backoff",
    "ChunkStream",
    "GenerateOptions",
    "LlmAdapter",
    "LlmCallConfig",
    "LlmModelInfo",
    "LlmProviderInfo",
    "LlmRuntime",
    "Modality",
    "NormalRetry",
    "PreparedLlmCall",
    "ReasoningEffort",
    "ReasoningInfo",
    "ResolvedModelInfo",
    "RetryPolicy",
    "ToolSchema",
    "call_config_of",
]

Modality: TypeAlias = Literal["text", "image"]
"""A kind of input that a model reads."""


class ToolSchema(TypedDict):
    """A tool as a model sees it; ``parameters`` is JSON Schema."""

    name: str
    description: str
    parameters: Mapping[str, Any]


class LlmCallConfig(TypedDict):
    """The scalars of a model call; this is what the log keeps of a request."""

    provider: str
    model: str
    reasoningEffort: NotRequired[str]
    temperature: NotRequired[float]
    maxTokens: NotRequired[int]
    stop: NotRequired[Sequence[str]]


class AdapterDefaults(TypedDict, total=False):
    """Which scalars of a call the adapter filled in, as opposed to the caller."""

    reasoningEffort: Literal[True]
    maxTokens: Literal[True]


class ChunkStream(Protocol):
    """A reply as it comes; whoever stops early closes it (``contextlib.aclosing``)."""

    def __aiter__(self) -> AsyncIterator[StreamChunk]: ...

    def __anext__(self) -> Awaitable[StreamChunk]: ...

    async def aclose(self) -> None:
        """End the call and release what it holds; harmless when it has ended."""
        ...


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class GenerateOptions:
    """One request to a model. Compared by identity; its messages and tools are frozen JSON."""

    provider: str
    model: str
    messages: Sequence[Message]
    _: KW_ONLY
    reasoning_effort: str | None = None
    system: str | None = None
    tools: Sequence[ToolSchema] | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    stop: Sequence[str] | None = None
    signal: AbortSignal | None = None
    session_id: str | None = None
    purpose: str | None = None
    """``compaction``, ``session-title``, or ``None`` for a step of an agent."""


def call_config_of(options: GenerateOptions) -> LlmCallConfig:
    """Return the scalars of a request, frozen; what is absent is left out."""
    config: dict[str, Any] = {"provider": options.provider, "model": options.model}
    if options.reasoning_effort is not None:
        config["reasoningEffort"] = options.reasoning_effort
    if options.temperature is not None:
        config["temperature"] = options.temperature
    if options.max_tokens is not None:
        config["maxTokens"] = options.max_tokens
    if options.stop is not None:
        config["stop"] = list(options.stop)
    return cast("LlmCallConfig", snapshot(config))


@dataclass(frozen=True, slots=True)
class LlmProviderInfo:
    """A route that callers may name, and how to call it in a sentence."""

    id: str
    name: str


@dataclass(frozen=True, slots=True)
class LlmModelInfo:
    """A model that a provider lists. Lists advise; unlisted models may work as well."""

    provider: str
    id: str
    name: str
    description: str | None = None
    input_modalities: tuple[Modality, ...] | None = None


@dataclass(frozen=True, slots=True)
class ReasoningEffort:
    """One level of thinking that a model offers."""

    id: str
    name: str
    description: str | None = None


@dataclass(frozen=True, slots=True)
class ReasoningInfo:
    """The levels of thinking of a model, and the one a call gets that names none."""

    efforts: tuple[ReasoningEffort, ...]
    default_effort: str | None = None


@dataclass(frozen=True, slots=True)
class ResolvedModelInfo:
    """What is known of one model: its window, limits and levels of thinking."""

    provider: str
    id: str
    name: str
    description: str | None = None
    input_modalities: tuple[Modality, ...] | None = None
    context_window: int | None = None
    """Tokens of input and output together."""
    default_max_tokens: int | None = None
    """Output limit of a call that sets none."""
    reasoning: ReasoningInfo | None = None
    """``None``: the model takes no reasoning effort at all."""


DEFAULT_RETRYABLE_CODES: tuple[str, ...] = (
    "EMPTY_RESPONSE",
    "RATE_LIMIT",
    "SERVER",
    "TIMEOUT",
    "TRANSPORT",
)
"""Failures that go away by waiting."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait before a retry: doubling from ``initial_s`` up to ``max_s``."""

    initial_s: float = 0.5
    max_s: float = 10.0
    jitter_ratio: float = 0.1
    """Share of the delay, 0 to 1, by which it may vary to either side."""


@dataclass(frozen=True, slots=True)
class NormalRetry:
    """Retry failures of some codes a few times."""

    max_retries: int = 5
    retryable_codes: tuple[str, ...] = DEFAULT_RETRYABLE_CODES
    backoff: Backoff = field(default_factory=Backoff)


@dataclass(frozen=True, slots=True)
class AlwaysRetry:
    """Retry every failure until the caller aborts."""

    backoff: Backoff = field(default_factory=Backoff)


RetryPolicy: TypeAlias = NormalRetry | AlwaysRetry
"""What a provider wants done about failed requests."""


@dataclass(frozen=True, slots=True)
class AdapterCall:
    """A model resolved against one generation of an adapter's configuration."""

    model: ResolvedModelInfo
    stream: Callable[[GenerateOptions], AsyncIterator[StreamChunk]]


class PreparedLlmCall:
    """A validated call, bound to the adapter generation that validated it.

    Attributes:
        config: The scalars the request must have, defaults filled in; frozen.
        retry_policy: The policy of the route when the call was prepared.
        context_window: Tokens the model holds, when it is known.
        input_modalities: What the model reads, when it is known.
        adapter_defaults: Which scalars of ``config`` came from the adapter.
    """

    __slots__ = (
        "_dispatch",
        "_fiber",
        "_used",
        "adapter_defaults",
        "config",
        "context_window",
        "input_modalities",
        "retry_policy",
    )

    def __init__(
        self,
        config: LlmCallConfig,
        *,
        retry_policy: RetryPolicy | None,
        context_window: int | None,
        input_modalities: tuple[Modality, ...] | None,
        adapter_defaults: AdapterDefaults,
        dispatch: Callable[[GenerateOptions], ChunkStream],
        fiber: Fiber,
    ) -> None:
        self.config = config
        self.retry_policy = retry_policy
        self.context_window = context_window
        self.input_modalities = input_modalities
        self.adapter_defaults = adapter_defaults
        self._dispatch = dispatch
        self._fiber = fiber
        self._used = False

    def hold(self, owner: Fiber | None = None) -> AbstractContextManager[None]:
        """Return what keeps the adapter's plugin loaded while entered; see ``Fiber.lease``.

        Raises:
            InactiveEffect: on entering, when the plugin is on its way out or gone already.
        """
        route = f"{self.config['provider']}/{self.config['model']}"
        return self._fiber.lease(f"a call of the model {route}", owner=owner)

    def stream(self, options: GenerateOptions) -> ChunkStream:
        """Make the call, once.

        Raises:
            LlmError: ``INVALID_PREPARED_CALL``, the call was made before, or a scalar of
                ``options`` differs from ``config``.
        """
        if self._used:
            raise LlmError(
                "this prepared model call was streamed before; prepare a new one for each attempt",
                code="INVALID_PREPARED_CALL",
            )
        wanted = call_config_of(options)
        if not equal(wanted, self.config):
            raise LlmError(
                f"the request differs from the call that was prepared: prepared {self.config!r}, "
                f"got {wanted!r}",
                code="INVALID_PREPARED_CALL",
            )
        self._used = True
        return self._dispatch(options)


class LlmAdapter(ABC):
    """Speaks to one kind of provider.

    One ``stream()`` is one attempt: retries belong to the retry policy. The adapter honours
    ``options.signal``, reports usage before the finish, and passes tool arguments on as the
    text it got. It may raise; the runtime turns what it raises into the last chunk.
    """

    @abstractmethod
    def provider_info(self, provider: str) -> LlmProviderInfo:
        """Describe the route ``provider``; the id must be the one asked for."""

    def retry_policy(self, provider: str) -> RetryPolicy | None:
        """Return what to do about failures of this route; ``None`` for no retries."""
        return None

    async def list_models(self, provider: str) -> Sequence[LlmModelInfo]:
        """Return the models worth showing."""
        return ()

    @abstractmethod
    async def resolve_model(
        self, provider: str, model: str, signal: AbortSignal | None = None
    ) -> ResolvedModelInfo:
        """Return what is known of a model; an unlisted id is not an error."""

    @abstractmethod
    def stream(self, options: GenerateOptions) -> AsyncIterator[StreamChunk]:
        """Make one attempt at the call."""

    async def prepare_call(
        self, provider: str, model: str, signal: AbortSignal | None = None
    ) -> AdapterCall:
        """Freeze one generation of configuration for a call.

        Adapters whose configuration can change while they are mounted override this.
        """
        return AdapterCall(await self.resolve_model(provider, model, signal), self.stream)


class AdapterRegistration(ABC):
    """The routes that one adapter serves; goes with the plugin that registered it."""

    @abstractmethod
    def replace(self, providers: Sequence[str]) -> None:
        """Serve exactly ``providers`` from now on, or keep the old ones when one is refused.

        The retry policies are read again. An empty list is allowed.

        Raises:
            LlmError: ``INVALID_ADAPTER``, ``DUPLICATE_ADAPTER`` or ``REGISTRATION_DISPOSED``.
        """

    @abstractmethod
    def dispose(self) -> Awaitable[None]:
        """Withdraw all routes at once; harmless when repeated. Awaiting the result is optional."""


class LlmRuntime(Service, ABC):
    """Routes model calls to adapters, lets plugins stand around them, and names what fails."""

    name = "llm"

    @abstractmethod
    def register_adapter(
        self, providers: Sequence[str], adapter: LlmAdapter
    ) -> AdapterRegistration:
        """Serve ``providers`` with ``adapter`` until the calling plugin unloads.

        Raises:
            LlmError: ``INVALID_ADAPTER`` (no or an empty name, or the adapter describes itself
                wrongly) or ``DUPLICATE_ADAPTER``; nothing is registered then.
        """

    @abstractmethod
    def providers(self) -> list[LlmProviderInfo]:
        """Return all routes in the order they were registered."""

    @abstractmethod
    def provider_retry_policy(self, provider: str) -> RetryPolicy | None:
        """Return the policy captured when the route was registered.

        Raises:
            LlmError: ``NO_ADAPTER``.
        """

    @abstractmethod
    async def list_models(self, provider: str) -> list[LlmModelInfo]:
        """Return the models that the provider lists.

        Raises:
            LlmError: ``NO_ADAPTER`` or ``INVALID_CATALOG``.
        """

    @abstractmethod
    async def resolve_model_info(
        self, provider: str, model: str, signal: AbortSignal | None = None
    ) -> ResolvedModelInfo:
        """Return what is known of a model, listed or not.

        Raises:
            LlmError: ``NO_ADAPTER``, or the adapter's answer is wrong: ``INVALID_MODEL_INFO``,
                ``INVALID_MODEL_CONTEXT``, ``INVALID_MODEL_MAX_TOKENS``,
                ``INVALID_MODEL_REASONING``.
        """

    @abstractmethod
    async def resolve_call_config(
        self, config: LlmCallConfig, signal: AbortSignal | None = None
    ) -> LlmCallConfig:
        """Return ``config`` with the defaults of its model filled in.

        Raises:
            LlmError: as `resolve_model_info`, or ``UNSUPPORTED_REASONING_EFFORT``.
        """

    @abstractmethod
    async def settle_route(self, provider: str, signal: AbortSignal | None = None) -> None:
        """Wait while the adapter of a provider is being swapped, for a bounded time.

        Returns at once when there is an adapter that takes calls, and when there has not been one
        of late. Whether there is one in the end is for the next call to say.

        Raises:
            AbortedError: ``signal`` aborted first; or its reason, when that is an exception.
        """

    @abstractmethod
    async def prepare_call(
        self, config: LlmCallConfig, signal: AbortSignal | None = None
    ) -> PreparedLlmCall:
        """Validate a call and pin the adapter that will serve it.

        Raises:
            LlmError: as `resolve_call_config`.
        """

    @abstractmethod
    def stream(self, options: GenerateOptions) -> ChunkStream:
        """Make a call. Nothing happens before the first chunk is asked for.

        Whatever goes wrong from picking the adapter to its last chunk arrives as one ``finish``
        chunk. Exceptions of ``llm/stream`` listeners are raised.
        """
