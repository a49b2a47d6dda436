"""Reads untyped YAML into typed values, and names the place of every mistake."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NoReturn, cast

from dsh.base.errors import DshError
from dsh.base.json import NotLossless, snapshot, thaw
from dsh.base.text import did_you_mean

__all__ = ["Node", "ScriptError"]


class ScriptError(DshError, ValueError):
    """A rehearsal script is wrong, or a conversation left the script.

    Attributes:
        place: Where in the script, for example ``replies[2].expect[0]``.
    """

    code = "REHEARSAL_SCRIPT"

    def __init__(self, place: str, problem: str, *, code: str | None = None) -> None:
        super().__init__(f"{place}: {problem}", code=code)
        self.place = place
        self.problem = problem


class Node:
    """A value of the document and its place in it."""

    __slots__ = ("place", "value")

    def __init__(self, value: Any, place: str) -> None:
        self.value = value
        self.place = place

    def fail(self, problem: str) -> NoReturn:
        """Raise for this place."""
        raise ScriptError(self.place, problem)

    def fields(self, *known: str) -> Mapping[str, Node]:
        """Return the members of a mapping whose keys are all ``known``."""
        if not isinstance(self.value, Mapping):
            self.fail(f"must be a mapping, not {_kind(self.value)}")
        for key in self.value:
            if key not in known:
                hint = did_you_mean(str(key), known) or f"; known are {', '.join(known)}"
                self.fail(f"unknown key {key!r}{hint}")
        prefix = "" if self.place == "script" else f"{self.place}."
        return {key: Node(item, f"{prefix}{key}") for key, item in self.value.items()}

    def items(self) -> list[Node]:
        """Return the items of a list."""
        if not isinstance(self.value, list):
            self.fail(f"must be a list, not {_kind(self.value)}")
        return [Node(item, f"{self.place}[{at}]") for at, item in enumerate(self.value)]

    def one_or_many(self) -> list[Node]:
        """Return the items of a list, or the one value that stands for a list of one."""
        return self.items() if isinstance(self.value, list) else [self]

    def texts(self) -> tuple[str, ...]:
        """Return one text or a list of texts."""
        return tuple(item.text() for item in self.one_or_many())

    def text(self) -> str:
        """Return a text; numbers are taken as they are written."""
        if isinstance(self.value, bool) or not isinstance(self.value, (str, int, float)):
            self.fail(f"must be text, not {_kind(self.value)}")
        return str(self.value)

    def line(self) -> str:
        """Return a text that can stand in an HTTP header."""
        text = self.text()
        if not text.isprintable() or not text.isascii():
            self.fail(f"must be one line of plain ASCII, not {text!r}")
        return text

    def json_object(self) -> dict[str, Any]:
        """Return a mapping that is JSON throughout; YAML has dates and the like as well."""
        try:
            value = snapshot(self.value)
        except NotLossless as error:
            self.fail(f"is not JSON: {error.problem} at {error.path}")
        return cast("dict[str, Any]", thaw(value))

    def flag(self) -> bool:
        """Return a truth value."""
        if not isinstance(self.value, bool):
            self.fail(f"must be true or false, not {_kind(self.value)}")
        return self.value

    def whole(self, *, least: int = 0) -> int:
        """Return a whole number of at least ``least``."""
        if type(self.value) is not int or self.value < least:
            self.fail(f"must be a whole number of at least {least}, not {self.value!r}")
        return self.value

    def number(self) -> float:
        """Return a number that is not negative."""
        if type(self.value) not in (int, float) or not 0 <= self.value < math.inf:
            self.fail(f"must be a number of at least 0, not {self.value!r}")
        return float(self.value)

    def choice(self, *options: str) -> str:
        """Return one of ``options``."""
        if self.value not in options:
            hint = did_you_mean(str(self.value), options)
            self.fail(f"must be one of {', '.join(options)}, not {self.value!r}{hint}")
        return str(self.value)


def _kind(value: object) -> str:
    names = {dict: "a mapping", list: "a list", str: "text", bool: "a truth value"}
    return "nothing" if value is None else names.get(type(value), type(value).__name__)
