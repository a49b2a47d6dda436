"""The tools ``read``, ``write`` and ``edit`` on whatever filesystem is mounted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from dsh.capability.fs import tool_edit, tool_read, tool_write
from dsh.capability.fs.desk import Desk
from dsh.capability.fs.service import FileSystem
from dsh.capability.sandbox.service import SandboxPolicy
from dsh.execution.prompt.service import PromptSection, SystemPrompt
from dsh.execution.tools.service import ToolRuntime
from dsh.kernel import Inject

if TYPE_CHECKING:
    from dsh.kernel import Context

name = "tool-fs"
inject = (FileSystem, ToolRuntime, SystemPrompt, Inject.optional(SandboxPolicy))


class Config(BaseModel):
    """Bounds of one ``read`` result."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    read_limit: PositiveInt = Field(default=2000, alias="readLimit")
    """Lines."""
    read_max_line_length: PositiveInt = Field(default=2000, alias="readMaxLineLength")
    """Characters of one line."""
    read_max_bytes: PositiveInt = Field(default=50 * 1024, alias="readMaxBytes")
    """UTF-8 bytes of all lines."""
    read_stream_min_size: PositiveInt = Field(default=10 << 20, alias="readStreamMinSize")
    """Files of this many bytes are read in pieces instead of whole."""


def apply(ctx: Context, config: Config) -> None:
    """Offer the tools and say in the prompt how to use them."""
    desk = Desk(ctx, ctx.require(FileSystem), ctx.get(SandboxPolicy))
    limits = tool_read.ReadLimits(
        lines=config.read_limit,
        line_chars=config.read_max_line_length,
        bytes=config.read_max_bytes,
        stream_from=config.read_stream_min_size,
    )
    tools, prompt = ctx.require(ToolRuntime), ctx.require(SystemPrompt)
    tools.register(tool_read.read_tool(desk, limits))
    tools.register(tool_write.write_tool(desk))
    tools.register(tool_edit.edit_tool(desk))
    prompt.section(PromptSection("tool:read", 100, tool_read.PROMPT))
    prompt.section(PromptSection("tool:write", 101, tool_write.PROMPT))
    prompt.section(PromptSection("tool:edit", 102, tool_edit.PROMPT))
