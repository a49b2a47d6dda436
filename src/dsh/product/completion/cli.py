"""The command line ``dsh completion``."""

from __future__ import annotations

import sys

from dsh.loader.say import flat, say

_WORDS = "--words"
"""Hidden: the scripts ask by it; what follows is the command line up to the cursor."""


def main(argv: list[str]) -> int:
    """Run ``dsh completion``.

    Args:
        argv: What follows ``completion`` on the command line.

    Returns:
        The exit code.
    """
    if argv and argv[0] == _WORDS:
        _offer(argv[1:])
        return 0
    from dsh.product.cli.words import WordsError, command_help, read_words
    from dsh.product.completion.scripts import SCRIPTS

    try:
        words = read_words("completion", argv)
    except WordsError as error:
        return _fail(str(error))
    if words is None:
        sys.stdout.write(command_help("completion"))
        return 0
    if len(words.args) != 1 or words.args[0] not in SCRIPTS:
        given = f"got {' '.join(words.args)!r}" if words.args else "for example: completion bash"
        return _fail(f"name one shell, bash, zsh or fish; {given}")
    sys.stdout.write(SCRIPTS[words.args[0]])
    return 0


def _offer(words: list[str]) -> None:
    """Print a line a candidate, with a tab before what it means."""
    from dsh.loader.home import resolve_dsh_home
    from dsh.product.completion.candidates import candidates

    for word, text in candidates(words, resolve_dsh_home()):
        if word.isprintable():
            sys.stdout.write(f"{word}\t{text}\n")


def _fail(problem: str) -> int:
    say(flat(problem), "dsh completion")
    return 1
