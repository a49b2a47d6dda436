"""The command line ``dsh profile``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from dsh.loader.say import flat, say
from dsh.product.cli.words import Words, WordsError, command_help, read_words

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def main(argv: list[str]) -> int:
    """Run ``dsh profile``.

    Args:
        argv: What follows ``profile`` on the command line.

    Returns:
        The exit code.
    """
    from dsh.base.errors import DshError
    from dsh.loader.home import resolve_dsh_home

    try:
        words = read_words("profile", argv)
        if words is None:
            sys.stdout.write(command_help("profile"))
            return 0
        problem = _problem(words)
        if problem is not None:
            return _fail(problem)
        return _run(words, resolve_dsh_home())
    except (WordsError, DshError) as error:
        return _fail(str(error))
    except OSError as error:
        return _fail(f"cannot write {error.filename}: {(error.strerror or str(error)).lower()}")


def _problem(words: Words) -> str | None:
    if not words.verb:
        return "say what to do: list, new <name> or delete <name>"
    wanted = 0 if words.verb == "list" else 1
    if len(words.args) > wanted:
        return f"unexpected {words.args[wanted]!r} after {words.verb}"
    if len(words.args) < wanted:
        return f"{words.verb} needs the name of a profile"
    return None


def _run(words: Words, home: Path) -> int:
    if words.verb == "list":
        return _list(home, as_json=words.flag("--json"))
    if words.verb == "new":
        return _new(words.args[0], home, words.values("--bundle"))
    return _delete(words.args[0], home, sure=words.flag("--yes"))


def _list(home: Path, *, as_json: bool) -> int:
    from dsh.loader.profile import list_profiles

    rows = [_row(name, home) for name in list_profiles(home)]
    if as_json:
        from dsh.base.json import dumps

        print(dumps(rows).decode())
        return 0
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        kind = "own" if not row["template"] else "template" if row["made"] else "on first use"
        shown = ", ".join(row["bundles"]) or "no bundles"
        text = shown if row["problem"] is None else f"cannot be used: {row['problem']}"
        print(f"{row['name']:<{width}}  {kind:<12}  {flat(text)}")
    return 0


def _row(name: str, home: Path) -> dict[str, Any]:
    """Return what is known of a profile, a broken one too."""
    from dsh.base.errors import DshError
    from dsh.loader.home import display_home
    from dsh.loader.profile import TEMPLATES, read_profile

    folder = home / "profiles" / name
    row: dict[str, Any] = {
        "name": name,
        "bundles": [],
        "template": name in TEMPLATES,
        "made": folder.is_dir(),
        "problem": None,
    }
    try:
        profile = read_profile(name, home)
        row["bundles"] = list(profile.bundles) if profile is not None else []
    except DshError as error:
        row["problem"] = str(error).replace(str(home), display_home(home))
    return row


def _new(name: str, home: Path, bundles: Sequence[str]) -> int:
    from dsh.loader.home import display_home
    from dsh.loader.profile import DEFAULT_BUNDLES, create_profile

    listed = tuple(dict.fromkeys(bundles)) or DEFAULT_BUNDLES
    folder = create_profile(name, home, listed)
    place = str(folder).replace(str(home), display_home(home))
    print(f"made profile {name} with {', '.join(listed)} in {place}")
    return 0


def _delete(name: str, home: Path, *, sure: bool) -> int:
    from dsh.loader.profile import check_profile_name, delete_profile

    check_profile_name(name)
    if not sure:
        if not sys.stdin or not sys.stdin.isatty():
            return _fail(f"deleting profile {name} takes its patches and plugins; say --yes")
        if not _confirmed(name):
            print("nothing was deleted")
            return 1
    delete_profile(name, home)
    print(f"deleted profile {name}")
    return 0


def _confirmed(name: str) -> bool:
    sys.stderr.write(f"delete profile {name} with its patches and plugins? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def _fail(problem: str) -> int:
    say(flat(problem), "dsh profile")
    return 1
