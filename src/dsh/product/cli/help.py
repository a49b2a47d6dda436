"""The launcher's own help, as text."""

from __future__ import annotations

from dsh.product.cli.args import SUBCOMMANDS

_HEAD = """\
usage: dsh --profile <name> [--patch <path>]... [app arguments...]
       dsh web [--patch <path>]... [app arguments...]
       dsh <command> [arguments...]

Starts a profile: a named list of bundles whose rows become one tree of plugins.

profiles that exist from the start:
  headless              does one task and exits: dsh --profile headless "<task>"
  web                   serves the browser app; dsh web is short for dsh --profile web

options, before the first word for the app:
  --profile <name>      the profile to start; its own help: dsh --profile <name> --help
  --patch <path>        apply a patch file on top; may be repeated, later ones win
  --dump-config         print the composed rows with where each comes from, and exit
  --dump-default-config print the rows of the bundles alone, and exit
  --strict              a failing row of an installed plugin ends the start, too
  -h, --help            print this, and exit
  -V, --version         print the version, and exit

commands:
"""
_TAIL = """\

Files live in $DSH_HOME (~/.dsh when it is not set). DSH_PERMISSION_MODE chooses what agents may
do: read-only, workspace-write or danger-full-access. DSH_TOOLS_MODE chooses how they call their
tools: native (one by one), code (from programs that they write) or both.
"""
_FIRST = ("demo", "doctor", "tree", "profile", "plugin", "credentials", "sessions")
"""Commands in the order in which a new user comes to need them; others follow by name."""


def launcher_help() -> str:
    """Return the text of ``dsh --help``."""
    commands = {name: text for name, (_, text) in SUBCOMMANDS.items()}
    commands["plugin"] = "manage the plugins of a profile"
    ordered = sorted(commands, key=lambda name: (name not in _FIRST, name))
    ordered[: len(_FIRST)] = [name for name in _FIRST if name in commands]
    lines = [f"  {name:<21} {commands[name]}" for name in ordered]
    return _HEAD + "\n".join(lines) + "\n" + _TAIL
