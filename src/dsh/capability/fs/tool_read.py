"""The ``read`` tool: numbered lines of a text file, a window at a time."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from pydantic import Field

from dsh.base.values import value
from dsh.capability.fs.desk import Desk, envelope
from dsh.capability.fs.events import Absent, Present
from dsh.capability.fs.languages import LANGUAGES
from dsh.capability.fs.paths import no_such_file
from dsh.capability.fs.service import FsError, FsTarget
from dsh.capability.fs.window import LineWindow, NumberedLine, WindowLimits, window_of
from dsh.execution.tools.author import define_tool
from dsh.execution.tools.resources import file_resource
from dsh.execution.tools.service import ToolDefinition, ToolResultFacts, ToolRunContext

if TYPE_CHECKING:
    from dsh.base.json import JsonObject, JsonValue

PROMPT = (
    "Look at files with the read tool rather than with cat, head or tail in the shell. Its lines "
    "are numbered; the numbers are not part of the file. A long file comes in windows: go on with "
    "the offset that the footer names, or aim at a region with offset and limit."
)
"""What the system prompt says of the tool."""

_NUMBERED = re.compile(r"(\d+): ?(.*)")


class ReadValue(TypedDict):
    """A window on a file."""

    path: str
    offset: int
    lines: list[NumberedLine]
    totalLines: int


@value
class ReadLimits:
    """The bounds of one result."""

    lines: int
    line_chars: int
    bytes: int
    stream_from: int
    """Files of this many bytes are read in pieces."""


def read_tool(desk: Desk, limits: ReadLimits) -> ToolDefinition:
    """Return the tool, bound to a filesystem."""
    limit_hint = f"How many lines at most; up to {limits.lines}, which is the default."

    async def read(
        file_path: Annotated[
            str, Field(description="The file; relative paths start at the workspace.")
        ],
        run: ToolRunContext,
        offset: Annotated[int, Field(ge=1, description="Number of the first line, from 1.")] = 1,
        limit: Annotated[int, Field(ge=1, le=limits.lines, description=limit_hint)] = limits.lines,
    ) -> ReadValue:
        wanted = WindowLimits(offset, limit, limits.line_chars, limits.bytes)
        base = desk.base_for(run, desk.policy_for(run))
        opened = await desk.fs.open_text(
            file_path, cwd=base, stream_from=limits.stream_from, signal=run.signal
        )
        path = opened.target.display_path
        if opened.info is None:
            desk.observed(opened.target, Absent(), run)
            raise no_such_file(path)
        if opened.text is None:
            window = await _streamed(desk, opened.target, wanted, run)
        else:
            window = window_of(opened.text, wanted)
        desk.observed(opened.target, Present(opened.info.version), run)
        if offset > max(window.total, 1):
            raise _past_end(path, offset, window.total)
        return {
            "path": path,
            "offset": offset,
            "lines": window.lines,
            "totalLines": window.total,
        }

    return define_tool(
        read,
        description=(
            "Read a text file as numbered lines. Returns a window of the file and says how many "
            "lines there are, or where to go on. Folders and binary files are refused."
        ),
        render=_render,
        presentation_meta=_meta,
        parallel=True,
        resources=lambda args: [file_resource(args.file_path, shared=True)],
        present_call=_present_call,
        present_result=_present_result,
    )


async def _streamed(
    desk: Desk, target: FsTarget, limits: WindowLimits, run: ToolRunContext
) -> LineWindow:
    window = LineWindow(limits)
    async for piece in desk.fs.stream_text(target, signal=run.signal):
        window.feed(piece)
    window.close()
    return window


def _past_end(path: str, offset: int, total: int) -> FsError:
    return FsError(f"{path!r} has {total} lines, so there is no line {offset}", code="FS_NOT_FOUND")


def _render(args: Any, value: ReadValue) -> str:
    lines = [f"{line['number']}: {line['text']}" for line in value["lines"]]
    footer = _footer(value, args.limit)
    body = "\n".join([*lines, "", footer]) if lines else footer
    return envelope(value["path"], body)


def _footer(value: ReadValue, limit: int) -> str:
    total = value["totalLines"]
    first = value["offset"]
    last = first + len(value["lines"]) - 1
    if last >= total:
        return f"(end of file; {total} line{'' if total == 1 else 's'} in all)"
    if len(value["lines"]) >= limit:
        return f"(lines {first}-{last} of {total}; continue with offset {last + 1})"
    return f"(lines {first}-{last}, cut at the size limit; continue with offset {last + 1})"


def _meta(_: object, value: ReadValue) -> JsonValue:
    suffix = os.path.splitext(value["path"])[1].lower()
    language = LANGUAGES.get(suffix)
    return {**value, **({"lang": language} if language else {})}  # type: ignore[dict-item] # a TypedDict is a JSON object


def _present_call(args: Any) -> JsonObject:
    shown = ""
    if "limit" in args.model_fields_set:
        shown = f" ({args.offset} - {args.offset + args.limit - 1})"
    elif args.offset > 1:
        shown = f" (from line {args.offset})"
    return {
        "card": "generic",
        "title": f"Read {args.file_path}{shown}",
        "kind": "read",
        "locations": [{"path": args.file_path, "line": args.offset}],
    }


def _present_result(_: object, facts: ToolResultFacts) -> JsonObject | None:
    meta = facts.meta
    if facts.is_error or not isinstance(meta, dict):
        return None
    if not {"path", "offset", "totalLines"} <= meta.keys():
        return None
    content = _between_tags(facts)
    lines = meta.get("lines")
    if not isinstance(lines, list):
        lines = _numbered(content or "")
    view = {
        "card": "read",
        "path": meta["path"],
        "offset": meta["offset"],
        "lines": lines,
        "totalLines": meta["totalLines"],
    }
    if "lang" in meta:
        view["lang"] = meta["lang"]
    if content is not None:
        view["content"] = content
    return view


def _between_tags(facts: ToolResultFacts) -> str | None:
    for block in facts.content:
        if block["type"] == "text":
            _, opened, rest = block["text"].partition("<content>\n")
            content, closed, _ = rest.rpartition("\n</content>")
            return content if opened and closed else None
    return None


def _numbered(content: str) -> list[JsonValue]:
    found = map(_NUMBERED.fullmatch, content.split("\n"))
    return [{"number": int(line[1]), "text": line[2]} for line in found if line]
