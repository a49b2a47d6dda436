"""Files that hold rows: from their text to rows, and back."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from dsh.loader.dump import dump_rows, ordered_row
from dsh.loader.errors import ConfigFileError, LoaderError, PatchError
from dsh.loader.expr import JSON_KEY, Expr
from dsh.loader.rows import ROW_FIELDS, Row, check_rows, is_group, label_of, unknown_fields
from dsh.loader.yaml import load_yaml

SUFFIXES: Final = (".yml", ".yaml", ".json")
"""What a file of rows may be called."""


def check_suffix(path: Path) -> None:
    """Refuse a file that cannot hold rows, by its name.

    Raises:
        LoaderError: the name ends otherwise.
    """
    if path.suffix not in SUFFIXES:
        raise LoaderError(
            f'extension "{path.suffix}" not supported: {path}; use {", ".join(SUFFIXES)}'
        )


def parse_rows(text: str, path: Path) -> list[Row]:
    """Return the rows of a file's text.

    Raises:
        ConfigFileError: it is not YAML or JSON of our dialect, not a list of rows, or a row has
            a field that the loader cannot read or does not know.
    """
    data = _load_json(text, path) if path.suffix == ".json" else load_yaml(text, str(path))
    try:
        rows = check_rows(data, str(path))
        check_known(rows)
    except PatchError as error:
        raise ConfigFileError("validate", str(path), str(error)) from None
    return rows


def render_rows(rows: Sequence[Row], path: Path) -> str:
    """Return rows as the text of a new file."""
    if path.suffix != ".json":
        return dump_rows(rows)
    ordered = [ordered_row(row) for row in rows]
    return json.dumps(ordered, indent=2, ensure_ascii=False, default=_encode) + "\n"


def create_file(path: Path, rows: Sequence[Row]) -> None:
    """Write a file that is not there yet, as one step; one that appears meanwhile stays.

    Raises:
        ConfigFileError: it cannot be written.
    """
    temp = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        try:
            temp.write_text(render_rows(rows, path), encoding="utf-8")
            os.link(temp, path)
        finally:
            temp.unlink(missing_ok=True)
    except FileExistsError:
        return
    except OSError as error:
        problem = (error.strerror or str(error)).lower()
        raise ConfigFileError("write", str(path), problem) from error


def check_known(rows: Sequence[Row]) -> None:
    """Refuse fields that the loader does not read: in a file they are mistakes.

    Raises:
        PatchError: a row has one; names it, and the field that may have been meant.
    """
    for row in rows:
        for remark in unknown_fields(row, ROW_FIELDS):
            raise PatchError(f'row "{label_of(row)}": {remark}; remove it, or correct its name')
        if is_group(row) and isinstance(row.get("config"), list):
            check_known(row["config"])


def _load_json(text: str, path: Path) -> Any:
    def pairs(items: list[tuple[str, Any]]) -> Any:
        found = dict(items)
        if len(found) < len(items):
            names = [name for name, _ in items]
            twice = next(name for name in names if names.count(name) > 1)
            raise ConfigFileError("parse", str(path), f"duplicate key {twice[:60]!r}")
        if set(found) == {JSON_KEY}:
            source = found[JSON_KEY]
            if not isinstance(source, str) or not source.strip():
                raise ConfigFileError("parse", str(path), f"{JSON_KEY} takes an expression")
            return Expr(source)
        return found

    def refuse(name: str) -> NoReturn:
        raise ConfigFileError("parse", str(path), f"{name} is no JSON value")

    try:
        return json.loads(text, object_pairs_hook=pairs, parse_constant=refuse)
    except json.JSONDecodeError as error:
        problem = error.msg[:1].lower() + error.msg[1:]
        raise ConfigFileError(
            "parse", str(path), problem, line=error.lineno, column=error.colno
        ) from None
    except RecursionError as error:
        raise ConfigFileError("parse", str(path), "nested too deeply") from error


def _encode(value: object) -> dict[str, str]:
    if isinstance(value, Expr):
        return value.to_json()
    raise TypeError(f"{type(value).__name__} has no JSON form")
