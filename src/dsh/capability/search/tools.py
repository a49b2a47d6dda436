"""The tools ``glob`` and ``grep``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from dsh.capability.fs.service import FileSystem
from dsh.capability.sandbox.service import SandboxPolicy
from dsh.capability.search import tool_glob, tool_grep
from dsh.capability.search.engine import Bounds, EngineName, engine_for
from dsh.capability.search.ground import Ground
from dsh.capability.subprocess.service import SubprocessRuntime
from dsh.execution.prompt.service import PromptSection, SystemPrompt
from dsh.execution.tools.service import ToolRuntime
from dsh.kernel import Inject

if TYPE_CHECKING:
    from dsh.kernel import Context

name = "tool-fs-search"
inject = (
    FileSystem,
    SubprocessRuntime,
    ToolRuntime,
    SystemPrompt,
    Inject.optional(SandboxPolicy),
)

_MAX_TIMER_MS = 2_147_483_647


class Config(BaseModel):
    """Bounds of a search and of its result."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    sample_over_cap_glob_results: bool = Field(alias="sampleOverCapGlobResults")
    """Show files of every top-level entry when there are too many, instead of the first ones."""
    engine: EngineName = "auto"
    """``ripgrep``, ``python``, or ``auto``: ripgrep where it is installed."""
    glob_max_results: PositiveInt = Field(default=100, alias="globMaxResults")
    """Paths shown."""
    grep_max_matches: PositiveInt = Field(default=250, alias="grepMaxMatches")
    """Lines shown."""
    grep_max_line_bytes: PositiveInt = Field(default=2000, alias="grepMaxLineBytes")
    """UTF-8 bytes shown of one line."""
    search_meta_max_bytes: PositiveInt = Field(default=64 * 1024, alias="searchMetaMaxBytes")
    """JSON bytes of what user interfaces get of one result."""
    raw_output_max_bytes: PositiveInt = Field(default=20_000_000, alias="rawOutputMaxBytes")
    """Bytes that a search process may write; more fails the call."""
    grace_ms: PositiveInt = Field(default=1000, le=_MAX_TIMER_MS, alias="graceMs")
    """From the request to end to the end by force; less than that of the row ``tools``."""
    stderr_max_bytes: PositiveInt = Field(default=64 * 1024, alias="stderrMaxBytes")
    """Bytes kept of its complaints."""
    timeout_ms: PositiveInt = Field(default=30_000, le=_MAX_TIMER_MS, alias="timeoutMs")
    """Deadline of one call."""


def apply(ctx: Context, config: Config) -> None:
    """Offer the tools and say in the prompt how to use them."""
    bounds = Bounds(config.raw_output_max_bytes, config.stderr_max_bytes, config.grace_ms / 1000)
    engine = engine_for(config.engine, ctx.require(SubprocessRuntime), bounds)
    ground = Ground(ctx.require(FileSystem), ctx.get(SandboxPolicy))
    glob_bounds = tool_glob.GlobBounds(
        results=config.glob_max_results,
        meta_bytes=config.search_meta_max_bytes,
        sample=config.sample_over_cap_glob_results,
        timeout_s=config.timeout_ms / 1000,
    )
    grep_bounds = tool_grep.GrepBounds(
        matches=config.grep_max_matches,
        line_bytes=config.grep_max_line_bytes,
        meta_bytes=config.search_meta_max_bytes,
        timeout_s=config.timeout_ms / 1000,
    )
    tools, prompt = ctx.require(ToolRuntime), ctx.require(SystemPrompt)
    tools.register(tool_glob.glob_tool(engine, ground, glob_bounds))
    tools.register(tool_grep.grep_tool(engine, ground, grep_bounds))
    prompt.section(PromptSection("tool:glob", 103, tool_glob.PROMPT))
    prompt.section(PromptSection("tool:grep", 104, tool_grep.PROMPT))
