"""The command line ``dsh credentials``: keep keys in the store of the dsh home."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

from dsh.base.errors import DshError
from dsh.base.json import dumps
from dsh.base.text import nearest
from dsh.loader.environment import SOURCES, LaunchEnvironment, load_environment
from dsh.loader.home import display_home, resolve_dsh_home
from dsh.loader.say import say

__all__ = ["main"]

_USAGE: Final = """\
usage: dsh credentials set NAME
       dsh credentials unset NAME
       dsh credentials list [--json]

Keep keys in the dsh home, in a file that only you can read. Profiles refer to them by name,
for example DEEPSEEK_API_KEY. An inherited environment variable of the name outranks the store;
the store outranks the .env files of the project and of the dsh home.

commands:
  set NAME    ask for the value, and store it; the value is not shown. Without a terminal it is
              read from standard input, one line. It is never taken from the command line
  unset NAME  take the value out of the store
  list        show the names that are stored or set, and where each comes from; never a value

options:
  --json      print one JSON list: name, source, shadowed sources; records have their kind
  -h, --help  show this help and exit
"""
_COMMANDS: Final = ("list", "set", "unset")
_SHOWN: Final = {
    "env": "environment",
    "file": "store",
    "project-env": ".env of the project",
    "user-env": ".env of the home",
}
_VALUE_GIVEN: Final = (
    "set takes no value on the command line, where other processes see it and the shell keeps it; "
    "give the name alone, and the value when asked or on standard input"
)
_KEY_SUFFIX: Final = "_API_KEY"
_MOST_CHARACTERS: Final = 65_536


class _Problem(DshError):
    """What the command refuses; its text is for the user."""


def main(argv: list[str]) -> int:
    """Run ``dsh credentials``.

    Args:
        argv: What follows ``credentials`` on the command line.

    Returns:
        The exit code.
    """
    if any(word in ("-h", "--help") for word in argv):
        sys.stdout.write(_USAGE)
        return 0
    try:
        return _run(argv)
    except DshError as error:
        sys.stderr.write(f"dsh credentials: {error.message}\n")
        return 1


def _run(argv: list[str]) -> int:
    command, *rest = argv or [""]
    if command not in _COMMANDS:
        raise _Problem(_unknown(command))
    home = resolve_dsh_home()
    environment = load_environment(home, Path.cwd(), warn=say)
    if command == "list":
        return _list(home, environment, rest)
    name = _name(command, rest)
    return (_set if command == "set" else _unset)(home, environment, name)


def _set(home: Path, environment: LaunchEnvironment, name: str) -> int:
    from dsh.state.credentials.document import CredentialsDocument, check_value
    from dsh.state.credentials.layers import inherited
    from dsh.state.credentials.service import CredentialShadowed

    if inherited(environment, name):
        raise CredentialShadowed(name)
    document = CredentialsDocument(home / _file())
    document.load()  # a store that cannot be used is told before anyone types a key
    value = _read_value(name)
    check_value(value)
    with document.draft() as draft:
        there = name in draft.stored.refs
        draft.set_ref(name, value)
    print(f"{'replaced' if there else 'stored'} {name} in {display_home(home)}/{_file()}")
    return 0


def _unset(home: Path, environment: LaunchEnvironment, name: str) -> int:
    from dsh.state.credentials.document import CredentialsDocument

    document = CredentialsDocument(home / _file())
    known = document.load().refs
    if name not in known:
        raise _Problem(_not_stored(name, list(known), environment))
    with document.draft() as draft:
        draft.unset_ref(name)
    print(f"took {name} out of {display_home(home)}/{_file()}")
    return 0


def _list(home: Path, environment: LaunchEnvironment, rest: list[str]) -> int:
    if unexpected := [word for word in rest if word != "--json"]:
        near = nearest(unexpected[0], ["--json", "--help"])
        hint = f"; did you mean {near!r}?" if near else "; list takes --json alone"
        raise _Problem(f"unexpected {unexpected[0]!r}{hint}")
    rows = _rows(home, environment)
    if rest:
        print(dumps(rows).decode())
        return 0
    if not rows:
        print("no credentials yet; store one by: dsh credentials set DEEPSEEK_API_KEY")
    width = max((len(row["name"]) for row in rows), default=0)
    for row in rows:
        print(f"{row['name']:<{width}}  {_where(row)}")
    return 0


def _rows(home: Path, environment: LaunchEnvironment) -> list[dict[str, Any]]:
    """Return what is stored, and what the environment has that looks like a key."""
    from dsh.state.credentials.document import CredentialsDocument
    from dsh.state.credentials.layers import sources_of

    stored = CredentialsDocument(home / _file()).peek()
    names = set(stored.refs)
    for layer in SOURCES:
        names |= {name for name in environment.layer(layer) if name.endswith(_KEY_SUFFIX)}
    found = {name: sources_of(environment, stored.refs, name) for name in sorted(names)}
    rows: list[dict[str, Any]] = [
        {"name": name, "source": first.source, "shadowed": [each.source for each in rest]}
        for name, (first, *rest) in ((name, all_) for name, all_ in found.items() if all_)
    ]
    records = sorted(stored.records.items())
    return rows + [
        {"name": key, "source": "file", "shadowed": [], "kind": record["kind"]}
        for key, record in records
    ]


def _where(row: dict[str, Any]) -> str:
    text = _SHOWN[row["source"]]
    if "kind" in row:
        text += f" ({row['kind']})"
    if row["shadowed"]:
        text += f" (outranks: {', '.join(_SHOWN[each] for each in row['shadowed'])})"
    return text


def _name(command: str, rest: list[str]) -> str:
    from dsh.state.credentials.service import check_reference

    if not rest:
        raise _Problem(f"{command} needs a name; for example: dsh credentials {command} MY_API_KEY")
    if len(rest) > 1 or "=" in rest[0]:
        # What is too much is not repeated: it may be a key.
        raise _Problem(_VALUE_GIVEN if command == "set" else f"{command} takes one name, no more")
    check_reference(rest[0])
    return rest[0]


def _read_value(name: str) -> str:
    """Ask for a value, or read the one line of standard input."""
    if sys.stdin is not None and sys.stdin.isatty():
        from getpass import getpass

        try:
            return getpass(f"value of {name} (not shown): ").strip()
        except EOFError:
            return ""
    text = "" if sys.stdin is None else sys.stdin.read(_MOST_CHARACTERS + 1)
    if len(text) > _MOST_CHARACTERS:
        raise _Problem(f"standard input must be at most {_MOST_CHARACTERS} characters")
    lines = text.strip().splitlines()
    if len(lines) > 1:
        raise _Problem("standard input must be one line, the value")
    return lines[0].strip() if lines else ""


def _unknown(command: str) -> str:
    if not command:
        return "say what to do; try: dsh credentials list"
    near = nearest(command, list(_COMMANDS))
    hint = f"did you mean {near!r}?" if near else "try: dsh credentials --help"
    return f"unexpected {command!r}; {hint}"


def _not_stored(name: str, known: list[str], environment: LaunchEnvironment) -> str:
    from dsh.state.credentials.layers import sources_of

    near = nearest(name, known)
    hint = f"; did you mean {near!r}?" if near else ""
    elsewhere = sources_of(environment, {}, name)
    if elsewhere:
        hint = f"; it comes from the {_SHOWN[elsewhere[0].source]}"
    return f"{name} is not stored{hint}"


def _file() -> str:
    from dsh.state.credentials.document import FILE_NAME

    return FILE_NAME
