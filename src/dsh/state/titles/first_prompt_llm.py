"""The row ``session-title-llm``: asks a model to name a session once, from its first message."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsh.state.titles.llm import Config, inject, offer

if TYPE_CHECKING:
    from dsh.kernel import Context

__all__ = ["Config", "apply", "inject", "name"]

name = "session-title-first-prompt-llm"


def apply(ctx: Context, config: Config) -> None:
    """Register the provider until the plugin unloads."""
    offer(ctx, config, name, "first-prompt")
