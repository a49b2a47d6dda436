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
    """Serve the route until the plugin unloads; then close the connections.

    What the settings say goes over ``config``, from the next request on. The key is looked up
    by the credentials for each request, and in the environment without them.
    """
    from dsh.model.adapters.deepseek.adapter import DeepSeekAdapter
    from dsh.model.adapters.deepseek.client import HttpPool
    from dsh.model.adapters.deepseek.endpoint import resolve_endpoint
    from dsh.state.credentials.service import CredentialProvider
    from dsh.state.settings.service import LiveSection

    def lookup(variable: str) -> str | None:
        environment: LaunchEnvironment | None = ctx.get("launch_environment")
        return os.environ.get(variable) if environment is None else environment.value(variable)

    async def find_key(reference: str) -> str | None:
        credentials = ctx.get(CredentialProvider)
        if credentials is None:
            return lookup(reference)
        found = await credentials.resolve(reference)
        return None if found is None else found.value

    def check(settings: Config) -> None:
        if settings.base_url is not None:
            resolve_endpoint(settings.base_url, "baseURL")

    def renew(settings: Config, former: Config) -> None:
        adapter.config = settings
        if settings.retry_policy != former.retry_policy:
            registration.replace(routes)

    async def warm() -> None:
        if await adapter.will_need_tls():
            # Loading certificates takes long, and a thread does it beside the rest of the start.
            await pool.warm(secure=True)

    row = config.model_dump(mode="json", by_alias=True, exclude_unset=True)
    settings = LiveSection(ctx, name, type(config), row=row, validate=check, on_change=renew)
    pool = HttpPool()
    ctx.defer(pool.aclose, "llm-deepseek.connections")
    adapter = DeepSeekAdapter(settings.get(), lookup, pool, find_key=find_key)
    registration = ctx.llm.register_adapter(routes, adapter)
    ctx.spawn(warm(), "llm-deepseek.certificates")


def preflight(config: Mapping[str, Any], environment: LaunchEnvironment) -> str | None:
    """Say why no request can work: the key is missing, or an address or a key is unusable.

    Args:
        config: The row's.
        environment: Where variables come from. Where it has ``credential(name)`` and
            ``section(ns)``, as the launcher's has, stored keys and settings count, too.
    """
    from dsh.base.errors import DshError
    from dsh.model.adapters.deepseek.endpoint import (
        DEFAULT_KEY_VARIABLE,
        resolve_base_url,
        resolve_endpoint,
        usable_key,
    )

    find = getattr(environment, "credential", environment.value)
    section = getattr(environment, "section", None)
    config = {**config, **(section(name) if section is not None else {})}
    variable = _text(config, "apiKeyEnv", "api_key_env") or DEFAULT_KEY_VARIABLE
    configured = _text(config, "baseURL", "base_url")
    try:
        usable_key(find(variable), variable)
        resolve_endpoint(*resolve_base_url(configured, environment.value))
    except DshError as error:
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
