"""Sets of characters in the dialect of ripgrep, as Python expressions that match one character.

Two kinds of characters never match: the line feed, because a match never spans lines, and the
lone surrogates that stand for invalid bytes, because ripgrep matches text.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass, field
from functools import lru_cache

LINE_FEED = 10
_NEVER = "\\n\\ud800-\\udfff"
_CAN_MATCH = ((0, LINE_FEED - 1), (LINE_FEED + 1, 0xD7FF), (0xE000, 0x10FFFF))
ANY = f"[^{_NEVER}]"
"""Any character."""

SPACE = "\\t\\x0b-\\r \\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000"
"""White space, as the content of a set."""

POSIX: dict[str, str] = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "ascii": "\\x00-\\x09\\x0b-\\x7f",
    "blank": "\\t ",
    "cntrl": "\\x00-\\x09\\x0b-\\x1f\\x7f",
    "digit": "0-9",
    "graph": "!-~",
    "lower": "a-z",
    "print": " -~",
    "punct": "!-/:-@\\[-`{-~",
    "space": "\\t\\x0b-\\r ",
    "upper": "A-Z",
    "word": "0-9A-Za-z_",
    "xdigit": "0-9A-Fa-f",
}
"""The named sets of ASCII, as contents of a set."""

_LONG_NAMES = {
    "letter": "L",
    "casedletter": "LC",
    "uppercaseletter": "Lu",
    "lowercaseletter": "Ll",
    "titlecaseletter": "Lt",
    "modifierletter": "Lm",
    "otherletter": "Lo",
    "mark": "M",
    "nonspacingmark": "Mn",
    "spacingmark": "Mc",
    "enclosingmark": "Me",
    "number": "N",
    "decimalnumber": "Nd",
    "digit": "Nd",
    "letternumber": "Nl",
    "othernumber": "No",
    "punctuation": "P",
    "punct": "P",
    "symbol": "S",
    "mathsymbol": "Sm",
    "currencysymbol": "Sc",
    "separator": "Z",
    "spaceseparator": "Zs",
    "other": "C",
    "control": "Cc",
    "format": "Cf",
    "alphabetic": "alphabetic",
    "alpha": "alphabetic",
    "lowercase": "lowercase",
    "lower": "lowercase",
    "uppercase": "uppercase",
    "upper": "uppercase",
    "any": "any",
}


@dataclass
class CharSet:
    """A set under construction."""

    ranges: str = ""
    """Content of a Python set."""
    others: list[str] = field(default_factory=list)
    """Expressions of one character that fit into no set."""

    def add(self, other: CharSet) -> None:
        """Join another set to this one."""
        self.ranges += other.ranges
        self.others += other.others

    def expression(self) -> str:
        """Return what matches one character of the set."""
        branches = ([f"[{self.ranges}]"] if self.ranges else []) + self.others
        if not branches:
            return "(?!)"
        return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"

    def negated(self) -> CharSet:
        """Return all other characters."""
        if not self.others:
            return CharSet(others=[f"[^{self.ranges}{_NEVER}]"])
        return CharSet(others=[f"(?:(?!{self.expression()}){ANY})"])

    def minus(self, other: CharSet) -> CharSet:
        """Return the characters that are not in ``other``."""
        return CharSet(others=[f"(?:(?!{other.expression()}){self.expression()})"])

    def common(self, other: CharSet) -> CharSet:
        """Return the characters that are in both."""
        return CharSet(others=[f"(?:(?={other.expression()}){self.expression()})"])


def code(char: int) -> str:
    """Write a character so that it is literal inside and outside of a set."""
    text = chr(char)
    if text.isascii() and (text.isalnum() or text == "_"):
        return text
    return f"\\x{char:02x}" if char < 0x100 else f"\\u{char:04x}" if char < 0x10000 else text


def span(low: int, high: int) -> CharSet:
    """Return a range of characters, without those that never match."""
    pieces = []
    for first, last in _CAN_MATCH:
        start, end = max(low, first), min(high, last)
        if start == end:
            pieces.append(code(start))
        elif start < end:
            pieces.append(f"{code(start)}-{code(end)}")
    return CharSet("".join(pieces))


def perl_class(letter: str) -> CharSet:
    r"""Return the set of ``\d``, ``\s``, ``\w`` or of its opposite."""
    kind = letter.lower()
    contents = SPACE if kind == "s" else "\\d" if kind == "d" else "\\w" + _combining_marks()
    positive = CharSet(contents)
    return positive.negated() if letter.isupper() else positive


def property_class(name: str) -> CharSet | None:
    r"""Return the set of ``\p{name}``; ``None`` when it is not known here."""
    plain = name.lower().replace("_", "").replace("-", "").replace(" ", "")
    for prefix in ("gc=", "generalcategory="):
        plain = plain.removeprefix(prefix)
    wanted = _LONG_NAMES.get(plain, plain[:1].upper() + plain[1:])
    ranges = _ranges(wanted)
    return CharSet(ranges) if ranges else None


@lru_cache
def _combining_marks() -> str:
    """The marks of living scripts; looking through all planes would take too long."""
    blocks = ((0x0300, 0x3100), (0xA600, 0xAC00), (0xFB00, 0xFE30))
    return "".join(_ranges("M", low, high) for low, high in blocks)


@lru_cache
def _ranges(wanted: str, low: int = 0, high: int = 0x110000) -> str:
    spans: list[str] = []
    start = -1
    for number in range(low, high + 1):
        inside = number < high and _has(chr(number), wanted)
        if inside and start < 0:
            start = number
        elif not inside and start >= 0:
            spans.append(span(start, number - 1).ranges)
            start = -1
    return "".join(spans)


def _has(char: str, wanted: str) -> bool:
    category = unicodedata.category(char)
    match wanted:
        case "any":
            return True
        case "alphabetic":
            return category[0] == "L" or category == "Nl"
        case "lowercase":
            return char.islower()
        case "uppercase":
            return char.isupper()
        case "LC":
            return category in ("Lu", "Ll", "Lt")
    return category.startswith(wanted)
