"""JSON Schema from Python types: what pydantic generates, in the shape that models get.

References are inlined, titles that pydantic made up are dropped, keys follow one order, and an
optional parameter is a property that may be absent rather than one that may be ``null``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dsh.base.json import JsonObject, NotLossless, equal, freeze, snapshot
from dsh.execution.tools.schema import assert_supported_json_schema, json_type_of
from dsh.execution.tools.service import JsonSchemaError

_ORDER = (
    "type",
    "description",
    "enum",
    "const",
    "properties",
    "required",
    "additionalProperties",
    "items",
    "oneOf",
    "default",
    "examples",
)
_DROPPED = frozenset({"title", "$defs", "discriminator", "readOnly", "writeOnly", "deprecated"})
_ENFORCED = frozenset(_ORDER)
_REFUSED = frozenset(
    {"not", "if", "then", "else", "patternProperties", "dependentSchemas", "allOf"}
)
_NULL = {"type": "null"}


def parameters_schema(generated: Mapping[str, Any], *, closed: bool) -> JsonObject:
    """Convert the schema of a parameter model.

    Constraints stay as annotations for the model to read: pydantic enforces them.

    Args:
        generated: What pydantic made, in validation mode.
        closed: Say that no further arguments are accepted.

    Raises:
        JsonSchemaError: a type refers to itself or has no such form.
    """
    schema = _Converter(generated, output=False).convert()
    if schema.get("type") != "object":
        raise JsonSchemaError(["schema must describe an object: parameters have names"])
    if closed:
        schema["additionalProperties"] = False
    schema.pop("description", None)
    return _frozen(_ordered({"type": "object", "properties": {}, **schema}))


def output_schema(generated: Mapping[str, Any]) -> JsonObject:
    """Convert the schema of a return type into the enforced subset.

    Constraints that the subset lacks are dropped; ``X | None`` stays a choice with ``null``.

    Raises:
        JsonSchemaError: a type refers to itself or has no such form.
    """
    schema = _Converter(generated, output=True).convert()
    assert_supported_json_schema(schema)
    return _frozen(schema)


class _Converter:
    def __init__(self, generated: Mapping[str, Any], *, output: bool) -> None:
        self._root = generated
        self._definitions: Mapping[str, Any] = generated.get("$defs", {})
        self._output = output
        self._open: list[str] = []

    def convert(self) -> dict[str, Any]:
        return self._node(self._root, "schema")

    def _node(self, node: Any, path: str) -> dict[str, Any]:
        if node is True:
            return {}
        if not isinstance(node, Mapping):
            raise JsonSchemaError([f"{path} accepts nothing"])
        if refused := sorted(_REFUSED & node.keys()):
            if refused == ["allOf"] and len(node["allOf"]) == 1:
                rest = {key: value for key, value in node.items() if key != "allOf"}
                return self._node({**node["allOf"][0], **rest}, path)
            raise JsonSchemaError([f"{path}.{refused[0]} has no counterpart; use a simpler type"])
        if "$ref" in node:
            return self._reference(node, path)
        for choice in ("anyOf", "oneOf"):
            if choice in node:
                return self._choice(node, node[choice], f"{path}.{choice}")
        return self._plain(node, path)

    def _reference(self, node: Mapping[str, Any], path: str) -> dict[str, Any]:
        name = str(node["$ref"]).rsplit("/", 1)[-1]
        if name in self._open:
            raise JsonSchemaError([f"{path} refers to {name}, which contains itself"])
        self._open.append(name)
        inlined = self._node(self._definitions[name], path)
        self._open.pop()
        return _ordered({**inlined, **self._annotations(node)})

    def _choice(self, node: Mapping[str, Any], branches: list[Any], path: str) -> dict[str, Any]:
        converted = [
            self._node(branch, f"{path}[{index}]") for index, branch in enumerate(branches)
        ]
        remaining = _distinct(converted)
        annotations = self._annotations(node)
        if any(not (branch.keys() - {"description"}) for branch in remaining):
            return _ordered(annotations)
        if len(remaining) == 1:
            return _ordered({**remaining[0], **annotations})
        return _ordered({"oneOf": remaining, **annotations})

    def _plain(self, node: Mapping[str, Any], path: str) -> dict[str, Any]:
        made = {
            key: value
            for key, value in node.items()
            if key not in _DROPPED and (key in _ENFORCED or not self._output)
        }
        if "type" not in made and ("enum" in made or "const" in made):
            made["type"] = _literal_type(made, path)
        if not _is_shown(made.get("default", 0)):
            del made["default"]
        if "properties" in made:
            self._properties(made, path)
        extra = made.get("additionalProperties")
        if isinstance(extra, Mapping):
            converted = self._node(extra, f"{path}.additionalProperties")
            made["additionalProperties"] = True if self._output or not converted else converted
        if "prefixItems" in node:
            made.pop("prefixItems", None)
            made["items"] = self._tuple_items(node["prefixItems"], path)
        elif "items" in made:
            made["items"] = self._node(made["items"], f"{path}.items")
        return _ordered(made)

    def _properties(self, made: dict[str, Any], path: str) -> None:
        required = list(made.get("required", ()))
        members: dict[str, Any] = {}
        for name, node in made["properties"].items():
            member = self._node(node, f"{path}.properties.{name}")
            if not self._output and name not in required:
                member = _without_null(member)
            members[name] = member
        made["properties"] = members
        if required:
            made["required"] = [name for name in members if name in required]
        else:
            made.pop("required", None)

    def _tuple_items(self, items: list[Any], path: str) -> dict[str, Any]:
        converted = _distinct([self._node(item, f"{path}.items") for item in items])
        return converted[0] if len(converted) == 1 else {"oneOf": converted}

    def _annotations(self, node: Mapping[str, Any]) -> dict[str, Any]:
        kept = {key: node[key] for key in ("description", "default", "examples") if key in node}
        if not _is_shown(kept.get("default", 0)):
            del kept["default"]
        return kept


def _is_shown(default: Any) -> bool:
    """Whether the model is told of a default: that of an optional parameter says nothing."""
    if default is None:
        return False
    try:
        snapshot(default)
    except NotLossless:
        return False
    return True


def _distinct(branches: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Drop branches that another one covers, so that a value matches one branch only."""
    flat = [inner for branch in branches for inner in _alternatives(branch)]
    kept: list[dict[str, Any]] = []
    for position, branch in enumerate(flat):
        covered = any(
            _covers(other, branch) and not (other_position > position and _covers(branch, other))
            for other_position, other in enumerate(flat)
            if other_position != position
        )
        if not covered:
            kept.append(branch)
    return kept


def _alternatives(branch: dict[str, Any]) -> list[dict[str, Any]]:
    if "oneOf" in branch and branch.keys() <= {"oneOf", "description"}:
        inner: list[dict[str, Any]] = branch["oneOf"]
        return inner
    return [branch]


def _covers(wide: dict[str, Any], narrow: dict[str, Any]) -> bool:
    """Whether everything that fits ``narrow`` surely fits ``wide``."""
    if equal(wide, narrow):
        return True
    if wide.keys() - {"type", "description"}:
        return False
    kinds = (wide.get("type"), narrow.get("type"))
    return kinds[0] == kinds[1] or kinds == ("number", "integer") or "type" not in wide


def _without_null(member: dict[str, Any]) -> dict[str, Any]:
    branches = member.get("oneOf")
    if not isinstance(branches, list) or _NULL not in branches:
        return member
    rest = [branch for branch in branches if branch != _NULL]
    outer = {key: value for key, value in member.items() if key != "oneOf"}
    return _ordered({**rest[0], **outer} if len(rest) == 1 else {"oneOf": rest, **outer})


def _literal_type(node: Mapping[str, Any], path: str) -> str:
    values = node["enum"] if "enum" in node else [node["const"]]
    kinds = {json_type_of(value) for value in values}
    if len(kinds) != 1:
        raise JsonSchemaError([f"{path} mixes literals of types {', '.join(sorted(kinds))}"])
    return kinds.pop()


def _ordered(node: Mapping[str, Any]) -> dict[str, Any]:
    return dict(sorted(node.items(), key=_rank))


def _rank(item: tuple[str, Any]) -> tuple[int, str]:
    key = item[0]
    return (_ORDER.index(key) if key in _ORDER else len(_ORDER), key)


def _frozen(schema: Mapping[str, Any]) -> JsonObject:
    frozen: JsonObject = freeze(_plain_copy(schema))
    return frozen


def _plain_copy(value: Any) -> Any:
    """Copy a converted schema, whose inlined parts may be shared."""
    if isinstance(value, Mapping):
        return {key: _plain_copy(item) for key, item in value.items()}
    return [_plain_copy(item) for item in value] if isinstance(value, list | tuple) else value
