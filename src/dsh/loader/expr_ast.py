"""The syntax tree of an expression; every node knows its offset in the source.

Plain classes: generated ones would cost a boot more than all expressions of a profile do.
"""

from __future__ import annotations

from typing import Any


class Node:
    """One node; its values come in the order of its slots, the offset last."""

    __slots__ = ("at",)

    at: int

    def __init__(self, *values: Any) -> None:
        *own, self.at = values
        for name, value in zip(type(self).__slots__, own, strict=True):
            setattr(self, name, value)


class Literal(Node):
    """A number, string, boolean, ``null`` or ``undefined``."""

    __slots__ = ("value",)

    value: Any


class Name(Node):
    """A free name: a builtin or a service."""

    __slots__ = ("name",)

    name: str


class Link(Node):
    """One step of a chain: ``.name``, ``[key]`` or ``(arguments)``, perhaps after ``?.``."""

    __slots__ = ("kind", "value", "optional")  # noqa: RUF023 - the order of the values

    kind: str
    value: Any
    optional: bool


class Chain(Node):
    """A value followed by member reads and calls; an optional step may end it early."""

    __slots__ = ("base", "links")

    base: Any
    links: tuple[Link, ...]


class New(Node):
    """``new Name(arguments)``."""

    __slots__ = ("name", "arguments")  # noqa: RUF023 - the order of the values

    name: str
    arguments: tuple[Any, ...]


class Unary(Node):
    """``!``, ``-`` or ``+`` before an operand."""

    __slots__ = ("operator", "operand")  # noqa: RUF023 - the order of the values

    operator: str
    operand: Any


class Fold(Node):
    """Operands joined by operators, applied from left to right."""

    __slots__ = ("first", "rest")

    first: Any
    rest: tuple[tuple[str, Any, int], ...]


class Conditional(Node):
    """``test ? then : otherwise``."""

    __slots__ = ("test", "then", "otherwise")  # noqa: RUF023 - the order of the values

    test: Any
    then: Any
    otherwise: Any


class Array(Node):
    """An array literal."""

    __slots__ = ("items",)

    items: tuple[Any, ...]


class Object(Node):
    """An object literal with plain or computed keys."""

    __slots__ = ("items",)

    items: tuple[tuple[Any, Any], ...]


class Template(Node):
    """A template literal: strings and expressions in turn."""

    __slots__ = ("parts",)

    parts: tuple[Any, ...]
