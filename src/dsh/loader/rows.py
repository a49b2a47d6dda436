"""Rows: what configuration says about one plugin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dsh.base.text import did_you_mean
from dsh.loader.aliases import GROUP, canonical
from dsh.loader.errors import PatchError
from dsh.loader.expr import Expr, find_expr

Row = dict[str, Any]
"""One row; `ROW_FIELDS` are the keys that the loader reads."""

ROW_FIELDS: Final = ("id", "name", "config", "group", "disabled", "inject", "isolate", "intercept")
"""The fields of a row, by their names in files."""

PATCH_FIELDS: Final = (*ROW_FIELDS, "insert", "merge")
"""The fields of a patch."""


def is_group(row: Mapping[str, Any]) -> bool:
    """Tell whether a row's config is a list of rows."""
    return bool(row.get("group")) and not isinstance(row.get("group"), Expr)


def holds_rows(row: Mapping[str, Any]) -> bool:
    """Tell whether a row's config, when it is a list, is one of rows."""
    return bool(row.get("group")) or canonical(str(row.get("name"))) == GROUP


def label_of(row: Mapping[str, Any]) -> str:
    """Return how messages call a row: its id, else its name."""
    return str(row.get("id") or row.get("name") or "?")


def check_rows(rows: object, where: str) -> list[Row]:
    """Check the shape of a list of rows, nested ones too.

    Args:
        rows: What a file or a bundle gave.
        where: How errors name the list.

    Raises:
        PatchError: an element is not a row, a field has the wrong type, or an id is there twice,
            be it in another group.
    """
    if not isinstance(rows, list):
        raise PatchError(f"{where} must be a list of rows, got {_kind(rows)}")
    _check_list(rows, where, set())
    return rows


def _check_list(rows: list[Any], where: str, seen: set[str]) -> None:
    for number, row in enumerate(rows, 1):
        _check_row(row, f"row {number} of {where}")
        own = row.get("id")
        if own in seen:
            raise PatchError(f'duplicate row id "{own}" in {where}')
        if own is not None:
            seen.add(own)
        if holds_rows(row) and isinstance(row.get("config"), list):
            _check_list(row["config"], f'group "{label_of(row)}"', seen)


def _check_row(row: object, where: str) -> None:
    if not isinstance(row, dict):
        raise PatchError(f"{where} must be a mapping, got {_kind(row)}")
    name = row.get("name")
    if isinstance(name, Expr):
        _check_literal(row, where)
    if not isinstance(name, str) or not name:
        raise PatchError(f'{where} ("{label_of(row)}") needs a name, the plugin that it mounts')
    check_fields(row, f'row "{label_of(row)}"')
    if row.get("id") == "":
        raise PatchError(f"{where} has an empty id; leave id out, or give it one")


def check_fields(row: Mapping[str, Any], where: str) -> None:
    """Check the types of the fields that a row or patch has.

    Raises:
        PatchError: a field holds what the loader cannot read.
    """
    for field, value in row.items():
        allowed = _TYPES.get(field)
        if value is not None and allowed is not None and not isinstance(value, allowed[0]):
            raise PatchError(f"{where}: {field} must be {allowed[1]}, got {_kind(value)}")
        if isinstance(value, list) and field == "inject":
            _check_items(where, "a name in inject", value, (str,), "a text")
        elif isinstance(value, dict) and field in _ITEMS:
            for name, item in value.items():
                _check_items(where, f"{field}.{name}", [item], *_ITEMS[field])
    _check_literal(row, where)


def _check_literal(row: Mapping[str, Any], where: str) -> None:
    """Refuse an expression where none is evaluated: as data it would just count as true."""
    for field in _LITERAL:
        if (at := find_expr(row.get(field), field)) is not None:
            raise PatchError(
                f"{where}: {at} is an expression, and these are evaluated in config and in "
                "disabled only; write the value itself"
            )


def _check_items(
    where: str, what: str, items: list[Any], types: tuple[type, ...], shown: str
) -> None:
    for item in items:
        if not isinstance(item, types):
            raise PatchError(f"{where}: {what} must be {shown}, got {_kind(item)}")


def unknown_fields(row: Mapping[str, Any], known: tuple[str, ...]) -> list[str]:
    """Return a remark for each field that the loader does not read."""
    return [f"unknown field {key!r}{did_you_mean(key, known)}" for key in row if key not in known]


_LITERAL: Final = ("id", "name", "group", "inject", "isolate", "intercept")
_TYPES: Final[dict[str, tuple[tuple[type, ...], str]]] = {
    "id": ((str,), "a text"),
    "name": ((str,), "a text"),
    "group": ((bool,), "true or false"),
    "disabled": ((bool, Expr), "true, false or an expression"),
    "inject": ((list, dict), "a list or a mapping of services"),
    "isolate": ((dict,), "a mapping of services to labels"),
    "intercept": ((dict,), "a mapping of services to configs"),
    "merge": ((dict,), "a mapping of config fields"),
}

_CONFIG: Final = ((dict, type(None)), "a mapping or nothing")
_ITEMS: Final[dict[str, tuple[tuple[type, ...], str]]] = {
    "inject": _CONFIG,
    "isolate": ((bool, str), "true or a label"),
    "intercept": _CONFIG,
}


def _kind(value: object) -> str:
    if value is None:
        return "nothing"
    names = {bool: "a boolean", str: "a text", list: "a list", dict: "a mapping"}
    return names.get(type(value), "an expression" if isinstance(value, Expr) else "a number")


def same(left: object, right: object) -> bool:
    """Tell whether two configuration values are equal, and of equal types all through.

    Unlike with ``==``, ``1``, ``1.0`` and ``true`` are three values, and a NaN is one.
    """
    if left is right:
        return True
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        assert isinstance(right, dict)  # of the same type
        return left.keys() == right.keys() and all(
            same(value, right[key]) for key, value in left.items()
        )
    if isinstance(left, list):
        assert isinstance(right, list)  # of the same type
        return len(left) == len(right) and all(map(same, left, right))
    return left == right or (left != left and right != right)
