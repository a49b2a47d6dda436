"""The command line ``dsh sessions``: look at the stored sessions of the dsh home, and tend them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from dsh.product.cli.words import Words, WordsError, command_help, read_words

if TYPE_CHECKING:
    from pathlib import Path

_NEEDED = {"show": 1, "fork": 1, "export": 1, "delete": 1}
_MOST = {"list": 0, "show": 1, "fork": 1, "export": 1}


def main(argv: list[str]) -> int:
    """Run ``dsh sessions``.

    Args:
        argv: What follows ``sessions`` on the command line.

    Returns:
        The exit code.
    """
    from dsh.base.errors import DshError
    from dsh.loader.home import resolve_dsh_home
    from dsh.product.sessions.terminal import OutputFailed

    home = resolve_dsh_home()
    try:
        words = read_words("sessions", argv)
        if words is None:
            sys.stdout.write(command_help("sessions"))
            return 0
        if (problem := _problem(words)) is not None:
            return _fail(problem)
        return _run(words, home)
    except (BrokenPipeError, OutputFailed):
        # The launcher tells of these, and keeps the interpreter from flushing once more.
        raise
    except (WordsError, DshError) as error:
        return _fail(_told(str(error), home))
    except OSError as error:
        place = error.filename or home / "sessions"
        return _fail(_told(f"cannot read {place}: {error.strerror or error}", home))


def _problem(words: Words) -> str | None:
    if not words.verb:
        return "say what to do; try: dsh sessions list"
    count, verb = len(words.args), words.verb
    if not all(words.args):
        return "an empty word names no session; dsh sessions list shows all"
    if verb == "export" and words.flag("--json") and words.value("--output") == "-":
        return "standard output takes the session or --json, not both; name a file with --output"
    if verb in _MOST and count > _MOST[verb]:
        return f"unexpected {words.args[_MOST[verb]]!r} after {verb}"
    if count < _NEEDED.get(verb, 0):
        return f"{verb} needs the id of a session, the beginning of one, or last"
    return None


def _run(words: Words, home: Path) -> int:
    if words.verb == "list" and words.value("--profile") is None:
        from dsh.product.sessions.listing import list_sessions

        list_sessions(home / "sessions", as_json=words.flag("--json"))
        return 0
    import asyncio

    from dsh.product.sessions.verbs import VERBS

    return asyncio.run(VERBS[words.verb](words, home))


def _told(text: str, home: Path) -> str:
    from dsh.loader.home import display_home

    return text.replace(str(home), display_home(home))


def _fail(problem: str) -> int:
    from dsh.product.sessions.terminal import label

    sys.stderr.write(f"dsh sessions: {label(' '.join(problem.split()))}\n")
    return 1
