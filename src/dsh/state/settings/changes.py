"""Writes as functions from section to section: what is given is checked and copied at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from dsh.base.json import NotLossless, snapshot
from dsh.state.settings.service import SettingsRefused

__all__ = ["Change", "merged", "mutation", "replacement", "take", "update"]

Change: TypeAlias = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Returns another section for the one that is stored; it changes neither."""


def take(ns: str, given: object, what: str) -> dict[str, Any]:
    """Return a detached copy of an object that a caller gave.

    Raises:
        SettingsRefused: it is no object, or not JSON.
    """
    if not isinstance(given, Mapping):
        raise SettingsRefused(ns, "$", f"{what} must be an object, got {type(given).__name__}")
    # A copy of the outermost mapping would hide that it contains itself.
    members: dict[str, Any] = _json(ns, given if isinstance(given, dict) else dict(given))
    return members


def update(ns: str, patch: object) -> Change:
    """Return the change that merges a patch.

    Raises:
        SettingsRefused: the patch is no JSON object.
    """
    taken = _without_none(take(ns, patch, "a patch"))
    return lambda section: merged(section, taken)


def replacement(ns: str, section: object) -> Change:
    """Return the change that puts another section in place.

    Raises:
        SettingsRefused: the section is no JSON object.
    """
    taken = take(ns, section, "a section")
    return lambda _: taken


def mutation(ns: str, ops: object) -> Change:
    """Return the change that applies operations in order.

    Raises:
        SettingsRefused: an operation is malformed.
    """
    if not isinstance(ops, Sequence) or isinstance(ops, (str, bytes)):
        raise SettingsRefused(ns, "$", "operations must be a list")
    steps = [_step(ns, position, op) for position, op in enumerate(ops)]

    def change(section: Mapping[str, Any]) -> Mapping[str, Any]:
        for path, step in steps:
            section = _at(ns, section, path, 0, step)
        return section

    return change


def merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return two sections as one: mappings merge, everything else of ``over`` replaces."""
    out = dict(under)
    for key, item in over.items():
        below = out.get(key)
        both = isinstance(item, dict) and isinstance(below, dict)
        out[key] = merged(below, item) if both else item  # type: ignore[arg-type]
    return out


_UNSET: Any = object()
_FIELDS = {"set": {"op", "path", "value"}, "unset": {"op", "path"}}


def _step(ns: str, position: int, op: object) -> tuple[tuple[str, ...], Any]:
    """Return where an operation acts, and what it puts there."""
    place = f"operation {position}"
    if not isinstance(op, Mapping) or op.get("op") not in _FIELDS:
        raise SettingsRefused(ns, "$", f"{place} must have op 'set' or 'unset'")
    if set(op) != _FIELDS[op["op"]]:
        wanted = ", ".join(sorted(_FIELDS[op["op"]]))
        raise SettingsRefused(ns, "$", f"{place} must have exactly the fields {wanted}")
    path = op["path"]
    if not isinstance(path, (list, tuple)) or not all(type(key) is str for key in path):
        raise SettingsRefused(ns, "$", f"{place} must have a list of keys as its path")
    if op["op"] == "unset":
        return tuple(path), _UNSET
    if not path:
        return (), take(ns, op["value"], f"the value of {place}")
    return tuple(path), _json(ns, op["value"])


def _at(ns: str, node: Any, path: tuple[str, ...], depth: int, value: Any) -> Any:
    if depth == len(path):
        return {} if value is _UNSET else value
    if not isinstance(node, dict):
        place = "$" + "".join(f".{key}" for key in path[:depth])
        raise SettingsRefused(ns, place, "has no members, so none can be set or unset")
    key = path[depth]
    if value is _UNSET and key not in node:
        return node
    if value is _UNSET and depth == len(path) - 1:
        return {name: item for name, item in node.items() if name != key}
    return {**node, key: _at(ns, node.get(key, {}), path, depth + 1, value)}


def _without_none(members: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _without_none(item) if isinstance(item, dict) else item
        for key, item in members.items()
        if item is not None
    }


def _json(ns: str, value: Any) -> Any:
    refused: SettingsRefused | None = None
    try:
        taken = snapshot(value)
        _encode(taken)
    except NotLossless as error:
        refused = SettingsRefused(ns, error.path, f"cannot be stored: {error.problem}")
    except UnicodeEncodeError:
        refused = SettingsRefused(ns, "$", "cannot be stored: half a character (a lone surrogate)")
    if refused is not None:
        raise refused
    return taken


def _encode(value: Any) -> None:
    """Raise where a text cannot be written as UTF-8."""
    if isinstance(value, str):
        value.encode("utf-8")
    elif isinstance(value, dict):
        for key, item in value.items():
            key.encode("utf-8")
            _encode(item)
    elif isinstance(value, list):
        for item in value:
            _encode(item)
