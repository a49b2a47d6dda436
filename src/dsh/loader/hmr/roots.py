"""Which files are watched: those below the roots that no pattern excludes."""

from __future__ import annotations

import os
import re
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

IGNORED: Final = ("**/node_modules", "**/.*", "cache", "data", "**/__pycache__", "**/.venv")
"""What is excluded unless a row says otherwise."""
_INSTALLED: Final = frozenset({"site-packages", "dist-packages"})
_LIBRARY: Final = tuple(
    os.path.realpath(path) + "/"
    for name in ("stdlib", "platstdlib", "purelib", "platlib")
    if (path := sysconfig.get_paths().get(name))
)


class Roots:
    """Folders whose files are followed.

    Attributes:
        folders: Absolute, without links.
    """

    def __init__(self, folders: Sequence[Path], ignored: Sequence[str] = IGNORED) -> None:
        self.folders = tuple(dict.fromkeys(os.path.realpath(each) for each in folders))
        self._prefixes = tuple(each.rstrip("/") + "/" for each in self.folders)
        self._ignored = re.compile("|".join(map(_pattern, ignored)) or r"(?!)")
        self._libraries = tuple(
            each for each in _LIBRARY if not any(f.startswith(each) for f in self._prefixes)
        )
        self._real: dict[str, str] = {}
        self._sources: dict[str, bool] = {}

    def has(self, real: str) -> bool:
        """Tell whether a path, without links, is below a root and not excluded."""
        return any(self._takes(prefix, real) for prefix in self._prefixes)

    def has_source(self, path: str) -> bool:
        """Tell whether a file is Python of the user's, neither installed nor the library's."""
        known = self._sources.get(path)
        if known is None:
            known = self._sources[path] = self._is_source(path)
        return known

    def real(self, path: str) -> str:
        """Return a module's file without links; remembered, for it is asked often."""
        found = self._real.get(path)
        if found is None:
            found = self._real[path] = os.path.realpath(path)
        return found

    def walk(self) -> Iterator[str]:
        """Yield all folders that are not excluded, each before those in it. Reads folders."""
        for folder, prefix in zip(self.folders, self._prefixes, strict=True):
            for here, below, _ in os.walk(folder):
                yield here
                below[:] = [name for name in below if self._takes(prefix, f"{here}/{name}")]

    def _is_source(self, path: str) -> bool:
        real = self.real(path)
        if not real.endswith(".py") or not self.has(real):
            return False
        return not real.startswith(self._libraries) and _INSTALLED.isdisjoint(real.split("/"))

    def _takes(self, prefix: str, real: str) -> bool:
        if not real.startswith(prefix):
            return False
        parts = real[len(prefix) :].split("/")
        return not any(
            self._ignored.fullmatch("/".join(parts[:count])) for count in range(1, len(parts) + 1)
        )


def _pattern(glob: str) -> str:
    """Return the regular expression of a glob; ``**/`` is any number of folders."""
    out = []
    for piece in re.split(r"(\*\*/|\*\*|\*|\?)", glob.removeprefix("./").rstrip("/")):
        match piece:
            case "**/":
                out.append(r"(?:[^/]+/)*")
            case "**":
                out.append(r".*")
            case "*":
                out.append(r"[^/]*")
            case "?":
                out.append(r"[^/]")
            case _:
                out.append(re.escape(piece))
    return f"(?:{''.join(out)})"
