"""Plugin ``llm-deepseek``: DeepSeek, and gateways that speak its chat-completions dialect."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsh.kernel import Context
    from dsh.loader.environment import LaunchEnvironment
    from dsh.model.adapters.deepseek.config import Config

__all__ = ["Config", "apply", "inject", "name", "preflight", "routes"]

name = "llm-deepseek"
inject = ("llm",)
routes = ("deepseek-official",)
"""The providers that callers name to get here."""


def apply(ctx: Context, config: Config) -> None:
    """Serve the route until the plugin unloads; then close the connections."""
    from dsh.model.adapters.deepseek.adapter import DeepSeekAdapter
    from dsh.model.adapters.deepseek.client import HttpPool

    def lookup(variable: str) -> str | None:
        environment: LaunchEnvironment | None = ctx.get("launch_environment")
        return os.environ.get(variable) if environment is None else environment.value(variable)

    pool = HttpPool()
    ctx.defer(pool.aclose, "llm-deepseek.connections")
    adapter = DeepSeekAdapter(config, lookup, pool)
    ctx.llm.register_adapter(routes, adapter)
    if adapter.will_need_tls():
        # Loading certificates takes long, and a thread does it beside the rest of the start.
        ctx.spawn(pool.warm(secure=True), "llm-deepseek.certificates")


def preflight(config: Mapping[str, Any], environment: LaunchEnvironment) -> str | None:
    """Say why no request can work: the key is missing, or an address or a key is unusable."""
    from dsh.model.adapters.deepseek.endpoint import (
        DEFAULT_KEY_VARIABLE,
        resolve_base_url,
        resolve_endpoint,
        usable_key,
    )
    from dsh.model.failures import LlmError

    variable = _text(config, "apiKeyEnv", "api_key_env") or DEFAULT_KEY_VARIABLE
    configured = _text(config, "baseURL", "base_url")
    try:
        usable_key(environment.value(variable), variable)
        resolve_endpoint(*resolve_base_url(configured, environment.value))
    except LlmError as error:
        return error.message
    return None


def _text(config: Mapping[str, Any], *keys: str) -> str | None:
    values = (config.get(key) for key in keys)
    return next((value for value in values if isinstance(value, str) and value), None)


def __getattr__(attribute: str) -> Any:
    # The configuration model is pydantic's; `preflight` runs before anything may import that.
    if attribute == "Config":
        from dsh.model.adapters.deepseek.config import Config

        return Config
    message = f"module {__name__!r} has no attribute {attribute!r}"
    raise AttributeError(message)
