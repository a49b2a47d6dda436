"""JSON that is nested deeper than the interpreter's stack, read and written without recursion."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from json import JSONEncoder

_SPACE: Final = re.compile(r"[ \t\n\r]*+")
_SCALAR: Final = re.compile(
    r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
    r"|-?(?:0|[1-9]\d*+)(?:\.\d++)?(?:[eE][+-]?\d++)?|true|false|null",
    re.ASCII,
)


def read_deep(text: str, read_scalar: Callable[[str], Any]) -> Any:
    """Decode JSON text.

    Args:
        text: The text.
        read_scalar: Decodes text without containers.

    Raises:
        ValueError: the text is not JSON.
    """
    return _Reader(text, read_scalar).document()


def encode_deep(value: Any, encoder: JSONEncoder) -> Iterator[str]:
    """Encode a value in pieces.

    Args:
        value: What to encode.
        encoder: Encodes the parts that are not containers; its ``sort_keys`` is obeyed.
    """
    work: list[Any] = [value]
    while work:
        item = work.pop()
        if type(item) is _Text:
            yield item.text
        elif isinstance(item, dict):
            members = list(item.items())
            if encoder.sort_keys:
                members.sort(key=itemgetter(0))
            work.append(_Text("}"))
            for position, (key, member) in reversed(list(enumerate(members))):
                work += [member, _Text(("," if position else "") + encoder.encode(key) + ":")]
            work.append(_Text("{"))
        elif isinstance(item, list):
            work.append(_Text("]"))
            for position in range(len(item) - 1, -1, -1):
                work += [item[position], _Text("," if position else "")]
            work.append(_Text("["))
        else:
            yield encoder.encode(item)


class _Text:
    """Punctuation on the work list of `encode_deep`."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


class _Reader:
    """Reads one document with a list in place of the stack."""

    def __init__(self, text: str, read_scalar: Callable[[str], Any]) -> None:
        self._text = text
        self._read_scalar = read_scalar
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
        return self._read_scalar(match[0])

    def _peek(self) -> str:
        space = _SPACE.match(self._text, self._at)
        if space is not None:
            self._at = space.end()
        return self._text[self._at : self._at + 1]


_OPENED = object()
"""Stands for a value that is not complete yet."""
