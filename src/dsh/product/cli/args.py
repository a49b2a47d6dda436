"""Read the launcher's few words by hand, so that help and version import nothing.

Options of the launcher count only before the first word it does not know; from there on every
word belongs to the app, unread.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

SUBCOMMANDS = {
    "completion": ("dsh.product.completion.cli", "print a completion script for your shell"),
    "credentials": ("dsh.product.credentials.cli", "store keys that profiles refer to by name"),
    "demo": (
        "dsh.product.demo.cli",
        "watch a scripted agent repair a sample project, without a key",
    ),
    "doctor": ("dsh.product.doctor.cli", "find what keeps a profile from running, and the remedy"),
    "profile": ("dsh.product.profiles.cli", "list, make and delete profiles"),
    "sessions": (
        "dsh.product.sessions.cli",
        "list, show, fork, export, repair and delete stored sessions",
    ),
    "tree": ("dsh.product.tree.cli", "mount a profile and print its live tree"),
}
"""Our own subcommands: the module whose ``main(argv)`` runs each, and what it does."""

ALIASES = {"web": "web"}
"""First words that stand for a profile."""


class UsageError(Exception):
    """The command line makes no sense; the message says what to write instead."""


class Invocation:
    """What one command line asks for.

    Attributes:
        mode: ``help``, ``version``, ``plugin-help``, ``profile``, ``dump-config``, ``plugin`` or
            ``subcommand``.
        name: The profile's name, or the subcommand's.
        patches: Files of ``--patch``, in order.
        args: Words for the app, the package manager or the subcommand.
        default_only: A dump leaves the user's layers out.
        strict: Rows of third parties that fail are fatal too.
    """

    __slots__ = ("args", "default_only", "mode", "name", "patches", "strict")

    def __init__(
        self,
        mode: str,
        name: str = "",
        *,
        patches: Sequence[str] = (),
        args: Sequence[str] = (),
        default_only: bool = False,
        strict: bool = False,
    ) -> None:
        self.mode = mode
        self.name = name
        self.patches = list(patches)
        self.args = list(args)
        self.default_only = default_only
        self.strict = strict

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Invocation) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"Invocation({fields})"


def parse_args(argv: Sequence[str]) -> Invocation:
    """Return what a command line asks for.

    Args:
        argv: The words after the program's name.

    Raises:
        UsageError: it asks for nothing that exists.
    """
    words = list(argv)
    first = words[0] if words else ""
    if first in SUBCOMMANDS:
        return Invocation("subcommand", first, args=words[1:])
    if first == "plugin":
        return _plugin(words[1:])
    if first in ALIASES:
        return _finish(_Options(words[1:], profile=ALIASES[first]))
    return _finish(_Options(words, profile=None))


class _Options:
    """The launcher's options in front of a command line, and the words after them."""

    def __init__(self, words: list[str], profile: str | None) -> None:
        self.words = words
        self.profile = profile
        self.alias = profile is not None
        self.patches: list[str] = []
        self.dump = self.dump_default = self.strict = False
        self.separated = False
        self.rest: list[str] = []
        self.mode = self._read()

    def _read(self) -> str:
        """Take options until a word that is not one; return a mode that ends the reading."""
        here = 0
        while here < len(self.words):
            word = self.words[here]
            if word == "--":
                self.separated = True
                self.rest = self.words[here + 1 :]
                return ""
            if word in {"-h", "--help"} and self.profile is None:
                return "help"
            if word in {"-V", "--version"}:
                return "version"
            taken = self._option(here)
            if taken == 0:
                self.rest = self.words[here:]
                return ""
            here += taken
        return ""

    def _option(self, here: int) -> int:
        """Take one option; return how many words it used, 0 when it is none of ours."""
        word = self.words[here]
        if word == "--dump-config":
            self.dump = True
        elif word == "--dump-default-config":
            self.dump_default = True
        elif word == "--strict":
            self.strict = True
        elif word == "--patch" or word.startswith("--patch="):
            value, used = _value("--patch <path>", self.words, here)
            self.patches.append(value)
            return used
        elif not self.alias and (word == "--profile" or word.startswith("--profile=")):
            self.profile, used = _value("--profile <name>", self.words, here)
            return used
        else:
            return 0
        return 1


def _value(option: str, words: list[str], here: int) -> tuple[str, int]:
    """Return an option's value and how many words it took."""
    flag = option.split()[0]
    word = words[here]
    if word.startswith(f"{flag}="):
        value, used = word[len(flag) + 1 :], 1
    elif here + 1 < len(words) and words[here + 1] not in _OWN_OPTIONS:
        value, used = words[here + 1], 2
    else:
        raise UsageError(f"{option} needs a value")
    if not value.strip():
        raise UsageError(f"{option} needs a value that is not empty")
    return value, used


_OWN_OPTIONS = frozenset(
    ("--", "--profile", "--patch", "--dump-config", "--dump-default-config", "--strict")
)


def _finish(options: _Options) -> Invocation:
    if options.mode:
        return Invocation(options.mode)
    rest = options.rest
    first = rest[0] if rest and not options.separated else ""
    if first in {*ALIASES, "plugin"} and not options.alias:
        raise UsageError(
            f"options stand after the subcommand: write dsh {rest[0]} first, or dsh ... -- "
            f"{rest[0]} when it is a word for the app"
        )
    if options.profile is None:
        _refuse_without_profile(first)
    if options.dump or options.dump_default:
        return _dump(options)
    return Invocation(
        "profile",
        options.profile,
        patches=options.patches,
        args=rest,
        strict=options.strict,
    )


def _dump(options: _Options) -> Invocation:
    if options.dump and options.dump_default:
        raise UsageError("--dump-config and --dump-default-config exclude each other")
    if options.rest:
        raise UsageError(
            f"a dump takes no app arguments, got {options.rest[0]!r}: it does not run the app, "
            "so it could not show their effect"
        )
    if options.dump_default and options.patches:
        raise UsageError("--dump-default-config shows the bundles alone and takes no --patch")
    return Invocation(
        "dump-config",
        options.profile or "",
        patches=options.patches,
        default_only=options.dump_default,
    )


def _refuse_without_profile(word: str) -> NoReturn:
    if word.startswith("-"):
        from dsh.base.text import did_you_mean

        near = did_you_mean(word.split("=")[0], [*sorted(_OWN_OPTIONS), "--help", "--version"])
        raise UsageError(f"unknown option {word!r}{near}; --profile <name> is required")
    if word:
        raise UsageError(f"unknown command {word!r}{_near_command(word)}")
    raise UsageError("--profile <name> is required; dsh --help shows the ways to start")


def _near_command(word: str) -> str:
    from dsh.base.text import nearest

    starts = {name: f"dsh {name}" for name in (*SUBCOMMANDS, *ALIASES, "plugin")}
    starts["headless"] = "dsh --profile headless"
    near = nearest(word, list(starts))
    hint = f"; did you mean {starts[near]!r}?" if near else ";"
    return f"{hint} --profile <name> is required to start an app"


def _plugin(words: list[str]) -> Invocation:
    profile: str | None = None
    here = 0
    while here < len(words):
        word = words[here]
        if word in {"-h", "--help"} and profile is None:
            return Invocation("plugin-help")
        if word == "--profile" or word.startswith("--profile="):
            profile, used = _value("--profile <name>", words, here)
            here += used
            continue
        break
    rest = words[here:]
    if profile is None and rest[:1] == ["new"]:
        # A package to start from belongs to no profile.
        return Invocation("plugin", args=rest)
    if profile is None:
        raise UsageError("plugin: --profile <name> is required before the command")
    if rest and rest[0] == "--":
        rest = rest[1:]
    if not rest:
        raise UsageError("plugin: nothing to do; for example: add <package>")
    return Invocation("plugin", profile, args=rest)
