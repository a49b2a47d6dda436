"""Texts of documents as plain JSON data; what is wrong is told without quoting any of it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NoReturn

from dsh.base.json import FrozenDict, NotLossless, snapshot
from dsh.state.documents.errors import DocumentError

__all__ = ["EMPTY", "parse_json", "parse_yaml", "render_json"]

EMPTY: Final[Mapping[str, Any]] = FrozenDict()

_SIGN: Final = re.compile(r"'([^\w'\"\\]{1,2})'")
_QUOTE: Final = re.compile(r"['\"{\\]")

Parse = Callable[[str, Path, str], Mapping[str, Any]]


def parse_yaml(text: str, path: Path, what: str) -> Mapping[str, Any]:
    """Return the mapping that a YAML text holds; a text without content is an empty one.

    Raises:
        DocumentError: it is not YAML of our dialect, not a mapping, or holds what is not JSON.
    """
    if not text.strip():
        return EMPTY
    from dsh.loader.errors import ConfigFileError
    from dsh.loader.yaml import load_yaml

    found: DocumentError | None = None
    data: Any = None
    try:
        data = load_yaml(text, str(path), what=what)
    except ConfigFileError as error:
        found = DocumentError(
            path, _unquoted(error.problem), what=what, line=error.line, column=error.column
        )
    if found is not None:
        # Raised out here, it does not refer to the parser's error, which may quote a secret.
        raise found
    return _mapping(data, path, what)


def parse_json(text: str, path: Path, what: str) -> Mapping[str, Any]:
    """Return the object that a JSON text holds; a text without content is an empty one.

    Raises:
        DocumentError: it is not JSON, not an object, or repeats a key.
    """
    if not text.strip():
        return EMPTY
    found: DocumentError | None = None
    data: Any = None
    try:
        data = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        problem = _unquoted(error.msg)
        found = DocumentError(path, problem, what=what, line=error.lineno, column=error.colno)
    except ValueError as error:
        found = DocumentError(path, str(error), what=what)
    except RecursionError:
        found = DocumentError(path, "nested too deeply", what=what)
    if found is not None:
        raise found
    return _mapping(data, path, what)


def render_json(data: Mapping[str, Any]) -> str:
    """Return a JSON text that people can edit."""
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def _mapping(data: Any, path: Path, what: str) -> Mapping[str, Any]:
    if data is None:
        return EMPTY
    if not isinstance(data, dict):
        raise DocumentError(path, "it must be a mapping of names to values", what=what)
    place = ""
    try:
        taken: Mapping[str, Any] = snapshot(data)
    except NotLossless as error:
        place = error.path
    if place:
        problem = (
            f"the value at {place} is no JSON value (an expression, infinity, or not a number)"
        )
        raise DocumentError(path, problem, what=what)
    return taken


def _unquoted(problem: str) -> str:
    """Cut a parser's sentence before it quotes from the text; a sign like ',' may stay."""
    marked = _SIGN.sub("\0\\1\0", problem)
    cut = _QUOTE.split(marked, maxsplit=1)[0]
    return cut.replace("\0", "'").strip(" ,:;") or "not readable"


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("duplicate key")
    return members


def _no_constant(_: str) -> NoReturn:
    raise ValueError("a number is not finite")
