"""What user interfaces show of a call and of its result, the same for every provider.

A view is JSON with a ``card`` that says which one it is. A presenter builds one of the typed dicts
below; `call_view` and `result_view` are what an interface asks. Both work on live calls and on
those of a replayed log, and always give a view: what a presenter refuses, or gets wrong, is shown
generically.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, NotRequired, TypeAlias, TypedDict, cast

from dsh.base.json import JsonObject, JsonValue, snapshot
from dsh.execution.tools.schema import validate_json_schema_value
from dsh.execution.tools.service import ToolDefinition, ToolResultFacts
from dsh.model.messages import ContentBlock

_log = logging.getLogger("dsh.tools")

ToolKind: TypeAlias = Literal[
    "read", "edit", "delete", "move", "search", "execute", "fetch", "other"
]
"""What sort of thing a generic call does."""


class Location(TypedDict):
    """A place in a file that a call is about."""

    path: str
    line: NotRequired[int]


class FileDiff(TypedDict):
    """One file before and after; ``oldText`` is ``None`` for a new file."""

    path: str
    oldText: str | None
    newText: str


class NumberedLine(TypedDict):
    """A line of a file that was read; numbers start at 1."""

    number: int
    text: str


class MatchedLine(TypedDict):
    """A line of a file that matched; numbers start at 1."""

    lineNumber: int
    line: str


class FileMatches(TypedDict):
    """The lines of one file that matched."""

    path: str
    matches: list[MatchedLine]


class WebSource(TypedDict):
    """One hit of a web search."""

    url: str
    title: NotRequired[str]
    snippet: NotRequired[str]
    publishedAt: NotRequired[str]


class GenericCall(TypedDict):
    """A call that no other card fits."""

    card: Literal["generic"]
    title: str
    kind: NotRequired[ToolKind]
    rawInput: NotRequired[JsonValue]
    content: NotRequired[Sequence[ContentBlock]]
    locations: NotRequired[list[Location]]


class TerminalCall(TypedDict):
    """A command line."""

    card: Literal["terminal"]
    title: str
    description: NotRequired[str]
    cwd: NotRequired[str]


class DiffCall(TypedDict):
    """A change of files as it is asked for."""

    card: Literal["diff"]
    title: str
    diffs: list[FileDiff]
    locations: NotRequired[list[Location]]


class GenericResult(TypedDict):
    """A result that no other card fits."""

    card: Literal["generic"]
    title: NotRequired[str]
    content: NotRequired[Sequence[ContentBlock]]


class TerminalResult(TypedDict):
    """What a command printed, and how it ended."""

    card: Literal["terminal"]
    title: NotRequired[str]
    output: NotRequired[str]
    exitCode: NotRequired[int]
    signal: NotRequired[str]


class DiffResult(TypedDict):
    """A change of files as it was made."""

    card: Literal["diff"]
    title: NotRequired[str]
    diffs: list[FileDiff]


class MatchesResult(TypedDict):
    """Lines that a search found."""

    card: Literal["search"]
    shape: Literal["matches"]
    files: list[FileMatches]
    truncated: bool
    total: int


class PathsResult(TypedDict):
    """Paths that a search found."""

    card: Literal["search"]
    shape: Literal["paths"]
    paths: list[str]
    truncated: bool
    total: int


class ReadResult(TypedDict):
    """A window on a file; ``content`` is what the model got."""

    card: Literal["read"]
    path: str
    offset: int
    lines: list[NumberedLine]
    totalLines: int
    lang: NotRequired[str]
    content: NotRequired[str]


class WebSearchResult(TypedDict):
    """What a web search found."""

    card: Literal["web"]
    kind: Literal["search"]
    sources: list[WebSource]
    answer: NotRequired[str]
    truncated: bool


class WebFetchResult(TypedDict):
    """A page that was fetched."""

    card: Literal["web"]
    kind: Literal["fetch"]
    url: str
    statusCode: int
    truncated: bool


ToolCallView: TypeAlias = GenericCall | TerminalCall | DiffCall
ToolResultView: TypeAlias = (
    GenericResult
    | TerminalResult
    | DiffResult
    | MatchesResult
    | PathsResult
    | ReadResult
    | WebSearchResult
    | WebFetchResult
)


def call_view(
    definition: ToolDefinition | None, arguments: JsonValue, *, name: str = ""
) -> ToolCallView:
    """Return what to show of a call. Never raises.

    Args:
        definition: The tool as it is now; ``None`` when it is not there any more.
        arguments: As `parse_call` gives them for the logged text.
        name: What the call names, for when there is no tool.
    """
    if definition is not None and definition.present_call is not None:
        view = _presented(definition.name, definition.present_call, arguments)
        if (good := normal_call_view(view)) is not None:
            return good
    title = (definition.name if definition is not None else name) or "tool call"
    return {"card": "generic", "title": title, "rawInput": arguments}


def result_view(
    definition: ToolDefinition | None, arguments: JsonValue, facts: ToolResultFacts
) -> ToolResultView:
    """Return what to show of a result. Never raises.

    Args:
        definition: The tool as it is now; ``None`` when it is not there any more.
        arguments: Those of the call, as `parse_call` gives them for the logged text.
        facts: What the log holds of the result.
    """
    if definition is not None and definition.present_result is not None:
        view = _presented(definition.name, definition.present_result, arguments, facts)
        if (good := normal_result_view(view)) is not None:
            return good
    return {"card": "generic", "content": facts.content}


def normal_call_view(view: object) -> ToolCallView | None:
    """Return a view of a call as detached, frozen JSON of just the fields that its card has.

    ``None`` when it is no such view. Never raises.
    """
    return cast("ToolCallView | None", _normal(view, _CALLS))


def normal_result_view(view: object) -> ToolResultView | None:
    """As `normal_call_view`, of a result."""
    return cast("ToolResultView | None", _normal(view, _RESULTS))


def _presented(tool: str, presenter: Callable[..., object], *given: object) -> object:
    try:
        return presenter(*given)
    except (Exception, asyncio.CancelledError, SystemExit):
        _log.warning(
            "a presenter of tool %r failed; its call is shown plainly", tool, exc_info=True
        )
        return None


def _normal(view: object, cards: Mapping[str, JsonObject]) -> Any:
    try:
        frozen = snapshot(view)
        schema = cards.get(_variant(frozen)) if isinstance(frozen, dict) else None
        if schema is None or validate_json_schema_value(schema, frozen, "view"):
            return None
        known: Any = schema["properties"]
        return snapshot({key: frozen[key] for key in known if key in frozen})
    except Exception:  # a hostile value: whatever it is, it is no view
        return None


def _variant(view: Mapping[str, Any]) -> str:
    """The card, with what else tells its shapes apart."""
    card = view.get("card")
    told_by = {"search": "shape", "web": "kind"}.get(card) if isinstance(card, str) else None
    return f"{card} {view.get(told_by)}" if told_by else str(card)


def _object(optional: str = "", **members: Any) -> JsonObject:
    names = optional.split()
    required: list[JsonValue] = [name for name in members if name not in names]
    return {"type": "object", "properties": members, "required": required}


def _list(items: JsonObject) -> JsonObject:
    return {"type": "array", "items": items}


_TEXT: Final[JsonObject] = {"type": "string"}
_COUNT: Final[JsonObject] = {"type": "integer"}
_FLAG: Final[JsonObject] = {"type": "boolean"}
_ANY: Final[JsonObject] = {}
_CONTENT: Final = _list(_object(type=_TEXT))
_LOCATIONS: Final = _list(_object("line", path=_TEXT, line=_COUNT))
_DIFFS: Final = _list(
    _object(path=_TEXT, oldText={"oneOf": [_TEXT, {"type": "null"}]}, newText=_TEXT)
)
_KIND: Final[JsonObject] = {
    "type": "string",
    "enum": ["read", "edit", "delete", "move", "search", "execute", "fetch", "other"],
}

_CALLS: Final[dict[str, JsonObject]] = {
    "generic": _object(
        "kind rawInput content locations",
        card=_TEXT,
        title=_TEXT,
        kind=_KIND,
        rawInput=_ANY,
        content=_CONTENT,
        locations=_LOCATIONS,
    ),
    "terminal": _object("description cwd", card=_TEXT, title=_TEXT, description=_TEXT, cwd=_TEXT),
    "diff": _object("locations", card=_TEXT, title=_TEXT, diffs=_DIFFS, locations=_LOCATIONS),
}

_RESULTS: Final[dict[str, JsonObject]] = {
    "generic": _object("title content", card=_TEXT, title=_TEXT, content=_CONTENT),
    "terminal": _object(
        "title output exitCode signal",
        card=_TEXT,
        title=_TEXT,
        output=_TEXT,
        exitCode=_COUNT,
        signal=_TEXT,
    ),
    "diff": _object("title", card=_TEXT, title=_TEXT, diffs=_DIFFS),
    "search matches": _object(
        card=_TEXT,
        shape=_TEXT,
        files=_list(_object(path=_TEXT, matches=_list(_object(lineNumber=_COUNT, line=_TEXT)))),
        truncated=_FLAG,
        total=_COUNT,
    ),
    "search paths": _object(
        card=_TEXT, shape=_TEXT, paths=_list(_TEXT), truncated=_FLAG, total=_COUNT
    ),
    "read": _object(
        "lang content",
        card=_TEXT,
        path=_TEXT,
        offset=_COUNT,
        lines=_list(_object(number=_COUNT, text=_TEXT)),
        totalLines=_COUNT,
        lang=_TEXT,
        content=_TEXT,
    ),
    "web search": _object(
        "answer",
        card=_TEXT,
        kind=_TEXT,
        sources=_list(
            _object(
                "title snippet publishedAt",
                url=_TEXT,
                title=_TEXT,
                snippet=_TEXT,
                publishedAt=_TEXT,
            )
        ),
        answer=_TEXT,
        truncated=_FLAG,
    ),
    "web fetch": _object(card=_TEXT, kind=_TEXT, url=_TEXT, statusCode=_COUNT, truncated=_FLAG),
}
