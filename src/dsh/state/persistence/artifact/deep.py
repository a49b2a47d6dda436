"""Reading JSON that is nested deeper than the interpreter's stack."""

from __future__ import annotations

import re
from typing import Any

from dsh.base.json import loads

_SPACE = re.compile(r"[ \t\n\r]*")
_SCALAR = re.compile(
    r'"(?:[^"\\]|\\.)*"|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null'
)


def loads_any_depth(data: bytes) -> Any:
    """Decode JSON; how deep it may be nested is a question of memory alone.

    Raises:
        ValueError: the data is not JSON.
    """
    try:
        return loads(data)
    except RecursionError:
        return _Reader(data.decode("utf-8", "surrogatepass")).document()


class _Reader:
    """Reads one document with a list in place of the stack."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def document(self) -> Any:
        opened: list[Any] = []
        keys: list[str] = []
        while True:
            if (value := self._enter(opened, keys)) is _OPENED:
                continue
            while opened:
                value = self._place(opened, keys, value)
                if value is _OPENED:
                    break
            else:
                if self._peek():
                    raise ValueError(f"extra data at {self._at}")
                return value

    def _enter(self, opened: list[Any], keys: list[str]) -> Any:
        """Read a scalar or an empty container, or open a container."""
        char = self._peek()
        if char not in ("{", "["):
            return self._scalar()
        self._at += 1
        container: Any = {} if char == "{" else []
        if self._peek() == ("}" if char == "{" else "]"):
            self._at += 1
            return container
        opened.append(container)
        if char == "{":
            keys.append(self._key())
        return _OPENED

    def _place(self, opened: list[Any], keys: list[str], value: Any) -> Any:
        """Put a value into the innermost container; return that once it is complete."""
        container = opened[-1]
        is_object = isinstance(container, dict)
        if is_object:
            container[keys.pop()] = value
        else:
            container.append(value)
        char = self._peek()
        self._at += 1
        if char == ("}" if is_object else "]"):
            return opened.pop()
        if char != ",":
            raise ValueError(f"expected ',' at {self._at - 1}")
        if is_object:
            keys.append(self._key())
        return _OPENED

    def _key(self) -> str:
        if self._peek() != '"':
            raise ValueError(f"expected a key at {self._at}")
        key: str = self._scalar()
        if self._peek() != ":":
            raise ValueError(f"expected ':' at {self._at}")
        self._at += 1
        return key

    def _scalar(self) -> Any:
        match = _SCALAR.match(self._text, self._at)
        if match is None:
            raise ValueError(f"expected a value at {self._at}")
        self._at = match.end()
        return loads(match[0])

    def _peek(self) -> str:
        space = _SPACE.match(self._text, self._at)
        if space is not None:
            self._at = space.end()
        return self._text[self._at : self._at + 1]


_OPENED = object()
"""Stands for a value that is not complete yet."""
