"""What may cross the border between a program and dsh: lossless JSON, in measured text."""

from __future__ import annotations

import json
import os
import sys
from math import copysign, isfinite

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_ENCODER = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), allow_nan=False, check_circular=False
)
MOST_VALUES = 500_000
"""JSON values in one message, and logs of one run: each takes dsh far more than its few bytes."""
_SAFE = 2**53
_PIECE = 4096


class NotJson(Exception):
    """A value cannot be told in JSON without losing something."""


class TooManyValues(NotJson):
    """A value has more parts than a message may have."""

    def __init__(self) -> None:
        super().__init__(f"it holds more than {MOST_VALUES} values")


def encode(value: object) -> bytes:
    """Return a value as compact UTF-8; a lone surrogate as its escape.

    Raises:
        NotJson: the value is not lossless JSON; the text says where and why.
        TooManyValues: it has too many parts.
    """
    _check(value)
    return to_bytes(value)


def to_bytes(value: object) -> bytes:
    """Return as compact UTF-8 what is known to be JSON."""
    try:
        text = _ENCODER.encode(value)
    except RecursionError:
        text = "".join(_deep().encode_deep(value, _ENCODER))
    return text.encode("utf-8", "backslashreplace")


def decode(data: bytes) -> Any:
    """Return what dsh sent."""
    text = data.decode("utf-8", "surrogatepass")
    try:
        return json.loads(text)
    except RecursionError:
        return _deep().read_deep(text, json.loads)


def json_size(text: str) -> int:
    """Return how many bytes a string takes as JSON, without its quotes."""
    return len(_ENCODER.encode(text).encode("utf-8", "backslashreplace")) - 2


def fitting(text: str, max_bytes: int) -> str:
    """Return the longest start of ``text`` whose JSON takes at most ``max_bytes``."""
    end = 0
    while end < len(text):
        size = json_size(text[end : end + _PIECE])
        if size > max_bytes:
            break
        max_bytes -= size
        end += _PIECE
    for character in text[end : end + _PIECE]:
        max_bytes -= json_size(character)
        if max_bytes < 0:
            break
        end += 1
    return text[:end]


def number_problem(value: object) -> str | None:
    """Return what is wrong with a scalar that is meant to be a JSON number, if anything is."""
    if type(value) is float:
        if not isfinite(value):
            return f"{value} is not a JSON number"
        if value == 0.0 and copysign(1.0, value) < 0:
            return "-0.0 is not kept by every reader"
    elif type(value) is int and not -_SAFE <= value <= _SAFE and not _is_double(value):
        return "an integer this large loses digits on the way; pass it as text"
    return None


def _is_double(value: int) -> bool:
    try:
        return int(float(value)) == value
    except OverflowError:
        return False


def _check(root: object) -> None:
    """Walk a value without recursion; ``leave`` entries mark the end of a container."""
    open_containers: set[int] = set()
    found = 1
    work: list[tuple[Any, Any, bool]] = [(root, None, False)]
    while work:
        value, path, leave = work.pop()
        if leave:
            open_containers.discard(id(value))
            continue
        kind = type(value)
        if kind is dict or kind is list:
            if id(value) in open_containers:
                raise NotJson(f"{_name(path)} contains itself")
            open_containers.add(id(value))
            found += len(value)
            if found > MOST_VALUES:
                raise TooManyValues
            work.append((value, None, True))
            members = value.items() if kind is dict else enumerate(value)
            for key, item in members:
                if kind is dict and type(key) is not str:
                    raise NotJson(f"{_name(path)} has the key {_show(key)}, which is not text")
                work.append((item, (path, key), False))
        elif kind is int or kind is float:
            if (problem := number_problem(value)) is not None:
                raise NotJson(f"{_name(path)}: {problem}")
        elif not (value is None or kind is str or kind is bool):
            raise NotJson(f"{_name(path)} is of type {kind.__name__}{_hint(kind)}")


def _hint(kind: type) -> str:
    if issubclass(kind, (tuple, set, frozenset, list)):
        return "; make it a list"
    return "; make it a dict" if issubclass(kind, dict) else ", which JSON does not have"


def _name(path: Any) -> str:
    parts: list[str] = []
    while path is not None and len(parts) < 50:
        path, key = path
        parts.append(f"[{_show(key)}]")
    return "value" + ("..." if path is not None else "") + "".join(reversed(parts))


def _show(key: object) -> str:
    text = repr(key)
    return text if len(text) <= 80 else f"{text[:80]}..."


def _deep() -> Any:
    """The walks of dsh's own JSON without recursion, by path: dsh cannot be imported here."""
    name = "dsh.base.json.deep"
    if (loaded := sys.modules.get(name)) is not None:
        return loaded
    from importlib import util

    path = __file__
    for _ in range(4):
        path = os.path.dirname(path)
    path = os.path.join(path, "base", "json", "deep.py")
    spec = util.spec_from_file_location("_dsh_deep", path)
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[name] = module
    return module
