"""Which files a search looks at."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .globs import Rule, Verdict, match_rules
from .ignores import Folder, folder_rules, global_rules, judge, rules_above


@dataclass
class Selection:
    """What the options select.

    Overrides are globs relative to the working folder. A verdict of theirs is final.
    """

    overrides: list[Rule]
    hidden: bool
    ignore_files: bool
    failed: Callable[[bytes, OSError], None]

    def override(self, path: bytes, is_folder: bool) -> Verdict | None:
        """Return what the overrides say; in their list ``!`` leaves out, unlike in ignore files."""
        if not self.overrides:
            return None
        verdict = match_rules(self.overrides, path, is_folder)
        if verdict is None:
            wanted = any(not rule.whitelist for rule in self.overrides)
            return "ignore" if wanted and not is_folder else None
        return "ignore" if verdict == "whitelist" else "whitelist"


def walk(root: bytes, selection: Selection) -> Iterator[bytes]:
    """Yield the files below ``root`` that are selected; a file named as root is taken as it is.

    Links are not followed, except that ``root`` may be one.
    """
    try:
        if not os.path.isdir(root):
            os.stat(root)
            yield root
            return
    except OSError as error:
        selection.failed(root, error)
        return
    cwd = os.getcwdb()
    absolute = os.path.normpath(os.path.join(cwd, root))
    above = rules_above(absolute) if selection.ignore_files else None
    user_rules = global_rules() if selection.ignore_files else []
    yield from _Walker(selection, cwd, user_rules).below(root, absolute, above)


@dataclass
class _Walker:
    selection: Selection
    cwd: bytes
    user_rules: list[Rule]

    def below(self, shown: bytes, absolute: bytes, above: Folder | None) -> Iterator[bytes]:
        pending = [(shown, absolute, above)]
        while pending:
            shown, absolute, above = pending.pop()
            rules = folder_rules(absolute, above) if self.selection.ignore_files else None
            for entry in self._entries(shown):
                path = os.path.join(shown, entry.name)
                inner = os.path.join(absolute, entry.name)
                is_folder = entry.is_dir(follow_symlinks=False)
                if self._left_out(entry.name, path, inner, is_folder, rules):
                    continue
                if is_folder:
                    pending.append((path, inner, rules))
                elif entry.is_file(follow_symlinks=False):
                    yield path

    def _entries(self, folder: bytes) -> list[os.DirEntry[bytes]]:
        try:
            with os.scandir(folder) as found:
                return list(found)
        except OSError as error:
            self.selection.failed(folder, error)
            return []

    def _left_out(
        self, name: bytes, path: bytes, absolute: bytes, is_folder: bool, rules: Folder | None
    ) -> bool:
        relative = path.removeprefix(b"./")
        if absolute.startswith(self.cwd + b"/"):
            relative = absolute[len(self.cwd) + 1 :]
        verdict = self.selection.override(relative, is_folder)
        if verdict is None and rules is not None:
            verdict = judge(rules, absolute, is_folder, self.user_rules, self.cwd)
        if verdict is not None:
            return verdict == "ignore"
        return not self.selection.hidden and name.startswith(b".")
