"""The command line as one table: what completion offers, and what the helps are checked against.

``tree``, ``doctor``, ``profile`` and ``completion`` are parsed by it and print it as their help.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Option(NamedTuple):
    """One option of a command.

    Attributes:
        names: Its spellings, short ones first.
        text: What the help says of it.
        value: How the help calls its value; empty for an option that takes none.
        kind: What the value is, for completion: ``profile``, ``bundle``, ``session``, ``file``,
            ``folder``, or the words to choose from, separated by ``|``.
        many: It may be given several times.
    """

    names: tuple[str, ...]
    text: str = ""
    value: str = ""
    kind: str = ""
    many: bool = False


class Command(NamedTuple):
    """One command, or one of its verbs.

    Attributes:
        text: One line of what it does.
        options: Its own, without those of its verbs.
        verbs: What may stand first.
        words: What its other words are, for completion; as `Option.kind`.
        usage: What follows its name in the help.
        about: Paragraphs of the help, after the usage.
    """

    text: str = ""
    options: tuple[Option, ...] = ()
    verbs: dict[str, Command] = {}  # noqa: RUF012 - a default of a tuple's field, never changed
    words: str = ""
    usage: str = ""
    about: str = ""


HELP: Final = Option(("-h", "--help"), "print this, and exit")
_JSON: Final = Option(("--json",), "print one JSON document instead of text")
_BUILD: Final = Option(("--allow-build",), "let pip build packages, which runs their code")
_PATCH: Final = Option(
    ("--patch",), "apply a patch file on top; may be repeated", "<path>", "file", many=True
)

LAUNCHER: Final = (
    Option(("--profile",), "the profile to start", "<name>", "profile"),
    Option(("--patch",), "apply a patch file on top", "<path>", "file", many=True),
    Option(("--dump-config",), "print the composed rows"),
    Option(("--dump-default-config",), "print the rows of the bundles alone"),
    Option(("--strict",), "a failing row of a plugin is fatal, too"),
    Option(("-h", "--help"), "print the help"),
    Option(("-V", "--version"), "print the version"),
)
"""Options in front of everything else."""

APPS: Final[dict[str, Command]] = {
    "headless": Command(
        options=(
            Option(
                ("--output-format",),
                "how the answer is printed",
                "FORMAT",
                "text|json|stream-json",
            ),
            Option(("--model",), "use this model", "[PROVIDER/]ID"),
            Option(("--cwd",), "work in this folder", "DIR", "folder"),
            Option(("--resume",), "go on with an earlier session", "SESSION|last", "session"),
            Option(("--no-save",), "do not tell when the profile cannot be saved"),
            HELP,
        ),
        words="file",
    ),
}
"""What the apps of shipped profiles take, by the profile's name."""

COMMANDS: Final[dict[str, Command]] = {
    "completion": Command(
        "print a completion script for your shell",
        options=(HELP,),
        words="bash|zsh|fish",
        usage="bash|zsh|fish",
        about="""\
Print a script that completes dsh's commands, options, profiles and sessions. To use it:

  bash   dsh completion bash > ~/.local/share/bash-completion/completions/dsh
  zsh    dsh completion zsh > a folder of $fpath, as _dsh
  fish   dsh completion fish > ~/.config/fish/completions/dsh.fish
""",
    ),
    "credentials": Command(
        "store keys that profiles refer to by name",
        options=(HELP,),
        verbs={
            "list": Command("name the stored keys", options=(_JSON,)),
            "set": Command("store a key; it is asked for"),
            "unset": Command("forget a key"),
        },
    ),
    "demo": Command(
        "watch a scripted agent repair a sample project, without a key",
        options=(Option(("--into",), "work in this folder", "FOLDER", "folder"), HELP),
    ),
    "doctor": Command(
        "find what keeps a profile from running, and the remedy",
        options=(
            Option(("--profile",), "mount this profile and look at it", "<name>", "profile"),
            _PATCH,
            _JSON,
            HELP,
        ),
        usage="[--profile <name> [--patch <path>]...] [--json]",
        about="""\
Look at the installation, the home folder and every profile; with --profile, mount that one
without starting its app, and say what fails or waits. Each finding comes with a remedy.
Exits 1 when an error would keep dsh, or the profile, from running. Secrets are never printed.
""",
    ),
    "plugin": Command(
        "manage the plugins of a profile",
        options=(
            Option(("--profile",), "whose plugins", "<name>", "profile"),
            HELP,
        ),
        verbs={
            "add": Command(
                "install packages and mount their bundles", options=(_BUILD,), words="file"
            ),
            "install": Command("install what the profile lists", options=(_BUILD,)),
            "list": Command("show what is installed", options=(_JSON,)),
            "new": Command(
                "write a plugin package to start from",
                options=(Option(("--dir",), "where to write it", "<folder>", "folder"),),
            ),
            "remove": Command("take packages out"),
            "update": Command("install newer versions", options=(_BUILD,)),
        },
    ),
    "profile": Command(
        "list, make and delete profiles",
        options=(HELP,),
        verbs={
            "list": Command("show the profiles and their bundles", options=(_JSON,)),
            "new": Command(
                "make a profile",
                options=(
                    Option(
                        ("--bundle",),
                        "a bundle it lists, in this order; base when none is given",
                        "<name>",
                        "bundle",
                        many=True,
                    ),
                ),
                usage="<name>",
            ),
            "delete": Command(
                "delete a profile with its patches and its plugins",
                options=(Option(("-y", "--yes"), "do not ask"),),
                words="profile",
                usage="<name>",
            ),
        },
        usage="list [--json] | new <name> [--bundle <name>]... | delete <name> [--yes]",
        about="""\
A profile is a list of bundles with patches of its own, in the home folder. The profiles headless
and web exist from the start. Sessions belong to no profile: deleting one keeps them.
""",
    ),
    "sessions": Command(
        "list, show, fork, export, repair and delete stored sessions",
        options=(
            Option(
                ("--profile",),
                "the store of this profile, not the home's files",
                "<name>",
                "profile",
            ),
            HELP,
        ),
        verbs={
            "list": Command("list them, newest first", options=(_JSON,)),
            "show": Command(
                "print what was said and done",
                options=(Option(("--events",), "print the raw events, one a line"), _JSON),
                words="session",
                usage="<session>",
            ),
            "fork": Command(
                "make a new session with the history of another, and print its id",
                options=(
                    Option(
                        ("--at",),
                        "up to the turn that ends with this event or after it; the last turn "
                        "when absent",
                        "<seq>",
                    ),
                    _JSON,
                ),
                words="session",
                usage="<session>",
            ),
            "export": Command(
                "write a session to one file",
                options=(
                    Option(
                        ("-o", "--output"),
                        "the file or folder, or - for standard output",
                        "<file>",
                        "file",
                    ),
                    Option(
                        ("--format",),
                        "zip with subagents and images, the log alone, or a document; zip when "
                        "absent",
                        "zip|jsonl|markdown",
                        "zip|jsonl|markdown",
                    ),
                    _JSON,
                ),
                words="session",
                usage="<session>",
            ),
            "repair": Command(
                "cut off damaged ends, keep them aside, and close interrupted turns",
                options=(_JSON,),
                words="session",
                usage="[<session>]...",
            ),
            "delete": Command(
                "delete sessions for good",
                options=(Option(("-y", "--yes"), "do not ask"), _JSON),
                words="session",
                usage="<session>...",
            ),
        },
        usage="list | show | fork | export | repair | delete [<session>...] [options]",
        about="""\
A session is named by its id, by the beginning of it, or by last: the newest of this folder. With
--json each verb prints one list: an object a session, with the fields of its header, its title,
the number of its events, and its damage. Listing and showing change nothing.

  list                                    all sessions, newest first; damaged ones with the reason
  show <session> [--events]               what was said and done, or every event
  fork <session> [--at <seq>]             a new session up to the end of a turn; prints its id
  export <session> [-o <file>]            a zip, or with --format the log or a document
  repair [<session>...]                   all when none is named; what is cut off is kept beside it
  delete <session>... [--yes]             asks first; one that another process uses is refused
""",
    ),
    "tree": Command(
        "mount a profile and print its live tree",
        options=(
            Option(("--profile",), "the profile to mount", "<name>", "profile"),
            _PATCH,
            Option(("--format",), "how to print it", "text|mermaid|json", "text|mermaid|json"),
            Option(("--effects",), "list what each row has registered"),
            Option(("--services",), "list the services alone, with who depends on each"),
            HELP,
        ),
        usage="--profile <name> [--patch <path>]... [--format text|mermaid|json]",
        about="""\
Mount every row of a profile, wait until they are settled, print the tree, and take it down again.
The app itself does not start: rows that need its command line are shown as waiting for it.
""",
    ),
    "web": Command("serve the browser app", options=(*LAUNCHER[1:5], HELP)),
}
"""Every first word, in order."""
