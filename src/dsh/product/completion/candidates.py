"""What may stand where the cursor is; asked at each press of the key, so it imports little."""

from __future__ import annotations

import os

from dsh.product.cli.table import APPS, COMMANDS, LAUNCHER, Command, Option

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

FILES = ":file"
"""Stands for: let the shell offer files."""

FOLDERS = ":folder"
"""Stands for: let the shell offer folders."""

Candidate = tuple[str, str]
"""A word and what it means."""


def candidates(words: Sequence[str], home: Path) -> list[Candidate]:
    """Return what may stand in place of the last word.

    Args:
        words: What follows ``dsh``; the last one is being written and may be empty.
        home: The home folder, for names of profiles and sessions.
    """
    *before, current = _joined(words) or [""]
    place = _Place(home)
    for word in before:
        place.pass_by(word)
    option, equals, _ = current.partition("=")
    if equals and option.startswith("--"):
        # The shell replaces the whole word, so files could only be offered without the option.
        values = [each for each in place.values_of(option) if not each[0].startswith(":")]
        found = [(f"{option}={word}", text) for word, text in values]
    else:
        found = list(place.here(current))
    shown = [each for each in found if each[0] in (FILES, FOLDERS) or each[0].startswith(current)]
    return list(dict(shown).items())


def _joined(words: Sequence[str]) -> list[str]:
    """Undo what bash does to ``--option=value``, which it hands over as three words."""
    joined: list[str] = []
    for word in words:
        if joined and word == "=" and joined[-1].startswith("--"):
            joined[-1] += "="
        elif joined and joined[-1].startswith("--") and joined[-1].endswith("="):
            joined[-1] += word
        else:
            joined.append(word)
    return joined


class _Place:
    """Where on the command line the next word stands."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._profile: str | None = None
        self._command: Command | None = None
        self._verb: Command | None = None
        self._waiting: Option | None = None
        """The option whose value comes next."""
        self._open = True
        """Options of the launcher may still come."""
        self._bare = False
        """``--`` was written: no options any more."""

    def pass_by(self, word: str) -> None:
        """Go past a word that is written."""
        if self._waiting is not None:
            self._note(self._waiting, word)
            self._waiting = None
        elif self._bare:
            return
        elif word == "--":
            self._bare = True
        elif word.startswith("-"):
            self._pass_option(word)
        elif self._command is None:
            self._first(word)
        elif self._verb is None and word in self._command.verbs:
            self._verb = self._command.verbs[word]

    def here(self, current: str) -> Iterable[Candidate]:
        """Yield what may stand here."""
        if self._waiting is not None:
            return self._of_kind(self._waiting.kind)
        if current.startswith("-") and not self._bare:
            return self._option_words()
        return self._words()

    def values_of(self, option: str) -> Iterable[Candidate]:
        """Yield what an option may be set to."""
        known = next((each for each in self._options() if option in each.names), None)
        return () if known is None else self._of_kind(known.kind)

    def _pass_option(self, word: str) -> None:
        name, equals, value = word.partition("=")
        option = next((each for each in self._options() if name in each.names), None)
        if option is None:
            self._open = False
        elif equals:
            self._note(option, value)
        elif option.value:
            self._waiting = option

    def _note(self, option: Option, value: str) -> None:
        if option.kind == "profile" and self._command is None:
            self._profile = value

    def _first(self, word: str) -> None:
        self._open = False
        if self._profile is None and word in COMMANDS:
            self._command = COMMANDS[word]
            if word == "web":
                self._command, self._profile, self._open = None, "web", True

    def _options(self) -> Iterator[Option]:
        if self._command is not None:
            yield from self._command.options
            if self._verb is not None:
                yield from self._verb.options
            return
        if self._open:
            yield from LAUNCHER
        app = APPS.get(self._profile or "")
        if app is not None:
            yield from app.options

    def _option_words(self) -> Iterator[Candidate]:
        for option in self._options():
            for name in option.names:
                yield name, option.text

    def _words(self) -> Iterator[Candidate]:
        if self._command is None:
            if self._profile is None and self._open and not self._bare:
                yield from ((name, each.text) for name, each in COMMANDS.items())
                yield from self._option_words()
            elif self._profile is not None:
                yield FILES, ""
            return
        if self._command.verbs and self._verb is None:
            yield from ((name, each.text) for name, each in self._command.verbs.items())
            return
        yield from self._of_kind((self._verb or self._command).words)

    def _of_kind(self, kind: str) -> Iterator[Candidate]:
        if kind == "file":
            yield FILES, ""
        elif kind == "folder":
            yield FOLDERS, ""
        elif kind == "profile":
            yield from ((name, "") for name in _profiles(self._home))
        elif kind == "bundle":
            yield from ((name, "") for name in _bundles())
        elif kind == "session":
            yield "last", "the newest session of this folder"
            yield from ((name, "") for name in _sessions(self._home))
        elif kind:
            yield from ((word, "") for word in kind.split("|"))


def _profiles(home: Path) -> list[str]:
    from dsh.loader.profile import list_profiles

    return list_profiles(home)


def _bundles() -> list[str]:
    from dsh.loader.bundle import shipped_bundles

    return sorted(each.stem for each in shipped_bundles().glob("*.yml"))


def _sessions(home: Path) -> Iterator[str]:
    """Yield the ids of stored sessions, by their folders; newest first."""
    folders = [each for project in _entries(home / "sessions") for each in _entries(project.path)]
    # An id that had to be encoded is none that a person would type.
    plain = [each for each in folders if "~" not in each.name and each.is_dir()]
    return (each.name for each in sorted(plain, key=lambda each: -each.stat().st_mtime))


def _entries(folder: str | os.PathLike[str]) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []
