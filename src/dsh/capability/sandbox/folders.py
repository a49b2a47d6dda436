"""Private folders for temporary files, which go away with their owner however it ends."""

from __future__ import annotations

import fcntl
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress

from dsh.base.deletion import delete_tree

_PREFIX = "dsh-tmp-"
_NAME = re.compile(r"dsh-tmp-[a-z0-9_]{8}")
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class PrivateFolder:
    """A new folder (mode 0700) with folders in it, held by a lock that ends with this process.

    Commands may be able to change what is around it, so nothing in it is trusted by name alone.
    """

    def __init__(self) -> None:
        """Make it; blocks.

        Raises:
            OSError: there is no place for temporary files.
        """
        self.path, self._fd = _make()
        self._made: dict[str, tuple[int, int]] = {}

    def inner(self, name: str) -> str:
        """Return the path of a folder in it, made on first use.

        Raises:
            OSError: it cannot be made, or is not the folder any more that was made.
        """
        path = f"{self.path}/{name}"
        with suppress(FileExistsError):
            os.mkdir(path, mode=0o700)
            self._made[name] = _identity(path)
        if _identity(path) != self._made.get(name) or os.path.realpath(path) != path:
            raise FileExistsError(17, "the private folder was replaced by something else", path)
        return path

    def remove(self) -> None:
        """Delete it with all it holds; blocks."""
        with suppress(OSError):
            delete_tree(self.path, self._fd)
        os.close(self._fd)


def sweep() -> None:
    """Delete the folders whose owners ended without doing so, such as by SIGKILL; blocks.

    The lock tells: it ends with its owner, even in another container that shares the folder.
    """
    for path in _left_over():
        with suppress(OSError):
            fd = os.open(path, _OPEN)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                delete_tree(path, fd)
            finally:
                os.close(fd)


def _left_over() -> Iterator[str]:
    """Yield folders that look like ours and belong to this user."""
    try:
        with os.scandir(os.path.realpath(tempfile.gettempdir())) as entries:
            for entry in entries:
                if not _NAME.fullmatch(entry.name):
                    continue
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid():
                    yield entry.path
    except OSError:
        return


def _make() -> tuple[str, int]:
    while True:
        path = os.path.realpath(tempfile.mkdtemp(prefix=_PREFIX))
        with suppress(FileNotFoundError, BlockingIOError):
            fd = os.open(path, _OPEN)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Until the lock was taken somebody who sweeps may have found it abandoned.
                if _identity(path) == _identity(fd):
                    return path, fd
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)


def _identity(place: str | int) -> tuple[int, int]:
    status = os.fstat(place) if isinstance(place, int) else os.lstat(place)
    return status.st_dev, status.st_ino
