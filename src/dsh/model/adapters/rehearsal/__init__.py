"""Plugin ``llm-rehearsal``: a provider whose words come from a script (route ``rehearsal``)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dsh.kernel import Context
    from dsh.loader.environment import LaunchEnvironment
    from dsh.model.adapters.rehearsal.config import Config

__all__ = ["Config", "apply", "inject", "name", "preflight", "routes"]

name = "llm-rehearsal"
inject = ("llm",)
routes = ("rehearsal",)
"""The providers that callers name to get here."""


async def apply(ctx: Context, config: Config) -> None:
    """Load the script and serve the route until the plugin unloads."""
    import asyncio

    from dsh.model.adapters.rehearsal.adapter import RehearsalAdapter
    from dsh.model.rehearsal import Play, load_script

    script = await asyncio.to_thread(load_script, config.script)
    ctx.llm.register_adapter(routes, RehearsalAdapter(config, Play(script, config.variables)))


def preflight(config: Mapping[str, Any], environment: LaunchEnvironment) -> str | None:
    """Say so when the script is not there."""
    script = config.get("script")
    if not script:
        return "the provider 'rehearsal' plays a script: set 'script' in the row llm-rehearsal"
    if not Path(str(script)).is_file():
        return f"the rehearsal script {str(script)!r} is not a file"
    return None


def __getattr__(attribute: str) -> Any:
    # The configuration model is pydantic's; `preflight` runs before anything may import that.
    if attribute == "Config":
        from dsh.model.adapters.rehearsal.config import Config

        return Config
    message = f"module {__name__!r} has no attribute {attribute!r}"
    raise AttributeError(message)
