"""Split an expression into tokens: the part of JavaScript's lexis that configuration uses."""

from __future__ import annotations

import math
import re
from typing import Any, Final

from dsh.loader.errors import ExprError

MAX_SOURCE: Final = 8_192
"""Longest expression, in characters."""

MAX_TEMPLATES: Final = 8
"""How deep templates may sit in the holes of templates."""

_PUNCTUATION = (
    "===", "!==", "?.", "??", "&&", "||", "==", "!=", "<=", ">=",
    "(", ")", "[", "]", "{", "}", ",", ":", "?", ".", "!", "<", ">", "+", "-", "*", "/", "%",
)  # fmt: skip
_SPACE = re.compile(r"[\s\ufeff]+|//[^\n]*|/\*.*?\*/", re.DOTALL)
_NUMBER = re.compile(
    r"0[xX][0-9a-fA-F]+|0[oO][0-7]+|0[bB][01]+|(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?",
    re.ASCII,
)
_NAME = re.compile(r"[A-Za-z_$][\w$]*")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "0": "\0"}
_HEX = re.compile(r"u\{([0-9a-fA-F]{1,6})\}|u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})")


class Token:
    """One token: ``kind`` is name, number, string, template, punctuation or end."""

    __slots__ = ("at", "kind", "value")

    def __init__(self, kind: str, value: Any, at: int) -> None:
        self.kind, self.value, self.at = kind, value, at

    def __repr__(self) -> str:
        return f"Token({self.kind!r}, {self.value!r}, {self.at})"


class Hole:
    """The source of one ``${...}`` in a template, with its offset in the whole expression."""

    __slots__ = ("at", "source")

    def __init__(self, source: str, at: int) -> None:
        self.source, self.at = source, at


def tokenize(source: str, start: int = 0, end: int | None = None) -> list[Token]:
    """Return the tokens of ``source[start:end]``, ending with one of kind ``end``.

    Raises:
        ExprError: a character or literal that is not part of the language, or too long a text.
    """
    if len(source) > MAX_SOURCE:
        problem = f"the expression is longer than {MAX_SOURCE} characters"
        raise ExprError(problem, source, MAX_SOURCE + 1)
    stop = len(source) if end is None else end
    tokens: list[Token] = []
    at = start
    while True:
        space = _SPACE.match(source, at, stop)
        if space is not None:
            at = space.end()
            continue
        if at >= stop:
            tokens.append(Token("end", "", at))
            return tokens
        token, at = _next(source, at, stop)
        tokens.append(token)


def _next(source: str, at: int, stop: int) -> tuple[Token, int]:
    char = source[at]
    if source.startswith("/*", at, stop):
        raise ExprError("unterminated comment", source, at + 1)
    if char in "'\"":
        return _string(source, at, stop)
    if char == "`":
        return _template(source, at, stop)
    if (number := _NUMBER.match(source, at, stop)) is not None and char not in "+-":
        return _number(source, number)
    if (name := _NAME.match(source, at, stop)) is not None:
        return Token("name", name[0], at), name.end()
    for mark in _PUNCTUATION:
        if source.startswith(mark, at, stop):
            # `a?.5:b` is a ternary, not an optional chain.
            if mark == "?." and source[at + 2 : at + 3].isdigit():
                continue
            return Token("punctuation", mark, at), at + len(mark)
    raise ExprError(f"unsupported character {char!r}", source, at + 1)


def _number(source: str, match: re.Match[str]) -> tuple[Token, int]:
    text, end = match[0], match.end()
    if _NAME.match(source, end) is not None:
        raise ExprError("a number must not run into a name", source, end + 1)
    value: int | float
    if text[:2].lower() in {"0x", "0o", "0b"}:
        value = int(text, 0)
    elif len(text) > 1 and text.isdigit() and text.startswith("0"):
        raise ExprError("octal literals are not supported", source, match.start() + 1)
    else:
        value = float(text)
    return Token("number", tidy(value), match.start()), end


def tidy(value: float) -> int | float:
    """Return a JavaScript number as Python spells it: whole ones as int."""
    try:
        number = float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    if number.is_integer() and abs(number) <= 2**53:
        return int(number)
    return number


def _string(source: str, at: int, stop: int) -> tuple[Token, int]:
    quote = source[at]
    parts: list[str] = []
    here = at + 1
    while here < stop:
        char = source[here]
        if char == quote:
            return Token("string", "".join(parts), at), here + 1
        if char == "\n":
            break
        if char == "\\":
            text, here = _escape(source, here, stop)
            parts.append(text)
        else:
            parts.append(char)
            here += 1
    raise ExprError("unterminated string", source, at + 1)


def _escape(source: str, at: int, stop: int) -> tuple[str, int]:
    if at + 1 >= stop:
        raise ExprError("unterminated string", source, at + 1)
    char = source[at + 1]
    if char == "\n":
        return "", at + 2
    if char in "ux":
        match = _HEX.match(source, at + 1, stop)
        code = int(match[1] or match[2] or match[3], 16) if match is not None else -1
        if match is None or code > 0x10FFFF:
            raise ExprError("invalid escape", source, at + 1)
        return chr(code), match.end()
    if char.isdigit() and (char != "0" or source[at + 2 : at + 3].isdigit()):
        raise ExprError("octal escapes are not supported", source, at + 1)
    return _ESCAPES.get(char, char), at + 2


def _template(source: str, at: int, stop: int, depth: int = 0) -> tuple[Token, int]:
    if depth > MAX_TEMPLATES:
        raise ExprError("templates are nested too deeply", source, at + 1)
    parts: list[str | Hole] = []
    text: list[str] = []
    here = at + 1
    while here < stop:
        char = source[here]
        if char == "`":
            parts.append("".join(text))
            return Token("template", parts, at), here + 1
        if char == "\\":
            piece, here = _escape(source, here, stop)
            text.append(piece)
        elif source.startswith("${", here, stop):
            end = _hole_end(source, here + 2, stop, at, depth)
            parts.append("".join(text))
            text.clear()
            parts.append(Hole(source[here + 2 : end], here + 2))
            here = end + 1
        else:
            text.append(char)
            here += 1
    raise ExprError("unterminated template", source, at + 1)


def _hole_end(source: str, at: int, stop: int, template_at: int, depth: int) -> int:
    """Find the brace that closes a hole; strings and templates inside hide theirs."""
    braces, here = 0, at
    while here < stop:
        char = source[here]
        if char in "'\"":
            _, here = _string(source, here, stop)
        elif char == "`":
            _, here = _template(source, here, stop, depth + 1)
        elif char == "/" and (comment := _SPACE.match(source, here, stop)) is not None:
            here = comment.end()
        elif char == "}" and braces == 0:
            return here
        else:
            braces += {"{": 1, "}": -1}.get(char, 0)
            here += 1
    raise ExprError("unterminated template", source, template_at + 1)
