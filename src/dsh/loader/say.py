"""Tell the user one line, on stderr; imports nothing."""

from __future__ import annotations

import sys


def say(text: str, program: str = "dsh") -> None:
    """Write a text as one line that starts with the program's name."""
    write(f"{program}: {shown(text)}")


def shown(text: str) -> str:
    """Return a text as one line, with what a terminal would act on escaped."""
    return "".join(each if each.isprintable() else _escaped(each) for each in text)


def flat(text: str) -> str:
    """Return a text of several lines as one, fit for a terminal."""
    return shown(" ".join(text.split()))


def write(text: str) -> None:
    """Write a text and a line end; a stderr that is gone or full costs the text."""
    if sys.stderr is None:
        return
    try:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        return


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
