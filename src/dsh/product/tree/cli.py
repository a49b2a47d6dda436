"""The command line ``dsh tree``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from dsh.loader.say import flat, say
from dsh.product.cli.words import Words, WordsError, command_help, read_words

if TYPE_CHECKING:
    from dsh.loader.trial import Trial
    from dsh.product.tree.live import Prepared


def main(argv: list[str]) -> int:
    """Run ``dsh tree``.

    Args:
        argv: What follows ``tree`` on the command line.

    Returns:
        The exit code: 0 when a tree was printed, whatever state its rows are in.
    """
    try:
        words = read_words("tree", argv)
        if words is None:
            sys.stdout.write(command_help("tree"))
            return 0
    except WordsError as error:
        return _fail(str(error))
    profile = words.value("--profile")
    if words.args:
        return _fail(f"unexpected {words.args[0]!r}; a tree takes no words for the app")
    if profile is None:
        return _fail("--profile <name> is required; dsh profile list shows the profiles")
    return _show(profile, words)


def _show(profile: str, words: Words) -> int:
    from dsh.base.errors import DshError
    from dsh.loader.home import resolve_dsh_home
    from dsh.product.tree.live import look_at, prepare

    try:
        prepared = prepare(profile, resolve_dsh_home(), words.values("--patch"))
        for warning in prepared.warnings:
            _tell(warning)
        if prepared.composition.unavailable is not None:
            _tell(prepared.composition.unavailable)

        async def look(trial: Trial) -> None:
            _print(prepared, trial, words)

        look_at(prepared, look, stuck=_stuck)
    except DshError as error:
        return _fail(str(error))
    return 0


def _print(prepared: Prepared, trial: Trial, words: Words) -> None:
    tree = {"profile": prepared.composition.profile.name, **trial.snapshot(prepared.redact)}
    tree["settled"] = trial.settled
    tree["remarks"] = [prepared.short(each) for each in trial.remarks()]
    for row in tree["rows"]:
        row["origin"] = row["origin"] and prepared.short(row["origin"])
        row["patchedBy"] = [prepared.short(each) for each in row["patchedBy"]]
    form = words.value("--format") or "text"
    if form == "json":
        from dsh.base.json import dumps

        text = dumps(tree).decode() + "\n"
    elif form == "mermaid":
        from dsh.product.tree.mermaid import flowchart

        text = flowchart(tree)
    else:
        from dsh.product.tree.text import Page, render

        page = Page.of(sys.stdout)
        text = render(
            tree, page, effects=words.flag("--effects"), services=words.flag("--services")
        )
    print(text, end="", flush=True)


def _stuck() -> None:
    _tell("a plugin blocks the event loop, so the tree cannot be shown; look at the rows' plugins")


def _fail(problem: str) -> int:
    _tell(problem)
    return 1


def _tell(text: str) -> None:
    say(flat(text), "dsh tree")
