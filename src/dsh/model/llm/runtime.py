"""Plugin ``llm``: the registry of adapters and the one way to call a model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, cast

from dsh.base.json import equal
from dsh.base.signal import AbortSignal
from dsh.base.text import did_you_mean
from dsh.base.values import value
from dsh.kernel import Context, Effect, FiberState, InactiveEffect
from dsh.model.chunks import StreamChunk
from dsh.model.failures import LlmError
from dsh.model.llm.calls import LazyStream, Start, Started, attempt
from dsh.model.llm.defaults import fill_defaults, validate_catalog, validate_model_info
from dsh.model.llm.events import (
    LLM_ADAPTERS_UPDATED,
    LLM_STREAM,
    LlmAdaptersUpdated,
    LlmStream,
    is_loop_built,
)
from dsh.model.llm.grammar import checked
from dsh.model.llm.projection import has_images, without_foreign_replay_state, without_images
from dsh.model.llm.routes import RouteWatch
from dsh.model.llm.service import (
    AdapterRegistration,
    ChunkStream,
    GenerateOptions,
    LlmAdapter,
    LlmCallConfig,
    LlmModelInfo,
    LlmProviderInfo,
    LlmRuntime,
    PreparedLlmCall,
    ResolvedModelInfo,
    RetryPolicy,
    call_config_of,
)

if TYPE_CHECKING:
    from dsh.model.llm.config import RuntimeConfig

__all__ = ["AdapterRuntime", "plugin"]


class _ConfigModel:
    """Imports the model, which is pydantic's, when the plugin is mounted."""

    def __get__(self, instance: object, owner: type) -> type[RuntimeConfig]:
        from dsh.model.llm.config import RuntimeConfig

        return RuntimeConfig


@value
class _Route:
    """A provider as it was when it was registered."""

    info: LlmProviderInfo
    adapter: LlmAdapter
    retry_policy: RetryPolicy | None
    owner: _Registration


class _Registration(AdapterRegistration):
    """The routes of one adapter; `effect` withdraws them."""

    def __init__(self, runtime: AdapterRuntime, adapter: LlmAdapter, owner: Context) -> None:
        self._runtime = runtime
        self.adapter = adapter
        self.owner = owner
        self.live = False
        self.effect: Effect | None = None

    @property
    def takes_calls(self) -> bool:
        """Whether the plugin is not on its way out."""
        fiber = self.owner.fiber
        return self.live and fiber.uid is not None and fiber.state is not FiberState.UNLOADING

    def is_live(self) -> bool:
        """Whether the adapter's plugin is loaded, as when the registration was made."""
        return self.live

    def replace(self, providers: Sequence[str]) -> None:
        if not self.live:
            raise LlmError(
                "the adapter registration was disposed; register the adapter anew",
                code="REGISTRATION_DISPOSED",
            )
        self._runtime.swap(self, self._runtime.examine(self, providers))

    def dispose(self) -> Awaitable[None]:
        assert self.effect is not None  # set before anyone gets the registration
        return cast("Awaitable[None]", self.effect.dispose())


class AdapterRuntime(LlmRuntime):
    """Keeps the routes and runs the calls; see `LlmRuntime`."""

    Config: ClassVar[Any] = _ConfigModel()

    def __init__(self, ctx: Context, config: RuntimeConfig | None = None) -> None:
        super().__init__(ctx, config)
        self._routes: dict[str, _Route] = {}
        self._watch = RouteWatch()
        self._check_grammar = config is not None and config.check_grammar

    def register_adapter(
        self, providers: Sequence[str], adapter: LlmAdapter
    ) -> AdapterRegistration:
        """See `LlmRuntime.register_adapter`."""
        registration = _Registration(self, adapter, self.caller)
        if not providers:
            raise LlmError("an adapter must serve at least one provider", code="INVALID_ADAPTER")
        routes = self.examine(registration, providers)

        def setup() -> Callable[[], None]:
            registration.live = True
            self.swap(registration, routes)
            return undo

        def undo() -> None:
            registration.live = False
            self.swap(registration, {})

        names = ", ".join(repr(provider) for provider in providers)
        registration.effect = self.caller.effect(setup, f"llm.register_adapter({names})")
        return registration

    def providers(self) -> list[LlmProviderInfo]:
        """See `LlmRuntime.providers`."""
        return [route.info for route in self._routes.values()]

    def provider_retry_policy(self, provider: str) -> RetryPolicy | None:
        """See `LlmRuntime.provider_retry_policy`."""
        return self._route(provider).retry_policy

    async def list_models(self, provider: str) -> list[LlmModelInfo]:
        """See `LlmRuntime.list_models`."""
        return validate_catalog(provider, await self._route(provider).adapter.list_models(provider))

    async def resolve_model_info(
        self, provider: str, model: str, signal: AbortSignal | None = None
    ) -> ResolvedModelInfo:
        """See `LlmRuntime.resolve_model_info`."""
        adapter = self._route(provider).adapter
        return validate_model_info(
            provider, model, await adapter.resolve_model(provider, model, signal)
        )

    async def resolve_call_config(
        self, config: LlmCallConfig, signal: AbortSignal | None = None
    ) -> LlmCallConfig:
        """See `LlmRuntime.resolve_call_config`."""
        info = await self.resolve_model_info(config["provider"], config["model"], signal)
        return fill_defaults(config, info)[0]

    async def settle_route(self, provider: str, signal: AbortSignal | None = None) -> None:
        """See `LlmRuntime.settle_route`."""

        def takes_calls() -> bool | None:
            route = self._routes.get(provider)
            return None if route is None else route.owner.takes_calls

        await self._watch.settle(provider, takes_calls, signal)

    async def prepare_call(
        self, config: LlmCallConfig, signal: AbortSignal | None = None
    ) -> PreparedLlmCall:
        """See `LlmRuntime.prepare_call`."""
        provider, model = config["provider"], config["model"]
        route = self._route(provider)
        call = await route.adapter.prepare_call(provider, model, signal)
        info = validate_model_info(provider, model, call.model)
        filled, defaults = fill_defaults(config, info)

        async def start(options: GenerateOptions, _: ExitStack) -> Started:
            chunks = call.stream(self._project(options, route.adapter, info))
            return Started(chunks, route.owner.is_live)

        return PreparedLlmCall(
            filled,
            retry_policy=route.retry_policy,
            context_window=info.context_window,
            input_modalities=info.input_modalities,
            adapter_defaults=defaults,
            dispatch=lambda options: self._run(options, start, prepared=True),
            fiber=route.owner.owner.fiber,
        )

    def stream(self, options: GenerateOptions) -> ChunkStream:
        """See `LlmRuntime.stream`."""
        return self._run(options, self._start, prepared=False)

    async def _start(self, options: GenerateOptions, held: ExitStack) -> Started:
        """Pick the adapter of a call that nobody prepared, and start it."""
        await self.settle_route(options.provider, options.signal)
        route = self._route(options.provider)
        adapter = route.adapter
        with suppress(InactiveEffect):  # it is going; the call may still be over before it is gone
            label = f"a call of the model {options.provider}/{options.model}"
            held.enter_context(route.owner.owner.fiber.lease(label))
        info = None
        if has_images(options.messages, ("text",)):
            info = await self.resolve_model_info(options.provider, options.model, options.signal)
        return Started(adapter.stream(self._project(options, adapter, info)), route.owner.is_live)

    def _run(
        self,
        options: GenerateOptions,
        start: Start,
        *,
        prepared: bool,
    ) -> ChunkStream:
        payload = LlmStream(options)

        def innermost() -> ChunkStream:
            _refuse_rewrite(options, payload.options, prepared=prepared)
            return attempt(payload.options, start)

        async def begin() -> AsyncIterator[StreamChunk]:
            source = await self.ctx.waterfall(LLM_STREAM, payload, innermost)
            return checked(source) if self._check_grammar else source

        return LazyStream(begin)

    def _project(
        self, options: GenerateOptions, adapter: LlmAdapter, info: ResolvedModelInfo | None
    ) -> GenerateOptions:
        """Take out of the conversation what ``adapter`` must not or cannot get."""

        def is_own(provider: str) -> bool:
            route = self._routes.get(provider)
            return route is not None and route.adapter is adapter

        messages = without_foreign_replay_state(options.messages, is_own)
        if info is not None and has_images(messages, info.input_modalities):
            messages = without_images(messages)
        return options if messages is options.messages else replace(options, messages=messages)

    def _route(self, provider: str) -> _Route:
        route = self._routes.get(provider)
        if route is None:
            known = list(self._routes)
            there = f"registered are: {', '.join(known)}" if known else "none is registered"
            raise LlmError(
                f"no adapter serves the provider {provider!r}"
                f"{did_you_mean(provider, known)}; {there}",
                code="NO_ADAPTER",
            )
        return route

    def examine(self, registration: _Registration, providers: Sequence[str]) -> dict[str, _Route]:
        """Return the routes that ``registration`` wants, when all of them are acceptable."""
        routes: dict[str, _Route] = {}
        adapter = registration.adapter
        for provider in providers:
            if not provider or not isinstance(provider, str):
                raise LlmError(f"{provider!r} is no provider name", code="INVALID_ADAPTER")
            taken = self._routes.get(provider)
            if provider in routes or (taken is not None and taken.owner is not registration):
                raise LlmError(
                    f"the provider {provider!r} is served by another adapter already"
                    if provider not in routes
                    else f"the provider {provider!r} is named twice",
                    code="DUPLICATE_ADAPTER",
                )
            info = adapter.provider_info(provider)
            if info.id != provider or not info.name:
                raise LlmError(
                    f"the adapter for {provider!r} describes itself as {info!r}",
                    code="INVALID_ADAPTER",
                )
            routes[provider] = _Route(info, adapter, adapter.retry_policy(provider), registration)
        return routes

    def swap(self, registration: _Registration, routes: dict[str, _Route]) -> None:
        """Put ``routes`` in the place of those that ``registration`` had, and tell of it once."""
        kept = {
            provider: routes.get(provider, route)
            for provider, route in self._routes.items()
            if route.owner is not registration or provider in routes
        }
        before, self._routes = self._routes, kept | routes
        self._watch.changed(before.keys() - self._routes.keys(), self._routes)
        self.ctx.emit(LLM_ADAPTERS_UPDATED, LlmAdaptersUpdated())


def _refuse_rewrite(asked: GenerateOptions, got: GenerateOptions, *, prepared: bool) -> None:
    """Refuse a listener's change of a request that is final."""
    if got is asked:
        return
    if is_loop_built(asked) or (prepared and not equal(call_config_of(asked), call_config_of(got))):
        raise LlmError(
            "a listener of llm/stream changed a request that is logged already; it may only "
            "read such a request, or answer it itself",
            code="INVALID_PREPARED_CALL",
        )


plugin = AdapterRuntime
