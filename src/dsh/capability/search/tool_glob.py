"""The ``glob`` tool: files by path, oldest change first."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from dsh.base.values import value
from dsh.capability.search.ground import Ground
from dsh.capability.search.listing import GlobValue, paths_meta, present_search, render_paths
from dsh.capability.search.query import absolute_path, globs_for, shown_path
from dsh.capability.search.service import FileQuery, Scope, SearchEngine
from dsh.execution.tools.author import define_tool
from dsh.execution.tools.resources import file_resource
from dsh.execution.tools.service import ToolDefinition, ToolRunContext

if TYPE_CHECKING:
    from dsh.base.json import JsonObject

PROMPT = (
    "Find files by name with the glob tool rather than with find or ls in the shell. It also lists "
    "hidden and ignored files, but nothing of version control, and puts recent changes last."
)
"""What the system prompt says of the tool."""


@value
class GlobBounds:
    """The bounds of one result."""

    results: int
    meta_bytes: int
    sample: bool
    timeout_s: float


class GlobArgs(BaseModel):
    """Which files."""

    model_config = ConfigDict(extra="forbid")

    pattern: str = Field(
        description=(
            "Glob of the paths, such as '**/*.py' or 'src/**/test_*.{ts,tsx}'. Without a slash it "
            "matches file names in any folder."
        )
    )
    path: str | None = Field(
        default=None, description="Folder to search; the workspace when left out."
    )

    @field_validator("pattern", "path")
    @classmethod
    def _something(cls, value: str | None) -> str | None:
        if value is not None and not value.strip():
            raise ValueError("must not be blank")
        return value


def glob_tool(engine: SearchEngine, ground: Ground, bounds: GlobBounds) -> ToolDefinition:
    """Return the tool, bound to an engine."""

    async def glob(args: GlobArgs, run: ToolRunContext) -> GlobValue:
        base = ground.base_for(run)
        scope = await ground.scope(run, base, args.path)
        query = FileQuery(scope, globs_for(args.pattern, scope))
        found = await engine.files(query, run.signal)
        paths = await asyncio.to_thread(_by_time, found.paths, scope)
        value: GlobValue = {
            "root": absolute_path(scope),
            "paths": [shown_path(base, scope, path) for path in paths],
        }
        if found.unreadable:
            value["unreadable"] = found.unreadable
        return value

    return define_tool(
        glob,
        description=(
            "Find files whose path matches a glob, ordered by modification time with the newest "
            "last. Hidden and ignored files are included, folders are not."
        ),
        render=lambda _, value: render_paths(value, bounds.results, sample=bounds.sample),
        presentation_meta=lambda _, value: paths_meta(
            value, bounds.results, bounds.meta_bytes, sample=bounds.sample
        ),
        timeout_s=bounds.timeout_s,
        parallel=True,
        # It sees what earlier calls of the step have changed below, and later ones wait for it.
        resources=lambda args: [file_resource(args.path or ".", shared=True)],
        present_call=_present_call,
        present_result=present_search,
    )


def _by_time(paths: list[str], scope: Scope) -> list[str]:
    """Order by modification time, then by path; files that are gone by now come first."""
    return sorted(paths, key=lambda path: (_modified(os.path.join(scope.cwd, path)), path))


def _modified(path: str) -> int:
    try:
        return os.lstat(path).st_mtime_ns
    except OSError:
        return 0


def _present_call(args: Any) -> JsonObject:
    where = f" in {args.path}" if args.path else ""
    return {"card": "generic", "title": f"Glob {args.pattern}{where}", "kind": "search"}
