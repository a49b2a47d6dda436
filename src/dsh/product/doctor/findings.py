"""What a look found, and the looks' one rule: a look that breaks is a finding itself."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, Literal, NamedTuple

from dsh.base.errors import message_of
from dsh.loader.environment import LaunchEnvironment
from dsh.loader.home import display_home
from dsh.product.tree.redact import Redactor

Level = Literal["ok", "note", "warning", "error"]
LEVELS: Final[tuple[Level, ...]] = ("ok", "note", "warning", "error")
"""From what is in order to what keeps the profile from running."""


class Finding(NamedTuple):
    """One thing that was found."""

    level: Level
    topic: str
    """Heading that it belongs under."""
    what: str
    where: str | None = None
    """A file or row, as the user calls it."""
    remedy: str | None = None


class Case(NamedTuple):
    """What is examined."""

    home: Path
    cwd: Path
    environment: LaunchEnvironment
    heard: tuple[str, ...]
    """What reading the environment said."""
    redact: Redactor
    profile: str | None = None
    patches: tuple[str, ...] = ()

    def shown(self, text: str) -> str:
        """Return a text with the display names of the user's folders, and without secrets."""
        text = text.replace(str(self.home), display_home(self.home))
        for folder, name in ((str(self.cwd), "."), (os.environ.get("HOME", ""), "~")):
            # Only a whole path: "/" or "/home" would eat into others.
            if folder.count("/") > 1 or folder == "/root":
                text = text.replace(f"{folder}/", f"{name}/")
        return self.redact(" ".join(text.split()))

    def cleaned(self, finding: Finding) -> Finding:
        """Return a finding that may be printed."""
        texts = (finding.what, finding.where, finding.remedy)
        what, where, remedy = (None if text is None else self.shown(text) for text in texts)
        return finding._replace(what=what or "", where=where, remedy=remedy)


Look = Callable[[Case], Iterable[Finding]]
"""One look at a case; it may be a generator."""


def examine(case: Case, looks: Iterable[tuple[str, Look]]) -> Iterator[Finding]:
    """Yield what looks find, each ready to be printed.

    Args:
        case: What to look at.
        looks: Each with the topic that a failure of it is told under.
    """
    for topic, look in looks:
        try:
            for finding in look(case):
                yield case.cleaned(finding)
        except Exception as error:
            yield case.cleaned(broken(topic, error))


def broken(topic: str, error: BaseException) -> Finding:
    """Return the finding that a look could not be finished."""
    reason = message_of(error)
    if isinstance(error, OSError):
        reason = f"{error.strerror or reason}: {error.filename}" if error.filename else reason
    return Finding(
        "warning",
        topic,
        f"this could not be looked at: {type(error).__name__}: {reason}",
        remedy="if the cause is not in the text, report it as a fault of dsh doctor",
    )
