"""What the model is told about arguments that cannot be used, so that it can repair them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from dsh.base.json import JsonObject, JsonValue
from dsh.base.text import replace_surrogates
from dsh.execution.tools.raw import excess_of
from dsh.execution.tools.schema import json_type_of
from dsh.execution.tools.service import ToolArgsError

_ECHO_CHARS = 200
_NAMES_SHOWN = 20
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_BOUNDS = {
    "minimum": ">= {}",
    "maximum": "<= {}",
    "exclusiveMinimum": "> {}",
    "exclusiveMaximum": "< {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "pattern": "matching {}",
    "format": "as {}",
}


def unusable_arguments(
    tool: str, arguments: JsonValue, parameters: JsonObject
) -> ToolArgsError | None:
    """Say why arguments are not a JSON object; ``None`` when they are one.

    Args:
        tool: Name of the called tool.
        arguments: As `ToolInput.arguments`: a ``str`` is raw text.
        parameters: Schema of the tool's parameters, for the sentence on what was expected.
    """
    if isinstance(arguments, Mapping):
        return None
    expected = f"expected {describe_parameters(parameters)}"
    if not isinstance(arguments, str):
        problem = f"they are a JSON {json_type_of(arguments)}, not an object"
        return ToolArgsError([problem, expected], tool=tool)
    problem, position = _diagnose(arguments)
    return ToolArgsError(
        [problem, expected, f"received: {excerpt(arguments, position)}"], tool=tool
    )


def excerpt(text: str, position: int = 0, *, max_chars: int = _ECHO_CHARS) -> str:
    """Quote the part of a text around ``position``, on one line and bounded.

    Control characters are shown as spaces and lone surrogates as U+FFFD.
    """
    start = max(0, min(position - max_chars // 2, len(text) - max_chars))
    part = replace_surrogates(_CONTROL.sub(" ", text[start : start + max_chars]))
    before = "..." if start else ""
    after = "..." if start + max_chars < len(text) else ""
    return f"{before}{part}{after}"


def describe_parameters(parameters: JsonObject) -> str:
    """Describe the arguments a tool takes, in a phrase."""
    members = _mapping(parameters.get("properties"))
    if not members:
        return "one JSON object"
    required = parameters.get("required")
    names = required if isinstance(required, list) else []
    shown = [
        f"{name} ({describe(_mapping(node))}{', required' if name in names else ''})"
        for name, node in list(members.items())[:_NAMES_SHOWN]
    ]
    more = f", and {len(members) - _NAMES_SHOWN} more" if len(members) > _NAMES_SHOWN else ""
    return f"one JSON object with {', '.join(shown)}{more}"


def describe(node: Mapping[str, Any], *, levels: int = 3) -> str:
    """Describe what a schema node accepts, in a few words.

    Args:
        node: A node of a parameter schema, as it is shown to the model.
        levels: How far to look into nested nodes.
    """
    if levels == 0:
        return "JSON value"
    if "const" in node:
        return json.dumps(node["const"])
    if isinstance(choices := node.get("enum"), list):
        more = ", ..." if len(choices) > _NAMES_SHOWN else ""
        return "one of " + ", ".join(map(json.dumps, choices[:_NAMES_SHOWN])) + more
    for key in ("oneOf", "anyOf"):
        if isinstance(branches := node.get(key), list):
            kinds = [describe(_mapping(branch), levels=levels - 1) for branch in branches]
            return " or ".join(dict.fromkeys(kinds))
    kind = node.get("type")
    if not isinstance(kind, str):
        return "any JSON value"
    if kind == "array" and (items := _mapping(node.get("items"))):
        kind = f"array of {describe(items, levels=levels - 1)}"
    bounds = [text.format(node[key]) for key, text in _BOUNDS.items() if key in node]
    return " ".join([kind, *bounds])


def _diagnose(text: str) -> tuple[str, int]:
    """Return what is wrong with raw arguments, and where to quote them."""
    if text.lstrip().startswith("```"):
        return "the JSON is wrapped in a Markdown code fence; send the bare object", 0
    if (excess := excess_of(text)) is not None:
        return excess, 0
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        return _syntax_problem(text, error), error.pos
    except RecursionError:
        return "the JSON is nested too deeply to be read", 0
    except _NotJson as error:
        return f"the text is not valid JSON: {error}", 0
    except ValueError:
        return "the text is not valid JSON: it holds a number with too many digits to be read", 0
    if isinstance(value, str):
        return _string_problem(value), 0
    return f"they are a JSON {json_type_of(value)}, not an object", 0


def _syntax_problem(text: str, error: json.JSONDecodeError) -> str:
    where = f"line {error.lineno}, column {error.colno}"
    if error.msg.startswith("Unterminated string"):
        return f"the JSON is cut off: the string that starts at {where} never ends"
    if not text[error.pos :].strip():
        return f"the JSON is cut off at {where}: {_wanted(error.msg)}"
    if error.msg.startswith("Extra data"):
        return f"more text follows the JSON at {where}; send one object and nothing else"
    return f"the text is not valid JSON at {where}: {_wanted(error.msg)}"


def _wanted(message: str) -> str:
    """Put the parser's words in ours."""
    table = {
        "Expecting value": "a value was expected here",
        "Expecting ',' delimiter": "a comma or a closing bracket was expected here",
        "Expecting ':' delimiter": "a colon was expected here",
        "Expecting property name": "a key in double quotes was expected here",
        "Illegal trailing comma": "a comma has nothing after it",
        "Invalid control character": "a control character in a string must be escaped",
        "Unexpected UTF-8 BOM": "a byte order mark is not part of JSON",
        "Invalid \\": "a backslash in a string starts no valid escape; write it twice",
    }
    for start, words in table.items():
        if message.startswith(start):
            return words
    return message[:1].lower() + message[1:]


def _string_problem(value: str) -> str:
    try:
        inner = json.loads(value)
    except (ValueError, RecursionError):
        inner = None
    if isinstance(inner, dict):
        return "the object is encoded twice, as JSON inside a JSON string; send the object itself"
    return "they are a JSON string, not an object"


class _NotJson(ValueError):
    """The text holds something that only looks like JSON."""


def _refuse_constant(name: str) -> None:
    raise _NotJson(f"{name} is not a JSON value")


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
