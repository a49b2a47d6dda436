"""Patterns in the dialect of ripgrep, translated for Python's ``re``.

Only whether a line matches counts, so greediness and captures are dropped on the way.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from .chars import ANY, LINE_FEED, POSIX, CharSet, code, perl_class, property_class, span

_CONTROLS = {"a": 7, "f": 12, "n": LINE_FEED, "r": 13, "t": 9, "v": 11}
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}
_MAX_COUNT = 100_000
_LINE_FEED_REFUSED = "the literal '\"\\n\"' is not allowed in a regex"


class BadPattern(Exception):
    """A pattern that ripgrep would not take either, or that only it understands."""


@dataclass(frozen=True, slots=True)
class _Flags:
    ignore_case: bool = False
    verbose: bool = False


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Translate and compile a pattern.

    Raises:
        BadPattern: it is malformed, or needs what only ripgrep has.
    """
    try:
        return re.compile(_Parser(pattern).translate(), re.MULTILINE)
    except (re.error, OverflowError, RecursionError) as error:
        raise BadPattern(f"the pattern is too complex here ({error})") from error


class _Parser:
    def __init__(self, pattern: str) -> None:
        self._text = pattern
        self._at = 0
        self._depth = 0
        self._names: set[str] = set()

    def translate(self) -> str:
        made, _ = self._alternation(_Flags())
        if self._at < len(self._text):
            raise BadPattern("unopened group")
        return made

    def _peek(self, length: int = 1) -> str:
        return self._text[self._at : self._at + length]

    def _take(self) -> str:
        char = self._peek()
        self._at += 1
        return char

    def _accept(self, text: str) -> bool:
        if self._text.startswith(text, self._at):
            self._at += len(text)
            return True
        return False

    def _alternation(self, flags: _Flags) -> tuple[str, _Flags]:
        branches, current = list[str](), list[str]()
        while True:
            if flags.verbose and self._skip_space():
                continue
            char = self._peek()
            if char in ("", ")"):
                break
            if char == "|":
                self._at += 1
                branches.append("".join(current))
                current = []
            elif (switched := self._flag_switch(flags)) is not None:
                flags = switched
            else:
                current.append(self._repeated(self._atom(flags), flags))
        return "|".join([*branches, "".join(current)]), flags

    def _skip_space(self) -> bool:
        char = self._peek()
        if char == "#":
            end = self._text.find("\n", self._at)
            self._at = len(self._text) if end < 0 else end
            return True
        if char and char.isspace():
            self._at += 1
            return True
        return False

    def _flag_switch(self, flags: _Flags) -> _Flags | None:
        """Read ``(?flags)``, which holds up to the end of the group."""
        found = re.compile(r"\(\?([a-zA-Z-]+)\)").match(self._text, self._at)
        if found is None:
            return None
        self._at = found.end()
        return _changed(flags, found[1])

    def _repeated(self, atom: str, flags: _Flags) -> str:
        while True:
            while flags.verbose and self._skip_space():
                pass
            char = self._peek()
            if char in ("*", "+", "?"):
                self._at += 1
                count = char
            elif char == "{":
                self._at += 1
                count = self._count()
            else:
                return atom
            self._accept("?")
            atom = f"(?:{atom}){count}"

    def _count(self) -> str:
        found = re.compile(r"\s*(\d+)\s*(?:(,)\s*(\d*)\s*)?\}").match(self._text, self._at)
        if found is None:
            closed = "}" in self._text[self._at :]
            raise BadPattern(
                "repetition quantifier expects a valid decimal"
                if closed
                else "unclosed counted repetition"
            )
        self._at = found.end()
        low, comma, high = found.groups()
        if high and int(low) > int(high):
            raise BadPattern("invalid repetition count range, the start must be <= the end")
        if max(int(low), int(high or 0)) > _MAX_COUNT:
            raise BadPattern("compiled regex exceeds size limit")
        return f"{{{low}{comma or ''}{high or ''}}}"

    def _atom(self, flags: _Flags) -> str:
        char = self._take()
        if char == "(":
            return self._group(flags)
        if char in ("*", "+", "?", "{"):
            raise BadPattern("repetition operator missing expression")
        if char == ".":
            return ANY
        if char in ("^", "$"):
            return char
        if char == "[":
            return _cased(self._set(flags).expression(), flags)
        if char == "\\":
            return self._escape(flags)
        return _cased(_literal(ord(char)), flags)

    def _group(self, flags: _Flags) -> str:
        self._depth += 1
        if self._depth > 200:
            raise BadPattern("the pattern is nested too deeply")
        if self._peek() == "?":
            flags = self._group_head(flags)
        inner, _ = self._alternation(flags)
        if not self._accept(")"):
            raise BadPattern("unclosed group")
        self._depth -= 1
        return f"(?:{inner})"

    def _group_head(self, flags: _Flags) -> _Flags:
        if self._peek(2) in ("?=", "?!") or self._peek(3) in ("?<=", "?<!"):
            raise BadPattern("look-around, including look-ahead and look-behind, is not supported")
        if found := re.compile(r"\?P?<([^>]*)>").match(self._text, self._at):
            self._at = found.end()
            self._name_group(found[1])
            return flags
        if found := re.compile(r"\?([a-zA-Z-]*):").match(self._text, self._at):
            self._at = found.end()
            return _changed(flags, found[1])
        raise BadPattern("unrecognized flag")

    def _name_group(self, name: str) -> None:
        if not re.fullmatch(r"[^\W\d][\w.\[\]]*", name):
            raise BadPattern("invalid capture group name" if name else "empty capture group name")
        if name in self._names:
            raise BadPattern("duplicate capture group name")
        self._names.add(name)

    def _escape(self, flags: _Flags) -> str:
        char = self._take()
        if not char:
            raise BadPattern("incomplete escape sequence, reached end of pattern prematurely")
        if char == "b" and (found := re.compile(r"\{(start|end)\}").match(self._text, self._at)):
            self._at = found.end()
            char = "<" if found[1] == "start" else ">"
        match char:
            case "b" | "B":
                return f"\\{char}"
            case "A":
                return "^"
            case "z":
                return "$"
            case "<":
                return r"(?:\b(?=\w))"
            case ">":
                return r"(?:\b(?<=\w))"
        if (found_set := self._class_escape(char)) is not None:
            return _cased(found_set.expression(), flags)
        return _cased(_literal(self._character(char)), flags)

    def _class_escape(self, char: str) -> CharSet | None:
        if char in "dDsSwW":
            return perl_class(char)
        if char not in "pP":
            return None
        name = self._take()
        if name == "{":
            end = self._text.find("}", self._at)
            if end < 0:
                raise BadPattern("incomplete escape sequence, reached end of pattern prematurely")
            name, self._at = self._text[self._at : end], end + 1
        found = property_class(name)
        if found is None:
            raise BadPattern("Unicode property not found")
        return found.negated() if char == "P" else found

    def _character(self, char: str) -> int:
        """Return the character that an escape stands for."""
        if char in _CONTROLS:
            return _CONTROLS[char]
        if char in _HEX_DIGITS:
            return self._hexadecimal(_HEX_DIGITS[char])
        if char.isdigit():
            raise BadPattern("backreferences are not supported")
        if char.isalnum() or not char.isascii():
            raise BadPattern("unrecognized escape sequence")
        return ord(char)

    def _hexadecimal(self, digits: int) -> int:
        expression = r"\{([0-9A-Fa-f]+)\}" if self._peek() == "{" else f"([0-9A-Fa-f]{{{digits}}})"
        found = re.compile(expression).match(self._text, self._at)
        if found is None:
            raise BadPattern("invalid hexadecimal digit")
        self._at = found.end()
        number = int(found[1], 16)
        if number > 0x10FFFF or 0xD800 <= number < 0xE000:
            raise BadPattern("hexadecimal literal is not a Unicode scalar value")
        return number

    def _set(self, flags: _Flags) -> CharSet:
        negated = self._accept("^")
        made = self._set_items(flags, first=True)
        while (operator := self._peek(2)) in ("&&", "--", "~~"):
            self._at += 2
            other = self._set_items(flags, first=False)
            if operator == "&&":
                made = made.common(other)
            elif operator == "--":
                made = made.minus(other)
            else:
                either = made.minus(other)
                either.add(other.minus(made))
                made = either
        if not self._accept("]"):
            raise BadPattern("unclosed character class")
        return made.negated() if negated else made

    def _set_items(self, flags: _Flags, *, first: bool) -> CharSet:
        made = CharSet()
        while first or (self._peek() not in ("", "]") and self._peek(2) not in ("&&", "--", "~~")):
            if not self._peek():
                break
            if flags.verbose and self._skip_space():
                continue
            made.add(self._set_item(flags))
            first = False
        return made

    def _set_item(self, flags: _Flags) -> CharSet:
        if self._peek() == "[":
            return self._inner_set(flags)
        low = self._set_member()
        if isinstance(low, CharSet):
            return low
        if self._peek() != "-" or self._peek(2) in ("-", "-]", "--"):
            return span(low, low)
        self._at += 1
        high = self._set_member()
        if isinstance(high, CharSet):
            raise BadPattern("invalid range boundary, must be a literal")
        if low > high:
            raise BadPattern("invalid character class range, the start must be <= the end")
        return span(low, high)

    def _inner_set(self, flags: _Flags) -> CharSet:
        named = re.compile(r"\[:(\^?)([a-z]+):\]").match(self._text, self._at)
        if named and named[2] in POSIX:
            self._at = named.end()
            found = CharSet(POSIX[named[2]])
            return found.negated() if named[1] else found
        self._at += 1
        return self._set(flags)

    def _set_member(self) -> int | CharSet:
        char = self._take()
        if not char:
            raise BadPattern("unclosed character class")
        if char != "\\":
            if char == "\n":
                raise BadPattern(_LINE_FEED_REFUSED)
            return ord(char)
        escaped = self._take()
        if not escaped:
            raise BadPattern("unclosed character class")
        return self._class_escape(escaped) or self._character(escaped)


def _changed(flags: _Flags, letters: str) -> _Flags:
    on = True
    for letter in letters:
        if letter == "-":
            on = False
        elif letter == "i":
            flags = replace(flags, ignore_case=on)
        elif letter == "x":
            flags = replace(flags, verbose=on)
        elif letter in "uR":
            raise BadPattern(f"the flag {letter!r} needs ripgrep, which is not installed")
        elif letter not in "msU":
            raise BadPattern("unrecognized flag")
    return flags


def _literal(char: int) -> str:
    if char == LINE_FEED:
        raise BadPattern(_LINE_FEED_REFUSED)
    return code(char)


def _cased(expression: str, flags: _Flags) -> str:
    return f"(?i:{expression})" if flags.ignore_case else expression
