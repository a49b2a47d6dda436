"""Globs as ripgrep reads them: one glob to a regular expression, and lists of ignore rules."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

Verdict = Literal["ignore", "whitelist"]


class BadGlob(Exception):
    """A glob that cannot be read."""


class Rule(NamedTuple):
    """One line of an ignore file, or one override."""

    regex: re.Pattern[bytes]
    whitelist: bool
    folders_only: bool


def parse_rule(line: bytes) -> Rule | None:
    """Read one line of an ignore file; ``None`` for a comment or a blank.

    Raises:
        BadGlob: the glob is malformed.
    """
    if line.startswith(b"#"):
        return None
    if not line.endswith(b"\\ "):
        line = line.rstrip()
    if not line:
        return None
    whitelist = anchored = False
    if line.startswith((b"\\!", b"\\#")):
        line = line[1:]
        anchored = line.startswith(b"/")
    else:
        if line.startswith(b"!"):
            whitelist, line = True, line[1:]
        if line.startswith(b"/"):
            anchored, line = True, line[1:]
    folders_only = line.endswith(b"/")
    if folders_only:
        line = line[:-1].removesuffix(b"\\")
    if not anchored and b"/" not in line and not line.startswith(b"**/") and line != b"**":
        line = b"**/" + line
    if line == b"**":
        line = b"**/*"
    elif line.endswith(b"/**"):
        line += b"/*"
    return Rule(compile_glob(line), whitelist, folders_only)


def match_rules(rules: list[Rule], path: bytes, is_folder: bool) -> Verdict | None:
    """Return what the last matching rule says of a path relative to the rules' folder."""
    for rule in reversed(rules):
        if (is_folder or not rule.folders_only) and rule.regex.fullmatch(path):
            return "whitelist" if rule.whitelist else "ignore"
    return None


def compile_glob(glob: bytes) -> re.Pattern[bytes]:
    """Return the expression that a whole path must match.

    Raises:
        BadGlob: the glob is malformed.
    """
    return re.compile(_Translator(glob).translate(), re.DOTALL)


class _Translator:
    def __init__(self, glob: bytes) -> None:
        self._glob = glob
        self._at = 0
        self._depth = 0

    def translate(self) -> bytes:
        made = self._sequence()
        if self._at < len(self._glob):
            raise BadGlob("unopened alternate group; missing '{'")
        return made

    def _sequence(self) -> bytes:
        """Translate up to the end, or to the ``,`` or ``}`` of the group around."""
        out: list[bytes] = []
        while self._at < len(self._glob):
            char = self._glob[self._at : self._at + 1]
            if char == b"}" or (char == b"," and self._depth):
                break
            self._at += 1
            out.append(self._token(char, first=not out))
        return b"".join(out)

    def _token(self, char: bytes, *, first: bool) -> bytes:
        if char == b"*":
            return self._star(first)
        if char == b"?":
            return b"[^/]"
        if char == b"[":
            return self._class()
        if char == b"{":
            return self._alternates()
        if char == b"\\":
            char = self._take() or self._dangling()
            return re.escape(char)
        if char == b"/" and self._glob.startswith(b"**", self._at):
            return self._folders()
        return re.escape(char)

    def _take(self) -> bytes:
        char = self._glob[self._at : self._at + 1]
        self._at += len(char)
        return char

    def _dangling(self) -> bytes:
        raise BadGlob("dangling '\\'")

    def _component_ends(self, at: int) -> bool:
        following = self._glob[at : at + 1]
        return following in (b"", b"/") or (self._depth > 0 and following in (b",", b"}"))

    def _star(self, first: bool) -> bytes:
        """``**`` at the start of a path means any folders; elsewhere it is ``*``."""
        if self._glob[self._at : self._at + 1] != b"*":
            return b"[^/]*"
        self._at += 1
        if not first or not self._component_ends(self._at):
            return b"[^/]*"
        while self._glob.startswith(b"/**", self._at) and self._component_ends(self._at + 3):
            self._at += 3
        if self._glob[self._at : self._at + 1] == b"/":
            self._at += 1
            return b"(?:/?|.*/)"
        return b".*"

    def _folders(self) -> bytes:
        """``/**/`` means one slash or any folders between; ``/**`` at the end anything below."""
        if not self._component_ends(self._at + 2):
            return b"/"
        self._at += 2
        while self._glob.startswith(b"/**", self._at) and self._component_ends(self._at + 3):
            self._at += 3
        if self._glob[self._at : self._at + 1] == b"/":
            self._at += 1
            return b"(?:/|/.*/)"
        return b"/.*"

    def _alternates(self) -> bytes:
        self._depth += 1
        branches = [self._sequence()]
        while (end := self._take()) == b",":
            branches.append(self._sequence())
        if end != b"}":
            raise BadGlob("unclosed alternate group; missing '}'")
        self._depth -= 1
        branches = [branch for branch in branches if branch]
        return b"(?:" + b"|".join(branches) + b")" if branches else b""

    def _class(self) -> bytes:
        negated = self._glob[self._at : self._at + 1] in (b"!", b"^")
        start = self._at + negated
        end = self._glob.find(b"]", start + 1)
        if end < 0:
            raise BadGlob("unclosed character class; missing ']'")
        body = self._glob[start:end]
        self._at = end + 1
        return b"[" + b"^" * negated + _class_body(body) + b"]"


def _class_body(body: bytes) -> bytes:
    out: list[bytes] = []
    at = 0
    while at < len(body):
        low = high = body[at]
        if body[at + 1 : at + 2] == b"-" and at + 2 < len(body):
            high = body[at + 2]
            at += 2
        at += 1
        if low > high:
            raise BadGlob(f"invalid range; {chr(low)!r} > {chr(high)!r}")
        out.append(b"\\x%02x-\\x%02x" % (low, high))
    return b"".join(out)
