"""Tell the user one line, on stderr; imports nothing."""

from __future__ import annotations

import sys


def say(text: str) -> None:
    """Write a text as one line that starts with the program's name.

    What a terminal would act on is shown escaped.
    """
    shown = "".join(each if each.isprintable() else _escaped(each) for each in text)
    write(f"dsh: {shown}")


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
