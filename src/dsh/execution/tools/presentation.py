"""How the tools of one scope reach the model: row ``tool-presentation``, for agent presets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

from dsh.capability.code_runtime.service import CodeRuntime
from dsh.execution.tools.service import PresentationMode, ToolRuntime
from dsh.kernel import Context, InjectLike


class PresentationConfig(BaseModel):
    """The mode of the scope in which the row is mounted."""

    model_config = ConfigDict(extra="forbid")

    mode: PresentationMode


class ToolPresentation:
    """Presents the tools of a scope; a mode with programs waits for what can run them."""

    name = "tool-presentation"
    inject = (ToolRuntime,)
    Config = PresentationConfig

    @staticmethod
    def inject_for(config: Any) -> InjectLike:
        """Return what a row with this config needs besides."""
        mode = config.get("mode") if isinstance(config, Mapping) else None
        return () if mode == "native" else (CodeRuntime,)

    def __init__(self, ctx: Context, config: PresentationConfig) -> None:
        ctx.require(ToolRuntime).present_as(config.mode)


plugin = ToolPresentation
