"""The row ``session-title-all-prompts-llm``: asks a model for a new name after each message."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsh.state.titles.llm import Config, inject, offer

if TYPE_CHECKING:
    from dsh.kernel import Context

__all__ = ["Config", "apply", "inject", "name"]

name = "session-title-all-prompts-llm"


def apply(ctx: Context, config: Config) -> None:
    """Register the provider until the plugin unloads."""
    offer(ctx, config, name, "all-prompts")
