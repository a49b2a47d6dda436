"""Which files a search leaves out: ignore files on the way down, of folders above, of git."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field

from .globs import BadGlob, Rule, Verdict, match_rules, parse_rule

# Kinds of rules by rank: a verdict of an earlier one outranks those of all later ones.
_FILES = ((b".rgignore", False), (b".ignore", False), (b".gitignore", True))
_KINDS = 4
_EXCLUDES = re.compile(rb'(?im)^\s*excludesfile\s*=\s*"?\s*(\S+?)\s*"?\s*$')


@dataclass
class Folder:
    """The ignore rules of one folder, linked to those of the folder above."""

    path: bytes
    parent: Folder | None
    rules: list[list[Rule]] = field(default_factory=list)
    has_git: bool = False
    in_repository: bool = False


def folder_rules(path: bytes, parent: Folder | None) -> Folder:
    """Read the ignore files of a folder."""
    folder = Folder(path, parent)
    folder.has_git = os.path.lexists(os.path.join(path, b".git"))
    folder.in_repository = folder.has_git or (parent is not None and parent.in_repository)
    folder.rules = [read_rules(os.path.join(path, name)) for name, _ in _FILES]
    exclude = os.path.join(path, b".git/info/exclude")
    folder.rules.append(read_rules(exclude) if folder.has_git else [])
    return folder


def rules_above(path: bytes) -> Folder | None:
    """Return the rules of all folders above ``path``."""
    above = os.path.dirname(path)
    if above == path:
        return None
    return folder_rules(above, rules_above(above))


def read_rules(path: bytes) -> list[Rule]:
    """Read an ignore file; lines that make no sense are left out, as is a missing file."""
    try:
        with open(path, "rb") as file:
            lines = file.read().removeprefix(b"\xef\xbb\xbf").splitlines()
    except OSError:
        return []
    rules: list[Rule] = []
    for line in lines:
        try:
            rule = parse_rule(line)
        except BadGlob:
            continue
        if rule is not None:
            rules.append(rule)
    return rules


def global_rules() -> list[Rule]:
    """Read the ignore file of the user that git is configured with."""
    home = os.path.expanduser(b"~")
    config = os.environb.get(b"XDG_CONFIG_HOME") or os.path.join(home, b".config")
    for settings in (os.path.join(home, b".gitconfig"), os.path.join(config, b"git/config")):
        try:
            with open(settings, "rb") as file:
                found = _EXCLUDES.search(file.read())
        except OSError:
            continue
        if found:
            return read_rules(os.path.expanduser(found[1]))
    return read_rules(os.path.join(config, b"git/ignore"))


def judge(
    folder: Folder, path: bytes, is_folder: bool, user_rules: list[Rule], base: bytes
) -> Verdict | None:
    """Return what the ignore rules that reach ``path`` say of it.

    Args:
        folder: Rules of the folder that holds it.
        path: Absolute.
        is_folder: Whether it is a folder.
        user_rules: Rules of the user, which count in repositories only.
        base: What the user's rules are relative to.
    """
    verdicts: list[Verdict | None] = [None] * _KINDS
    current: Folder | None = folder
    saw_git = False
    while current is not None:
        relative = path[len(current.path) :].lstrip(b"/")
        for kind, rules in enumerate(current.rules):
            of_git = kind == _KINDS - 1 or _FILES[kind][1]
            if verdicts[kind] is None and rules and not (of_git and saw_git):
                if of_git and not folder.in_repository:
                    continue
                verdicts[kind] = match_rules(rules, relative, is_folder)
        saw_git = saw_git or current.has_git
        current = current.parent
    for verdict in verdicts:
        if verdict is not None:
            return verdict
    if folder.in_repository and user_rules:
        return match_rules(user_rules, path.removeprefix(base).lstrip(b"/"), is_folder)
    return None
