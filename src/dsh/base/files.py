"""Files that survive a crash: atomic writes, durable folders, locks between processes.

What must be durable is written through one `Disk`, so that a test can put a disk that fails in
the place of the real one (`dsh.testing.faults`).
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from dsh.base.errors import DshError

_TOKEN = frozenset("0123456789abcdef")


class LockTimeout(DshError, TimeoutError):
    """Another process held a file lock for longer than the caller would wait."""

    code = "LOCK_TIMEOUT"

    def __init__(self, path: Path, waited_s: float) -> None:
        super().__init__(
            f"{str(path)!r} is locked by another process (waited {waited_s:g} s); "
            "try again when that process has finished"
        )
        self.path = path
        self.waited_s = waited_s


class Disk:
    """What is asked of the operating system to change files. Every method raises ``OSError``."""

    def open(self, path: Path, flags: int, mode: int) -> int:
        """See `os.open`."""
        return os.open(path, flags, mode)

    def write(self, fd: int, data: memoryview) -> int:
        """See `os.write`."""
        return os.write(fd, data)

    def sync(self, fd: int) -> None:
        """See `os.fsync`."""
        os.fsync(fd)

    def truncate(self, fd: int, size: int) -> None:
        """See `os.ftruncate`."""
        os.ftruncate(fd, size)

    def link(self, source: Path, target: Path) -> None:
        """See `os.link`."""
        os.link(source, target)

    def replace(self, source: Path, target: Path) -> None:
        """See `os.replace`."""
        os.replace(source, target)

    def mkdir(self, path: Path, mode: int) -> None:
        """See `os.mkdir`."""
        os.mkdir(path, mode)


_disk = Disk()


def disk() -> Disk:
    """Return the disk that everything durable is written through."""
    return _disk


@contextmanager
def writing_through(other: Disk) -> Iterator[None]:
    """Put another disk in the place of the real one, for all threads of this process."""
    global _disk  # threads that write have no context to carry it in
    before, _disk = _disk, other
    try:
        yield
    finally:
        _disk = before


def sync(fd: int) -> None:
    """Make the content of an open file durable."""
    _disk.sync(fd)


def fsync_dir(path: Path) -> None:
    """Make the entries of a folder durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _disk.sync(fd)
    finally:
        os.close(fd)


def write_atomic(path: Path, data: bytes, *, mode: int | None = None) -> None:
    """Replace a file as one step: readers see the old bytes or the new ones.

    The bytes and the folder entry are on disk when this returns. On failure the old file is
    untouched and nothing stays behind.

    Args:
        path: The file; its folder must exist. A symbolic link is replaced, not followed.
        data: The whole content.
        mode: Permission bits. ``None`` keeps those of the file that is replaced, or gives a
            new file what the umask allows.

    Raises:
        OSError: what the operating system says.
    """
    temp = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    fd = _disk.open(temp, flags, 0o666 if mode is None else mode)
    try:
        try:
            keep = _mode_of(path) if mode is None else mode
            if keep is not None:
                os.fchmod(fd, keep)
            write_all(fd, data)
            _disk.sync(fd)
        finally:
            os.close(fd)
        _disk.replace(temp, path)
    except BaseException:
        temp.unlink(missing_ok=True)
        raise
    fsync_dir(path.parent)


def sweep_unfinished(path: Path) -> None:
    """Remove what writers of a file left behind that were killed; what cannot be removed stays.

    Only for whoever holds the lock that every writer of the file takes.
    """
    before, after = f".{path.name}.", ".tmp"
    with suppress(OSError):
        for each in path.parent.iterdir():
            name = each.name
            middle = name[len(before) : -len(after)]
            if name == f"{before}{middle}{after}" and _TOKEN.issuperset(middle):
                each.unlink(missing_ok=True)


def write_all(fd: int, data: bytes) -> None:
    """Write every byte, however often the operating system takes only a part."""
    view = memoryview(data)
    while view:
        view = view[_disk.write(fd, view) :]


def _mode_of(path: Path) -> int | None:
    try:
        return os.stat(path).st_mode & 0o7777
    except FileNotFoundError:
        return None


def lock_fd(
    fd: int, path: Path, *, timeout_s: float, sleep: Callable[[float], object] = time.sleep
) -> None:
    """Lock an open file for this descriptor alone; closing it ends the lock.

    Args:
        fd: The descriptor.
        path: What the error names.
        timeout_s: How long to wait for another holder; blocks the thread.
        sleep: How to wait.

    Raises:
        LockTimeout: another descriptor holds the lock.
        OSError: the file system has no locks.
    """
    end = time.monotonic() + timeout_s
    pause = 0.005
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EINTR):
                raise
        else:
            return
        if time.monotonic() >= end:
            raise LockTimeout(path, timeout_s)
        sleep(pause)
        pause = min(pause * 2, 0.2)


class FileLock:
    """An exclusive lock between processes, held on a file beside the one it guards.

    The operating system drops it when its holder dies. Not re-entrant; entering blocks the
    thread, so use it off the event loop.
    """

    def __init__(
        self, path: Path, *, timeout_s: float = 2.0, sleep: Callable[[float], object] = time.sleep
    ) -> None:
        self.path = path.with_name(path.name + ".lock")
        self._timeout_s = timeout_s
        self._sleep = sleep
        self._fd = -1

    def __enter__(self) -> Self:
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            lock_fd(fd, self.path, timeout_s=self._timeout_s, sleep=self._sleep)
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._fd)
        self._fd = -1
