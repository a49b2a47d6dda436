"""The DeepSeek adapter: one streaming chat-completions call an attempt."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import TypeAlias
from urllib.parse import quote

from dsh import __version__
from dsh.base.clock import SYSTEM_CLOCK, Clock
from dsh.base.errors import DshError
from dsh.base.signal import AbortedError, AbortSignal
from dsh.model.adapters.deepseek.client import HttpPool
from dsh.model.adapters.deepseek.config import Config, ModelEntry
from dsh.model.adapters.deepseek.endpoint import (
    Endpoint,
    Lookup,
    resolve_base_url,
    resolve_endpoint,
    usable_key,
)
from dsh.model.adapters.deepseek.errors import final_error, idle_error
from dsh.model.adapters.deepseek.exchange import Call, Exchange
from dsh.model.adapters.deepseek.guard import ReadGuard
from dsh.model.adapters.deepseek.sse import DONE
from dsh.model.adapters.deepseek.stream import StreamDecoder
from dsh.model.adapters.deepseek.wire import EFFORTS, WireHistory, encode_request
from dsh.model.chunks import StreamChunk, usage_report
from dsh.model.llm.service import (
    AdapterCall,
    GenerateOptions,
    LlmAdapter,
    LlmModelInfo,
    LlmProviderInfo,
    ReasoningEffort,
    ReasoningInfo,
    ResolvedModelInfo,
    RetryPolicy,
)

__all__ = ["DeepSeekAdapter", "FindKey"]

FindKey: TypeAlias = Callable[[str], Awaitable[str | None]]
"""Returns the key of a name, asked anew for each request, or ``None``."""

_USER_AGENT = f"dsh/{__version__}"


class DeepSeekAdapter(LlmAdapter):
    """Speaks the chat-completions dialect of DeepSeek and of the gateways that copy it.

    Address and key are read anew for each request. On an address that is not the vendor's, no
    header tells who or which session asks, and no field is sent that nobody set.

    Args:
        config: What is in force, until ``config`` is set to another. An operation takes it once,
            so that one under way keeps its facts.
        lookup: Reads environment variables in their layers.
        pool: Makes the HTTP client; whoever made the pool closes it.
        clock: Dates the delays that the provider asks for.
        find_key: Finds the key; ``lookup`` does when None.
    """

    def __init__(
        self,
        config: Config,
        lookup: Lookup,
        pool: HttpPool,
        clock: Clock = SYSTEM_CLOCK,
        *,
        find_key: FindKey | None = None,
    ) -> None:
        self.config = config
        self._lookup = lookup
        self._find_key = find_key
        self._pool = pool
        self._history = WireHistory()
        self._clock = clock

    def provider_info(self, provider: str) -> LlmProviderInfo:
        """See `LlmAdapter.provider_info`."""
        return LlmProviderInfo(provider, "DeepSeek")

    def retry_policy(self, provider: str) -> RetryPolicy | None:
        """See `LlmAdapter.retry_policy`."""
        return self.config.retry_policy.resolve()

    async def list_models(self, provider: str) -> Sequence[LlmModelInfo]:
        """See `LlmAdapter.list_models`."""
        return [
            LlmModelInfo(
                provider,
                entry.id,
                entry.name or entry.id,
                entry.description,
                entry.input_modalities,
            )
            for entry in self.config.models
        ]

    async def resolve_model(
        self, provider: str, model: str, signal: AbortSignal | None = None
    ) -> ResolvedModelInfo:
        """See `LlmAdapter.resolve_model`."""
        return self._resolve_model(self.config, provider, model)

    async def prepare_call(
        self, provider: str, model: str, signal: AbortSignal | None = None
    ) -> AdapterCall:
        """See `LlmAdapter.prepare_call`."""
        config = self.config
        info = self._resolve_model(config, provider, model)
        return AdapterCall(info, partial(self._stream, config))

    def stream(self, options: GenerateOptions) -> AsyncIterator[StreamChunk]:
        """See `LlmAdapter.stream`."""
        return self._stream(self.config, options)

    def _resolve_model(self, config: Config, provider: str, model: str) -> ResolvedModelInfo:
        entry = config.entry(model) or ModelEntry(id=model)
        vendor = self._endpoint(config).vendor
        max_tokens = entry.max_tokens
        if max_tokens is None and (vendor or "max_tokens" in config.model_fields_set):
            max_tokens = config.max_tokens
        return ResolvedModelInfo(
            provider=provider,
            id=model,
            name=entry.name or model,
            description=entry.description,
            input_modalities=entry.input_modalities,
            context_window=entry.context_window or config.default_context_window,
            default_max_tokens=max_tokens,
            reasoning=_reasoning(config, vendor=vendor),
        )

    async def _stream(self, config: Config, options: GenerateOptions) -> AsyncIterator[StreamChunk]:
        call = await self._call(config, options)
        decoder = StreamDecoder(self._history.call_ids(options))
        idle_s = config.stream_idle_timeout_ms / 1000
        failure: Exception | None = None
        with ReadGuard(options.signal, idle_s) as guard:
            exchange = Exchange(self._pool, guard, call)
            complete = False
            try:
                await exchange.open()
                async with aclosing(exchange.events()) as events:
                    async for data in events:
                        if data == DONE:
                            complete = True
                            break
                        for chunk in decoder.push(data):
                            yield chunk
                        guard.throw_if_aborted()  # one read may bring the whole reply
                for chunk in decoder.finish():
                    yield chunk
            except AbortedError as error:
                failure = error
            except TimeoutError:
                failure = idle_error(call.endpoint, idle_s)
            except Exception as error:
                failure = error
            finally:
                await exchange.release(reuse=complete)
        if failure is None:
            return
        if decoder.usage is not None:  # a reply that failed was paid for as well
            yield usage_report(decoder.usage)
        if isinstance(failure, AbortedError):
            raise failure
        # Raised out here, it does not refer to the errors below it, which may quote the key.
        raise final_error(failure, call.endpoint, call.credential)

    async def will_need_tls(self) -> bool:
        """Whether a request made now would have a key and go over TLS."""
        config = self.config
        try:
            return self._endpoint(config).secure and bool(await self._key(config.api_key_env))
        except DshError:  # told when a request is made
            return False

    async def _call(self, config: Config, options: GenerateOptions) -> Call:
        endpoint = self._endpoint(config)
        body = encode_request(
            options,
            thinking=config.thinking,
            vendor=endpoint.vendor,
            history=self._history,
        )
        name = config.api_key_env
        credential = usable_key(await self._key(name), name)
        headers = {
            "authorization": f"Bearer {credential.key}",
            "content-type": "application/json",
            "accept": "text/event-stream",
            "accept-encoding": "identity",
            "user-agent": _USER_AGENT,
        }
        if endpoint.vendor:
            if options.session_id is not None:
                session = quote(options.session_id, errors="replace")
                headers["x-deepseek-harness-session-id"] = session
            if options.purpose == "compaction":
                headers["x-deepseek-harness-compact"] = "1"
        return Call(endpoint, credential, options.model, headers, body, self._clock.now_ms())

    async def _key(self, name: str) -> str | None:
        return self._lookup(name) if self._find_key is None else await self._find_key(name)

    def _endpoint(self, config: Config) -> Endpoint:
        return resolve_endpoint(*resolve_base_url(config.base_url, self._lookup))


def _reasoning(config: Config, *, vendor: bool) -> ReasoningInfo:
    offered = ("off",) if config.thinking == "disabled" else tuple(EFFORTS)
    default = config.reasoning_effort
    if default is None and vendor and "high" in offered:
        default = "high"
    return ReasoningInfo(
        tuple(ReasoningEffort(level, level.title(), EFFORTS[level]) for level in offered),
        default,
    )
