"""The texts of ``dsh plugin --help`` and of each verb's help."""

from __future__ import annotations

from typing import Final

_HEAD: Final = """\
usage: dsh plugin --profile <name> <verb> [arguments...]
       dsh plugin new <name> [--dir <folder>]

Manages the packages of one profile. They are kept in the profile's folder and come behind the
installation of dsh, so that they can add to it and not replace a part of it.

verbs:
  add <spec>...         install packages, and list their bundles in the profile
  remove <name>...      take packages out, and their bundles off the list
  list                  show what is installed, and what is wrong with it
  update [<name>...]    look for newer versions, of all packages when none is named
  install               install what the profile's manifest asks for
  new <name>            write a package to start a plugin from

Each verb has a help of its own: dsh plugin --profile <name> add --help
"""

_VERBS: Final = {
    "add": """\
usage: dsh plugin --profile <name> add [--allow-build] <spec>... [pip's options...]

Installs packages into a profile, which is made when it is missing. A spec is a name with an
optional version range (acme-notes, "acme-notes>=1,<2"), the path of a wheel, or an address.
A folder, a source archive and a repository (git+https://...) have to be built first, which runs
their code; that needs --allow-build. No code of a package is run otherwise.

options:
  --allow-build   build wheels of what has none
  -h, --help      print this, and exit

Words after the first option that is pip's go to pip as they are, for example
--index-url <address>, or --no-index --find-links <folder>.
""",
    "remove": """\
usage: dsh plugin --profile <name> remove <name>... [pip's options...]

Takes packages out of a profile, with what only they needed, and their bundles off its list.

options:
  -h, --help      print this, and exit
""",
    "list": """\
usage: dsh plugin --profile <name> list [--json]

Shows each plugin of a profile: version, bundles, names for rows, the range of dsh's plugin API
that it was made for, and what keeps it from being used. Nothing of a package is run.

options:
  --json          print one JSON list
  -h, --help      print this, and exit
""",
    "update": """\
usage: dsh plugin --profile <name> update [--allow-build] [<name>...] [pip's options...]

Looks for newer versions within the ranges of the profile's manifest: of all packages, or of
those that are named. A folder is built anew.

options:
  --allow-build   build wheels of what has none
  -h, --help      print this, and exit
""",
    "install": """\
usage: dsh plugin --profile <name> install [--allow-build] [pip's options...]

Installs what the manifest of a profile asks for and is not there, and removes what it does not.

options:
  --allow-build   build wheels of what has none
  -h, --help      print this, and exit
""",
    "new": """\
usage: dsh plugin new <name> [--dir <folder>]

Writes a package with a plugin, a tool, a bundle, tests and a Makefile, into a folder of its name.
The folder must not exist, or be empty.

options:
  --dir <folder>  write it there instead
  -h, --help      print this, and exit
""",
}


def verb_help(verb: str) -> str:
    """Return the help of a verb, or of the command when the verb is empty."""
    return _VERBS.get(verb, _HEAD)
