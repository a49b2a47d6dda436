"""The ``grep`` tool: lines by content."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from dsh.base.values import value
from dsh.capability.search.ground import Ground
from dsh.capability.search.listing import (
    NOT_TEXT,
    GrepValue,
    matches_meta,
    present_search,
    render_matches,
)
from dsh.capability.search.query import globs_for, path_problem, shown_path
from dsh.capability.search.service import LineMatch, LineQuery, Scope, SearchEngine
from dsh.execution.tools.author import define_tool
from dsh.execution.tools.resources import file_resource
from dsh.execution.tools.service import ToolDefinition, ToolRunContext

if TYPE_CHECKING:
    from dsh.base.json import JsonObject
    from dsh.capability.search.ground import Ground
    from dsh.capability.search.listing import MatchValue

PROMPT = (
    "Search file contents with the grep tool rather than with grep or rg in the shell. Patterns "
    "are regular expressions of ripgrep: escape braces and parentheses that you mean literally. "
    "Hidden, ignored and binary files are left out; name one as path to search it all the same."
)
"""What the system prompt says of the tool."""


@value
class GrepBounds:
    """The bounds of one result."""

    matches: int
    line_bytes: int
    meta_bytes: int
    timeout_s: float


class GrepArgs(BaseModel):
    """Which lines."""

    model_config = ConfigDict(extra="forbid")

    pattern: str = Field(
        description="Regular expression in ripgrep's syntax, matched against each line."
    )
    path: str | None = Field(
        default=None, description="Folder or file to search; the workspace when left out."
    )
    include: str | None = Field(
        default=None,
        description="Glob of the files to search, such as '*.py' or '*.{ts,tsx}'; only one.",
    )

    @field_validator("pattern")
    @classmethod
    def _something(cls, value: str) -> str:
        if not value:
            raise ValueError("must not be empty")
        return value

    @field_validator("path")
    @classmethod
    def _named(cls, value: str | None) -> str | None:
        if value is not None and not value.strip():
            raise ValueError("must not be blank")
        return value

    @field_validator("include")
    @classmethod
    def _one_positive_glob(cls, value: str | None) -> str | None:
        if value is not None and (problem := path_problem(value)):
            raise ValueError(problem)
        return value


def grep_tool(engine: SearchEngine, ground: Ground, bounds: GrepBounds) -> ToolDefinition:
    """Return the tool, bound to an engine."""

    async def grep(args: GrepArgs, run: ToolRunContext) -> GrepValue:
        base = ground.base_for(run)
        scope = await ground.scope(run, base, args.path)
        globs = globs_for(args.include, scope) if args.include else ()
        found = await engine.lines(LineQuery(scope, args.pattern, globs), run.signal)
        value: GrepValue = {"matches": [_match(base, scope, match) for match in found.matches]}
        if found.unreadable:
            value["unreadable"] = found.unreadable
        return value

    return define_tool(
        grep,
        description=(
            "Find the lines of files that match a regular expression, grouped by file. Lines are "
            "cut when they are long, and only the first matches are shown when there are many."
        ),
        render=lambda _, value: render_matches(value, bounds.matches, bounds.line_bytes),
        presentation_meta=lambda _, value: matches_meta(
            value, bounds.matches, bounds.line_bytes, bounds.meta_bytes
        ),
        timeout_s=bounds.timeout_s,
        parallel=True,
        # It sees what earlier calls of the step have changed below, and later ones wait for it.
        resources=lambda args: [file_resource(args.path or ".", shared=True)],
        present_call=_present_call,
        present_result=present_search,
    )


def _match(base: str, scope: Scope, match: LineMatch) -> MatchValue:
    line = NOT_TEXT if match.line is None else match.line
    return {
        "path": shown_path(base, scope, match.path),
        "lineNumber": match.number,
        "line": line,
    }


def _present_call(args: Any) -> JsonObject:
    where = f" in {args.path}" if args.path else ""
    what = f" ({args.include})" if args.include else ""
    return {"card": "generic", "title": f"Grep {args.pattern}{where}{what}", "kind": "search"}
