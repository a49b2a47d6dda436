"""One line for a tool call and one for its result, made from the tool's own views."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from dsh.execution.tools.service import ToolResultFacts, parse_call
from dsh.execution.tools.views import call_view, result_view

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from dsh.execution.tools.service import ToolDefinition

_MAX_CHARS = 72
_MAX_FAILURE_CHARS = 160
_TRACEBACK = "Traceback (most recent call last):"
_FIRST_ARGUMENTS = ("command", "file_path", "pattern", "path", "url", "query")


def brief_call(tool: ToolDefinition | None, arguments: str) -> str:
    """Return what a call is about: its main argument, or the title its tool gives it."""
    parsed = parse_call(arguments)
    if isinstance(parsed, dict):
        for key in _FIRST_ARGUMENTS:
            if isinstance(value := parsed.get(key), str):
                return _one_line(value)
        if tool is not None and tool.present_call is not None:
            return _one_line(call_view(tool, parsed)["title"])
    return _one_line(parsed if isinstance(parsed, str) else json.dumps(parsed))


def brief_result(tool: ToolDefinition | None, arguments: str, data: Mapping[str, Any]) -> str:
    """Return what came of a call: counts where the tool's view has them, else its first line.

    Of a failure it is what went wrong: the error of a traceback, the first complaint of a list.
    """
    block = data["message"]["content"][0]
    text = "\n".join(part["text"] for part in block["content"] if part["type"] == "text")
    if block.get("isError"):
        return _one_line(_failure(text), _MAX_FAILURE_CHARS)
    facts = ToolResultFacts(content=block["content"], is_error=False, meta=data.get("meta"))
    view = result_view(tool, parse_call(arguments), facts)
    if (describe := _VIEWS.get(view["card"])) is not None:
        return _one_line(describe(view, text))
    return _one_line(_first_line(text))


def _terminal(view: Mapping[str, Any], text: str) -> str:
    if view.get("signal"):
        return f"killed by {view['signal']}"
    lines = [line for line in str(view.get("output") or text).splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith("[exit code:")]
    return f"exit {view.get('exitCode') or 0}" + (f" · {lines[-1].strip()}" if lines else "")


def _diff(view: Mapping[str, Any], text: str) -> str:
    added = removed = 0
    for part in view["diffs"]:
        old = (part.get("oldText") or "").splitlines()
        new = (part.get("newText") or "").splitlines()
        kept = _common(old, new)
        added += len(new) - kept
        removed += len(old) - kept
    return f"+{added} -{removed} lines"


def _common(old: list[str], new: list[str]) -> int:
    from difflib import SequenceMatcher

    return sum(block.size for block in SequenceMatcher(None, old, new).get_matching_blocks())


def _read(view: Mapping[str, Any], text: str) -> str:
    total, shown = view["totalLines"], len(view["lines"])
    return f"{total} lines" if shown == total else f"{shown} of {total} lines"


def _search(view: Mapping[str, Any], text: str) -> str:
    noun = "files" if view["shape"] == "paths" else "matches"
    return f"{view['total']} {noun}"


_VIEWS: dict[str, Callable[[Mapping[str, Any], str], str]] = {
    "terminal": _terminal,
    "diff": _diff,
    "read": _read,
    "search": _search,
}


def _first_line(text: str) -> str:
    return next((line for line in text.splitlines() if line.strip()), "")


def _failure(text: str) -> str:
    lines = [line for line in text.removeprefix("Error: ").splitlines() if line.strip()]
    if not lines:
        return ""
    first, *rest = lines
    if first.endswith(_TRACEBACK):
        raised = next((line for line in rest if not line.startswith(" ")), "")
        return first.removesuffix(_TRACEBACK) + raised
    if rest and rest[0].startswith("- "):
        return f"{first}: {rest[0][2:]}"
    return first


def _one_line(text: str, most_chars: int = _MAX_CHARS) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most_chars else line[: most_chars - 1] + "…"
