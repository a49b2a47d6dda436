"""The words after ``dsh plugin --profile P``: a verb, its packages, and options for pip."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from dsh.base.text import did_you_mean
from dsh.product.plugins.errors import WordsError

VERBS: Final = ("add", "install", "list", "new", "remove", "update")
"""What can be asked for; only ``new`` needs no profile."""

_OURS: Final[dict[str, tuple[str, ...]]] = {
    "add": ("--allow-build",),
    "install": ("--allow-build",),
    "list": ("--json",),
    "new": ("--dir",),
    "remove": (),
    "update": ("--allow-build",),
}
_TAKES_PIP_OPTIONS: Final = ("add", "install", "remove", "update")
_PIP_FLAGS: Final = frozenset(
    (
        *("--pre", "--no-cache-dir", "--no-index", "--prefer-binary", "--isolated", "--no-input"),
        *("-q", "--quiet", "-v", "-vv", "-vvv", "--verbose", "--no-color", "--debug"),
        *("--upgrade", "-U", "--no-build-isolation", "--use-pep517", "--check-build-dependencies"),
    )
)
"""Options of pip without a value: packages may follow them."""

_NOT_FORWARDED: Final[dict[str, str]] = {
    **dict.fromkeys(
        ("-t", "--target", "--prefix", "--root", "--user", "--python", "--src"),
        "the profile decides where packages go",
    ),
    **dict.fromkeys(
        ("--no-binary", "--only-binary"), "wheels only is the rule; --allow-build lifts it"
    ),
    **dict.fromkeys(
        ("-e", "--editable"),
        "a profile holds copies; while you write a plugin, name its file in a row instead",
    ),
    **dict.fromkeys(
        ("-r", "--requirement"), "the profile's manifest lists what is installed; name packages"
    ),
    **dict.fromkeys(
        ("-I", "--ignore-installed", "--force-reinstall", "--no-deps", "--dry-run", "--report"),
        "every change makes the profile's folder anew",
    ),
}


class Words(NamedTuple):
    """A command line, read."""

    verb: str
    """One of `VERBS`; empty when only help is asked for."""
    names: tuple[str, ...] = ()
    """Packages, as they were written."""
    options: tuple[str, ...] = ()
    """For pip, verbatim."""
    allow_build: bool = False
    json: bool = False
    folder: str | None = None
    """Value of ``--dir``."""
    help: bool = False


def read_words(words: Sequence[str]) -> Words:
    """Read a command line.

    Packages stand before pip's options, since only pip knows which of them take a value.

    Args:
        words: What follows the profile; at least the verb.

    Raises:
        WordsError: there is no such verb or option, or a package is missing.
    """
    first = words[0] if words else "--help"
    if first in {"-h", "--help"}:
        return Words("", help=True)
    if first not in VERBS:
        near = did_you_mean(first, VERBS) or f"; possible are: {', '.join(VERBS)}"
        raise WordsError(f"unknown verb {first!r}{near}")
    read = _Reader(first, list(words[1:])).read()
    if not read.help:
        _check_names(read)
    return read


class _Reader:
    """Sorts the words after a verb."""

    def __init__(self, verb: str, words: list[str]) -> None:
        self._verb = verb
        self._words = words
        self._names: list[str] = []
        self._options: list[str] = []
        self._own: dict[str, str] = {}

    def read(self) -> Words:
        while self._words:
            word = self._words.pop(0)
            if word in {"-h", "--help"}:
                return Words(self._verb, help=True)
            if word == "--":
                self._names += self._words
                break
            if not word.startswith("-"):
                self._names.append(word)
            elif not self._is_ours(word):
                self._forward(word)
        return Words(
            self._verb,
            tuple(self._names),
            tuple(self._options),
            allow_build="--allow-build" in self._own,
            json="--json" in self._own,
            folder=self._own.get("--dir"),
        )

    def _is_ours(self, word: str) -> bool:
        name, equals, value = word.partition("=")
        if name not in _OURS[self._verb]:
            return False
        if name == "--dir" and not equals:
            value = self._words.pop(0) if self._words else ""
        if name == "--dir" and not value.strip():
            raise WordsError("--dir needs a folder")
        self._own[name] = value
        return True

    def _forward(self, word: str) -> None:
        name = word.partition("=")[0]
        if self._verb not in _TAKES_PIP_OPTIONS:
            known = (*_OURS[self._verb], "--help")
            near = did_you_mean(name, known) or f"; possible are: {', '.join(known)}"
            raise WordsError(f"{self._verb}: unknown option {name!r}{near}")
        _check_forwarded(word)
        self._options.append(word)
        if name in _PIP_FLAGS:
            return
        while self._words:
            following = self._words.pop(0)
            if self._is_ours(following):
                continue
            _check_forwarded(following)
            self._options.append(following)


def _check_forwarded(word: str) -> None:
    if word.startswith("-") and (why := _NOT_FORWARDED.get(word.partition("=")[0])):
        raise WordsError(f"{word.partition('=')[0]} is not passed on to pip: {why}")


def _check_names(read: Words) -> None:
    if read.verb == "new" and len(read.names) != 1:
        raise WordsError("new: name the package to write; for example: new acme-notes")
    if read.verb in {"list", "install"} and read.names:
        hint = f"; to install it: add {read.names[0]}" if read.verb == "install" else ""
        raise WordsError(f"{read.verb} takes no names, got {read.names[0]!r}{hint}")
    if read.verb in {"add", "remove"} and not read.names:
        after = ", before pip's options" if read.options else ""
        raise WordsError(f"{read.verb}: name at least one package{after}")
