"""What a settings model says of itself: its JSON Schema, its secrets, its spelling of keys."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic import BaseModel

from dsh.base.json import FrozenDict, FrozenList, freeze
from dsh.state.settings.service import InvalidSettingsModel, SecretPath

__all__ = ["ModelSchema", "freeze_model", "require_frozen", "spelled"]

_ROLE: Final = "x-role"
_SHOWING: Final = ("default", "examples", "const", "enum", "pattern")
_SHORTEST_SCRUB: Final = 4
_UNIONS: Final = ("anyOf", "oneOf")
_MAX_DEPTH: Final = 64


class ModelSchema:
    """The JSON Schema of a model, and how to take the secrets out of values of it.

    A value that a secret may be part of in a way that the schema does not pin down, as in a
    union, is taken out as a whole. So is a text elsewhere that repeats a secret.
    """

    def __init__(self, model: type[BaseModel]) -> None:
        schema = model.model_json_schema(by_alias=True, mode="validation")
        self._defs: dict[str, Any] = schema.get("$defs", {})
        self._guilty: dict[int, bool] = {}
        self.has_secrets = self._holds_secret(schema, ())
        self._root = schema
        self.public: Mapping[str, Any] = freeze(self._scrubbed(schema))

    def redact(self, *values: Any) -> tuple[list[Any], tuple[SecretPath, ...]]:
        """Return values without their secrets, and where these are or could be.

        Args:
            values: Sections, or None. The first one decides what counts as set.
        """
        if not self.has_secrets:
            return list(values), ()
        found: dict[tuple[str | int, ...], bool] = {}
        texts: set[str] = set()
        walked = []
        for position, item in enumerate(values):
            places: dict[tuple[str | int, ...], bool] = {}
            walked.append(item if item is None else self._walk(self._root, item, (), places, texts))
            if position == 0:
                found = places
        clean = [item if item is None else _without_texts(item, texts) for item in walked]
        return clean, tuple(
            SecretPath(path, there) for path, there in sorted(found.items(), key=repr)
        )

    def secret_texts(self, section: Any) -> set[str]:
        """Return the texts that a section holds at the places of secrets."""
        texts: set[str] = set()
        if self.has_secrets and section is not None:
            self._walk(self._root, section, (), {}, texts)
        return texts

    def touches_secret(self, path: tuple[str | int, ...]) -> bool:
        """Whether a place is a secret's, lies in one, or holds one."""
        if not self.has_secrets:
            return False
        node: Any = self._root
        for part in path:
            node = self._plain(node)
            if node is None or self._is_secret(node):
                return True
            node = self._child(node, part)
            if node is None:
                # No such place in the schema: whatever stands there was meant for some field.
                return True
        return self._holds_secret(node, ())

    def _walk(
        self,
        node: Any,
        item: Any,
        path: tuple[str | int, ...],
        found: dict[tuple[str | int, ...], bool],
        texts: set[str],
    ) -> Any:
        """Return ``item`` without secrets; note where they are and what they say."""
        if not self._holds_secret(node, ()):
            return item
        plain = self._plain(node)
        if plain is None or self._is_secret(plain) or not isinstance(item, (dict, list)):
            # A secret, or a value of another shape than the schema has for what holds one.
            found[path] = item is not None
            texts.update(_texts_in(item))
            return _GONE
        if isinstance(item, list):
            members = [
                self._walk(self._child(plain, index), member, (*path, index), found, texts)
                for index, member in enumerate(item)
            ]
            return [None if member is _GONE else member for member in members]
        out = {}
        for key, member in item.items():
            kept = self._walk(self._child(plain, key), member, (*path, key), found, texts)
            if kept is not _GONE:
                out[key] = kept
        for key, child in plain.get("properties", {}).items():
            if key not in item:
                self._note_unset(child, (*path, key), found, 0)
        return out

    def _note_unset(
        self, node: Any, path: tuple[str | int, ...], found: dict[Any, bool], depth: int
    ) -> None:
        if depth > _MAX_DEPTH or not self._holds_secret(node, ()):
            return
        plain = self._plain(node)
        if plain is None or self._is_secret(plain):
            found[path] = False
            return
        for key, child in plain.get("properties", {}).items():
            self._note_unset(child, (*path, key), found, depth + 8)

    def _plain(self, node: Any) -> Any:
        """Follow references and ``X | null``; None for what could be several things."""
        for _ in range(_MAX_DEPTH):
            if not isinstance(node, dict) or self._is_secret(node):
                return node if isinstance(node, dict) else None
            if "$ref" in node:
                node = self._defs.get(str(node["$ref"]).rpartition("/")[2])
                continue
            branches = [each for key in _UNIONS for each in node.get(key, ())]
            others = [each for each in branches if each.get("type") != "null"]
            if not branches and "allOf" not in node:
                return node
            if len(others) != 1 or "allOf" in node:
                return None
            node = others[0]
        return None

    def _child(self, node: Any, part: str | int) -> Any:
        """Return the schema of a member; None when the schema knows no such member."""
        if isinstance(part, str):
            properties = node.get("properties", {})
            if part in properties:
                return properties[part]
            rest = node.get("additionalProperties")
            if isinstance(rest, dict):
                return rest
            patterns = list(node.get("patternProperties", {}).values())
            return patterns[0] if len(patterns) == 1 else None
        fixed = node.get("prefixItems", [])
        if part < len(fixed):
            return fixed[part]
        items = node.get("items")
        return items if isinstance(items, dict) else None

    @staticmethod
    def _is_secret(node: Any) -> bool:
        return node.get(_ROLE) == "secret" or (
            node.get("format") == "password" and node.get("writeOnly") is True
        )

    def _holds_secret(self, node: Any, above: tuple[str, ...]) -> bool:
        """Whether a secret is anywhere below a node. What the schema does not know counts."""
        if node is None:
            return True
        if isinstance(node, list):
            return any(self._holds_secret(each, above) for each in node)
        if not isinstance(node, dict):
            return False
        if self._is_secret(node):
            return True
        if "$ref" in node:
            name = str(node["$ref"]).rpartition("/")[2]
            if name in above:
                return False
            if self._holds_secret(self._defs.get(name, {}), (*above, name)):
                return True
        return any(
            self._holds_secret(each, above)
            for key, member in node.items()
            if key not in _DATA and isinstance(member, (dict, list))
            for each in (member.values() if key in _MAPS and isinstance(member, dict) else [member])
        )

    def _scrubbed(self, node: Any, *, inside_map: bool = False) -> Any:
        """Return a schema without defaults and examples that show secrets."""
        if isinstance(node, list):
            return [self._scrubbed(each) for each in node]
        if not isinstance(node, dict):
            return node
        if inside_map:
            return {key: self._scrubbed(member) for key, member in node.items()}
        out = {}
        guilty = self._holds_secret(node, ())
        for key, member in node.items():
            if guilty and key in _SHOWING:
                continue
            out[key] = member if key in _DATA else self._scrubbed(member, inside_map=key in _MAPS)
        if self._is_secret(node):
            out[_ROLE] = "secret"
        return out


_GONE: Any = object()
_DATA: Final = ("default", "examples", "const", "enum", "required", "type", "title", "description")
_MAPS: Final = ("properties", "patternProperties", "$defs")


def _texts_in(item: Any) -> Iterator[str]:
    if isinstance(item, str):
        yield item
    elif isinstance(item, dict):
        for key, member in item.items():
            yield key
            yield from _texts_in(member)
    elif isinstance(item, list):
        for member in item:
            yield from _texts_in(member)
    elif isinstance(item, (int, float)) and not isinstance(item, bool):
        yield str(item)


def _without_texts(item: Any, texts: set[str]) -> Any:
    """Replace every text that repeats a secret."""
    telling = [text for text in texts if len(text) >= _SHORTEST_SCRUB]
    if not telling:
        return freeze(item)
    return freeze(_replace_texts(item, telling))


def _replace_texts(item: Any, telling: list[str]) -> Any:
    if isinstance(item, str):
        return "[redacted]" if any(text in item for text in telling) else item
    if isinstance(item, dict):
        return {key: _replace_texts(member, telling) for key, member in item.items()}
    if isinstance(item, list):
        return [_replace_texts(member, telling) for member in item]
    return item


def require_frozen(model: Any) -> None:
    """Refuse a model whose instances could be changed by who reads them.

    Raises:
        InvalidSettingsModel: names the class.
    """
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        raise InvalidSettingsModel(f"{model!r} is no pydantic model; settings need one")
    for each in _models_of(model, {}):
        if not each.model_config.get("frozen"):
            raise InvalidSettingsModel(
                f"settings model {each.__name__} is not frozen; readers share its instances: "
                "set frozen=True in its model_config"
            )


def _models_of(annotation: Any, seen: dict[type, None]) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        if annotation not in seen:
            seen[annotation] = None
            yield annotation
            for field in annotation.model_fields.values():
                yield from _models_of(field.annotation, seen)
        return
    for argument in typing.get_args(annotation):
        yield from _models_of(argument, seen)


def freeze_model(instance: BaseModel) -> None:
    """Make the containers in a model's fields read-only, down to the bottom."""
    fields = instance.__dict__
    for name, member in fields.items():
        frozen = _frozen(member)
        if frozen is not member:
            fields[name] = frozen


def _frozen(member: Any) -> Any:
    if isinstance(member, BaseModel):
        freeze_model(member)
        return member
    if type(member) is dict:
        return FrozenDict({key: _frozen(item) for key, item in member.items()})
    if type(member) is list:
        return FrozenList([_frozen(item) for item in member])
    if type(member) is tuple:
        return tuple(_frozen(item) for item in member)
    if type(member) is set:
        return frozenset(member)
    return member


def spelled(model: type[BaseModel], section: Mapping[str, Any]) -> dict[str, Any]:
    """Return a section in which each field has its wire name, where the model takes either."""
    members = dict(section)
    config = model.model_config
    either = config.get("populate_by_name") or config.get("validate_by_name")
    for name, field in model.model_fields.items():
        alias = field.alias
        if either and alias is not None and name in members and alias not in members:
            members = {alias if key == name else key: item for key, item in members.items()}
        key = alias if alias is not None else name
        if key in members:
            members[key] = _spelled_in(field.annotation, members[key])
    return members


def _spelled_in(annotation: Any, item: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return spelled(annotation, item) if isinstance(item, dict) else item
    arguments = [each for each in typing.get_args(annotation) if each not in (type(None), ...)]
    if not arguments or not isinstance(item, (dict, list)):
        return item
    origin = typing.get_origin(annotation)
    if origin in (list, tuple) and isinstance(item, list):
        return [_spelled_in(arguments[0], each) for each in item]
    if origin is dict and isinstance(item, dict):
        return {key: _spelled_in(arguments[-1], each) for key, each in item.items()}
    return _spelled_in(arguments[0], item) if len(arguments) == 1 else item
