"""What lies beside a session's file: ends that a repair cut off, and files that were never whole.

A repair destroys nothing. What it takes off the end of a log is kept in a file of its own, which
no reader of sessions looks at, so that a person can.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from dsh.base.files import disk, fsync_dir, sync, write_all
from dsh.state.persistence.artifact.layout import artifacts_in, project_dirs, session_dirs
from dsh.state.persistence.artifact.leases import LEASE_FILE

_MODE = 0o600
_BLOCK = 1 << 20
_STALE_S = 3600.0


def keep_aside(path: Path, start: int, sync: Callable[[int], None] = sync) -> Path:
    """Keep the end of a file in a file of its own; durable on return.

    When a crash came between this and the cut, the same end is not kept twice.

    Args:
        path: The file of a session.
        start: Where the end begins.
        sync: Makes a file descriptor durable.

    Raises:
        OSError: it cannot be kept; then nothing may be cut.
    """
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    name = f"{path.name}.lost-{stamp}"
    for old in kept_aside(path):
        if _is_end(old, path, start):
            return old
    kept = path.with_name(name)
    number = 1
    while kept.exists():
        number += 1
        kept = path.with_name(f"{name}-{number}")
    fd = disk().open(kept, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE)
    try:
        for block in _blocks(path, start):
            write_all(fd, block)
        sync(fd)
    except BaseException:
        kept.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)
    fsync_dir(kept.parent)
    return kept


def kept_aside(path: Path) -> list[Path]:
    """Return the ends of a session's file that repairs have cut off, oldest first."""
    return sorted(path.parent.glob(f"{path.name}.lost-*"))


def temporaries(path: Path) -> list[Path]:
    """Return what writers of a session's file left that were killed before it was whole."""
    return list(path.parent.glob(f"{path.name}.*.tmp"))


def remove_unpublished(root: Path, *, older_than_s: float = _STALE_S) -> list[Path]:
    """Remove the folders of sessions whose writer was killed before it published anything.

    Args:
        root: The sessions root.
        older_than_s: How long nothing must have changed in such a folder; what is younger may
            be about to be published.

    Returns:
        The folders.

    Raises:
        OSError: one of them cannot be removed.
    """
    removed = []
    for project in project_dirs(root):
        for folder in list(session_dirs(project)):
            if not artifacts_in(folder) and _is_leftover(folder, older_than_s):
                for path in folder.iterdir():
                    path.unlink()
                folder.rmdir()
                removed.append(folder)
    return removed


def _is_leftover(folder: Path, older_than_s: float) -> bool:
    names = [path.name for path in folder.iterdir()]
    ours = all(name == LEASE_FILE or name.endswith(".tmp") for name in names)
    return ours and time.time() - folder.stat().st_mtime > older_than_s


def _is_end(kept: Path, path: Path, start: int) -> bool:
    if kept.stat().st_size != path.stat().st_size - start:
        return False
    pairs = zip(_blocks(kept, 0), _blocks(path, start), strict=False)
    return all(mine == theirs for mine, theirs in pairs)


def _blocks(path: Path, start: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        file.seek(start)
        while block := file.read(_BLOCK):
            yield block
