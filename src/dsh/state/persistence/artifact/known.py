"""Listings that were made before, so that only files that changed are read again."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

    from dsh.state.persistence.artifact.catalog import CatalogEntry

_LIMIT = 10_000
_SETTLED_S = 2.0  # longer than the clock of any file system stands still


class Known:
    """What was found in the files below one sessions root.

    A listing of a project replaces what an earlier one found there, so that files that are gone
    are forgotten. Listings may be made at the same time, in several threads.

    Args:
        limit: About how many files are remembered; the others are read each time.
        settled_s: How long ago a file must have changed last. One that changed a moment ago may
            change again and look the same.
    """

    def __init__(self, limit: int = _LIMIT, settled_s: float = _SETTLED_S) -> None:
        self._limit = limit
        self._settled_ns = int(settled_s * 1e9)
        self._projects: dict[str, Listed] = {}

    def listed(self, project: str) -> Listed:
        """Return what the last listing of a project found; empty when there was none."""
        return self._projects.get(project) or Listed(0, 0)

    def begin(self, project: str) -> Listed:
        """Return what a new listing of a project is put into."""
        others = sum(len(each) for key, each in self._projects.copy().items() if key != project)
        return Listed(self._limit - others, time.time_ns() - self._settled_ns)

    def finish(self, project: str, found: Listed) -> None:
        """Remember a listing of a project that is complete."""
        self._projects[project] = found

    def keep_only(self, projects: Iterable[str]) -> None:
        """Forget all other projects."""
        for gone in self._projects.copy().keys() - set(projects):
            self._projects.pop(gone, None)


class Listed:
    """The sound files of one project, each as it was when it was read.

    Args:
        room: How many there may be.
        before_ns: Only files are remembered that changed last before this.
    """

    __slots__ = ("_before_ns", "_entries", "_room")

    def __init__(self, room: int, before_ns: int) -> None:
        self._room = room
        self._before_ns = before_ns
        self._entries: dict[str, tuple[tuple[int, ...], CatalogEntry]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, path: str, stat: os.stat_result) -> CatalogEntry | None:
        """Return what was found in a file, unless it has changed since."""
        known = self._entries.get(path)
        return known[1] if known is not None and known[0] == _state(stat) else None

    def put(self, path: str, stat: os.stat_result, entry: CatalogEntry) -> None:
        """Remember what was found in a file.

        Args:
            path: The file.
            stat: Its state before it was read.
            entry: What was found.
        """
        if stat.st_ctime_ns < self._before_ns and len(self._entries) < self._room:
            self._entries[path] = (_state(stat), entry)


def _state(stat: os.stat_result) -> tuple[int, ...]:
    return (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
