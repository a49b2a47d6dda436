"""From what a call says to what an engine is asked."""

from __future__ import annotations

import os
import re

from dsh.capability.search.service import Scope

_SPECIAL = re.compile(r"[*?\[\]{}\\]")


def scope_for(base: str, target: str, *, is_file: bool) -> Scope:
    """Return where to search for a target.

    Below ``base`` globs are relative to ``base``. Outside of it they are relative to the target,
    or nothing could match.

    Args:
        base: The call's folder, absolute.
        target: What the call names, absolute.
        is_file: It is a file.
    """
    if target == base:
        return Scope(base, ".")
    if is_inside(base, target):
        return Scope(base, os.path.relpath(target, base), is_file)
    if is_file:
        return Scope(os.path.dirname(target), os.path.basename(target), True)
    return Scope(target, ".")


def globs_for(pattern: str, scope: Scope) -> tuple[str, ...]:
    """Return the globs that a pattern means.

    A pattern with a slash may be meant from the call's folder or from the searched one, so both
    are tried. Signs that would make an option of it lose their meaning.
    """
    pattern = pattern.removeprefix("./")
    if pattern.startswith(scope.cwd.rstrip("/") + "/"):
        pattern = pattern[len(scope.cwd.rstrip("/")) :]
    stripped = pattern.rstrip()
    # The engine would trim white space at the end, and read `!` and `#` at the start.
    tail = "".join(f"[{char}]" for char in pattern[len(stripped) :])
    globs = [f"\\{stripped}{tail}" if stripped.startswith(("!", "#")) else stripped + tail]
    below = "/" in pattern.rstrip("/") and not pattern.startswith(("/", "**/"))
    if below and scope.path != "." and not scope.is_file:
        globs.append(f"{_SPECIAL.sub(_escaped, scope.path)}/{stripped}{tail}")
    return tuple(globs)


def path_problem(pattern: str) -> str | None:
    """Return what is wrong with a glob that must be a single positive one."""
    if not pattern.strip():
        return "must not be blank"
    if pattern.startswith("!"):
        return "must not start with '!': name what to search, not what to leave out"
    if "," in re.sub(r"\{[^{}]*\}", "", pattern):
        return "must be one glob; put alternatives in braces, as in '*.{ts,tsx}'"
    return None


def is_inside(folder: str, path: str) -> bool:
    """Whether an absolute path lies below a folder."""
    return path.startswith(folder if folder.endswith("/") else folder + "/")


def absolute_path(scope: Scope) -> str:
    """Return the absolute path of what is searched."""
    return os.path.normpath(os.path.join(scope.cwd, scope.path))


def shown_path(base: str, scope: Scope, path: str) -> str:
    """Return how a result is shown: relative to the call's folder when it lies inside."""
    if scope.cwd == base:
        return path
    return os.path.normpath(os.path.join(scope.cwd, path))


def _escaped(special: re.Match[str]) -> str:
    return f"\\{special[0]}"
