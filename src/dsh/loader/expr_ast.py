"""The syntax tree of an expression; every node knows its offset in the source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Literal:
    """A number, string, boolean, ``null`` or ``undefined``."""

    value: Any
    at: int


@dataclass(frozen=True, slots=True)
class Name:
    """A free name: a builtin or a service."""

    name: str
    at: int


@dataclass(frozen=True, slots=True)
class Link:
    """One step of a chain: ``.name``, ``[key]`` or ``(arguments)``, perhaps after ``?.``."""

    kind: str
    value: Any
    optional: bool
    at: int


@dataclass(frozen=True, slots=True)
class Chain:
    """A value followed by member reads and calls; an optional step may end it early."""

    base: Any
    links: tuple[Link, ...]
    at: int


@dataclass(frozen=True, slots=True)
class New:
    """``new Name(arguments)``."""

    name: str
    arguments: tuple[Any, ...]
    at: int


@dataclass(frozen=True, slots=True)
class Unary:
    """``!``, ``-`` or ``+`` before an operand."""

    operator: str
    operand: Any
    at: int


@dataclass(frozen=True, slots=True)
class Fold:
    """Operands joined by operators, applied from left to right."""

    first: Any
    rest: tuple[tuple[str, Any, int], ...]
    at: int


@dataclass(frozen=True, slots=True)
class Conditional:
    """``test ? then : otherwise``."""

    test: Any
    then: Any
    otherwise: Any
    at: int


@dataclass(frozen=True, slots=True)
class Array:
    """An array literal."""

    items: tuple[Any, ...]
    at: int


@dataclass(frozen=True, slots=True)
class Object:
    """An object literal with plain or computed keys."""

    items: tuple[tuple[Any, Any], ...]
    at: int


@dataclass(frozen=True, slots=True)
class Template:
    """A template literal: strings and expressions in turn."""

    parts: tuple[Any, ...]
    at: int
