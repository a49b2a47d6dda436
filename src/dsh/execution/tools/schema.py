"""The subset of JSON Schema that dsh enforces: what it allows, and checking values with it.

Keywords: ``type`` (one name), ``oneOf``, ``properties``, ``required``, ``additionalProperties``
(a boolean), ``items``, ``enum``, ``const``, and annotations. A keyword outside the subset is
refused, so that nothing is accepted and then ignored. No walk here uses the interpreter's stack for
the depth of its input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import isfinite
from typing import Any, TypeAlias

from dsh.base.json import JsonObject, NotLossless, equal, snapshot
from dsh.execution.tools.service import JsonSchemaError

ANNOTATIONS = frozenset({"description", "title", "default", "examples"})
TYPES = frozenset({"string", "number", "integer", "boolean", "null", "array", "object"})
_KEYWORDS_OF_TYPE = {
    "object": frozenset({"properties", "required", "additionalProperties"}),
    "array": frozenset({"items"}),
}
_CONSTRAINTS = frozenset(
    {"properties", "required", "additionalProperties", "items", "enum", "const"}
)
_KNOWN = _CONSTRAINTS | ANNOTATIONS | {"type", "oneOf"}
_SHALLOW = 64


def assert_supported_json_schema(schema: object) -> None:
    """Refuse a schema that the subset cannot express.

    Raises:
        JsonSchemaError: lists every violation with its path.
    """
    if violations := list(_violations(schema)):
        raise JsonSchemaError(violations)


def assert_object_json_schema(schema: object) -> None:
    """Like `assert_supported_json_schema`; the root must also be of type ``object``.

    Raises:
        JsonSchemaError: lists every violation with its path.
    """
    violations = list(_violations(schema))
    if not isinstance(schema, dict) or schema.get("type") != "object":
        violations.insert(0, 'schema must have the type "object" at its root')
    if violations:
        raise JsonSchemaError(violations)


def validate_json_schema_value(schema: JsonObject, value: object, path: str = "") -> list[str]:
    """List what is wrong with ``value``; empty when it fits. Never raises.

    Args:
        schema: A schema of the supported subset.
        value: Anything; what is not lossless JSON does not fit.
        path: Name of the value in the sentences; empty for the arguments of a call.
    """
    try:
        if _fits(schema, value, 0):
            return []
    except Exception:
        pass  # too deep, or a hostile value: the careful walk decides
    found: list[str] = []
    try:
        _run(_check(schema, value, (None, path), found))
    except Exception as error:
        found.append(f"{_quoted(path)} cannot be inspected: {type(error).__name__}")
    return found


def json_type_of(value: object) -> str:
    """The JSON name of a value's type, or its Python name when it is not JSON."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    for kind, name in ((int, "integer"), (float, "number"), (str, "string")):
        if isinstance(value, kind):
            return name
    if isinstance(value, Mapping):
        return "object"
    return "array" if isinstance(value, list) else type(value).__name__


def _violations(root: object) -> Iterator[str]:
    """Walk a schema depth first; ``leave`` entries mark the end of a node's branch."""
    done: set[int] = set()
    open_nodes: set[int] = set()
    work: list[tuple[Any, str, bool]] = [(root, "schema", False)]
    while work:
        node, path, leave = work.pop()
        if leave:
            open_nodes.discard(id(node))
            done.add(id(node))
        elif not isinstance(node, dict):
            yield f"{path} must be an object, got {json_type_of(node)}"
        elif id(node) in open_nodes:
            yield f"{path} contains itself"
        elif id(node) not in done:
            open_nodes.add(id(node))
            work.append((node, "", True))
            yield from _node_violations(node, path)
            work.extend((child, where, False) for child, where in _children(node, path))


def _children(node: dict[str, Any], path: str) -> list[tuple[Any, str]]:
    found: list[tuple[Any, str]] = []
    if isinstance(branches := node.get("oneOf"), list):
        found += [(branch, f"{path}.oneOf[{index}]") for index, branch in enumerate(branches)]
    if isinstance(members := node.get("properties"), dict):
        found += [(child, f"{path}.properties.{key}") for key, child in members.items()]
    if "items" in node:
        found.append((node["items"], f"{path}.items"))
    return found[::-1]


def _node_violations(node: dict[str, Any], path: str) -> Iterator[str]:
    for key in node:
        if key not in _KNOWN:
            yield f"{path}.{key} is not supported"
    for key in ANNOTATIONS & node.keys():
        try:
            snapshot(node[key])
        except NotLossless as error:
            yield f"{path}.{key} is not lossless JSON: {error.problem}"
    if "oneOf" in node:
        yield from _choice_violations(node, path)
        return
    kind = node.get("type")
    if "type" not in node:
        if given := sorted(_CONSTRAINTS & node.keys()):
            yield f"{path}.{given[0]} needs a type beside it"
        return
    if not isinstance(kind, str) or kind not in TYPES:
        yield f"{path}.type must be one of {', '.join(sorted(TYPES))}, got {kind!r}"
        return
    yield from _typed_violations(node, kind, path)


def _choice_violations(node: dict[str, Any], path: str) -> Iterator[str]:
    if not isinstance(node["oneOf"], list) or len(node["oneOf"]) < 2:
        yield f"{path}.oneOf must list at least two schemas"
    for key in sorted((_CONSTRAINTS | {"type"}) & node.keys()):
        yield f"{path}.{key} cannot stand beside oneOf"


def _typed_violations(node: dict[str, Any], kind: str, path: str) -> Iterator[str]:
    allowed = _KEYWORDS_OF_TYPE.get(kind, frozenset())
    for key in sorted((_CONSTRAINTS - {"enum", "const"}) & node.keys() - allowed):
        yield f"{path}.{key} does not apply to type {kind!r}"
    if kind == "object":
        yield from _object_violations(node, path)
    yield from _literal_violations(node, kind, path)


def _object_violations(node: dict[str, Any], path: str) -> Iterator[str]:
    members = node.get("properties", {})
    if not isinstance(members, dict):
        yield f"{path}.properties must be an object"
        members = {}
    if not isinstance(node.get("additionalProperties", True), bool):
        yield f"{path}.additionalProperties must be a boolean"
    required = node.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        yield f"{path}.required must be a list of names"
        return
    for name in required:
        if name not in members:
            yield f"{path}.required names {name!r}, which is not among the properties"


def _literal_violations(node: dict[str, Any], kind: str, path: str) -> Iterator[str]:
    if "enum" in node:
        choices = node["enum"]
        if not isinstance(choices, list) or not choices:
            yield f"{path}.enum must be a list with members"
            return
        for index, choice in enumerate(choices):
            if not _is_type(kind, choice):
                yield f"{path}.enum[{index}] is not of type {kind!r}"
    if "const" not in node:
        return
    if not _is_type(kind, node["const"]):
        yield f"{path}.const is not of type {kind!r}"
    elif "enum" in node and not _among(node["const"], node["enum"]):
        yield f"{path}.const is not a member of the enum"


def _is_string(value: object) -> bool:
    return isinstance(value, str)


def _is_number(value: object) -> bool:
    if type(value) is float:
        return isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


def _is_integer(value: object) -> bool:
    if type(value) is float:
        return value.is_integer()
    return isinstance(value, int) and not isinstance(value, bool)


_TYPE_CHECKS: dict[str, Callable[[object], bool]] = {
    "string": _is_string,
    "number": _is_number,
    "integer": _is_integer,
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}


def _is_type(kind: str, value: object) -> bool:
    return _TYPE_CHECKS[kind](value)


def _among(value: object, choices: list[Any]) -> bool:
    return any(equal(value, choice) for choice in choices)


def _fits(schema: Mapping[str, Any], value: Any, depth: int) -> bool:
    """Say quickly whether a value of ordinary depth fits.

    Raises:
        RecursionError: it is nested too deeply for this walk.
    """
    if depth > _SHALLOW:
        raise RecursionError
    kind = schema.get("type")
    if kind is None:
        if (branches := schema.get("oneOf")) is not None:
            return sum(_fits(branch, value, depth + 1) for branch in branches) == 1
        return _is_lossless(value)
    if not _TYPE_CHECKS[kind](value):
        return False
    if "enum" in schema and not _among(value, schema["enum"]):
        return False
    if "const" in schema and not equal(value, schema["const"]):
        return False
    if kind == "object":
        return _members_fit(schema, value, depth)
    if kind == "array":
        items = schema.get("items")
        if items is None:
            return _is_lossless(value)
        return all(_fits(items, item, depth + 1) for item in value)
    return True


def _members_fit(schema: Mapping[str, Any], value: dict[str, Any], depth: int) -> bool:
    members = schema.get("properties") or {}
    for name in schema.get("required") or ():
        if name not in value:
            return False
    closed = schema.get("additionalProperties") is False
    for key, item in value.items():
        member = members.get(key)
        if member is None:
            if closed or not (type(key) is str and _is_lossless(item)):
                return False
        elif not _fits(member, item, depth + 1):
            return False
    return True


def _is_lossless(value: object) -> bool:
    try:
        snapshot(value)
    except NotLossless:
        return False
    return True


_Path: TypeAlias = "tuple[_Path | None, str]"
"""A path as a chain from its end, so that a deep walk does not copy long texts."""

_PATH_CHARS = 200

_Walk = Iterator["_Walk"]


def _run(walk: _Walk) -> None:
    """Drive nested checks: each yields the checks it needs done before it goes on."""
    stack = [walk]
    while stack:
        inner = next(stack[-1], None)
        if inner is None:
            stack.pop()
        else:
            stack.append(inner)


def _check(schema: Mapping[str, Any], value: Any, path: _Path, found: list[str]) -> _Walk:
    if "oneOf" in schema:
        yield from _check_choice(schema["oneOf"], value, path, found)
        return
    kind = schema.get("type")
    if kind is None:
        _check_lossless(value, path, found)
        return
    if not _is_type(kind, value):
        found.append(f"{_named(path)} must be {kind}, got {json_type_of(value)}")
        return
    if "enum" in schema and not _among(value, schema["enum"]):
        choices = ", ".join(repr(choice) for choice in schema["enum"][:20])
        found.append(f"{_named(path)} must be one of {choices}")
    elif "const" in schema and not equal(value, schema["const"]):
        found.append(f"{_named(path)} must be {schema['const']!r}")
    if kind == "object":
        yield from _check_members(schema, value, path, found)
    elif kind == "array":
        yield from _check_items(schema.get("items"), value, path, found)


def _check_choice(
    branches: list[Mapping[str, Any]], value: Any, path: _Path, found: list[str]
) -> _Walk:
    matched = 0
    for branch in branches:
        problems: list[str] = []
        yield _check(branch, value, path, problems)
        matched += not problems
    if matched != 1:
        found.append(
            f"{_named(path)} must match exactly one of {len(branches)} alternatives, "
            f"it matches {matched}"
        )


def _check_members(
    schema: Mapping[str, Any], value: dict[Any, Any], path: _Path, found: list[str]
) -> _Walk:
    members: Mapping[str, Any] = schema.get("properties") or {}
    missing = [name for name in schema.get("required") or () if name not in value]
    found += [f'missing required property "{_text((path, f".{name}"))}"' for name in missing]
    for key, item in value.items():
        if type(key) is not str:
            found.append(f"{_named(path)} has a key that is not text: {key!r}")
        elif key in members:
            yield _check(members[key], item, (path, f".{key}"), found)
        elif schema.get("additionalProperties") is False:
            found.append(f'unknown property "{_text((path, f".{key}"))}"')
        else:
            _check_lossless(item, (path, f".{key}"), found)


def _check_items(
    items: Mapping[str, Any] | None, value: list[Any], path: _Path, found: list[str]
) -> _Walk:
    if items is None:
        _check_lossless(value, path, found)
        return
    for index, item in enumerate(value):
        yield _check(items, item, (path, f"[{index}]"), found)


def _check_lossless(value: object, path: _Path, found: list[str]) -> None:
    try:
        snapshot(value)
    except NotLossless as error:
        found.append(f"{_named(path)} is not lossless JSON: {error.problem}")


def _named(path: _Path) -> str:
    return _quoted(_text(path))


def _text(path: _Path) -> str:
    parts: list[str] = []
    step: _Path | None = path
    while step is not None:
        step, part = step
        parts.append(part)
    text = "".join(reversed(parts)).removeprefix(".")
    if len(text) <= _PATH_CHARS:
        return text
    return f"{text[: _PATH_CHARS // 2]}...{text[-_PATH_CHARS // 2 :]}"


def _quoted(path: str) -> str:
    return f'"{path}"' if path else "arguments"
