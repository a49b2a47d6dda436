"""Files that survive a crash: atomic writes, durable folders, locks between processes."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from dsh.base.errors import DshError


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


def fsync_dir(path: Path) -> None:
    """Make the entries of a folder durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
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
    fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if mode is None else mode)
    try:
        try:
            keep = _mode_of(path) if mode is None else mode
            if keep is not None:
                os.fchmod(fd, keep)
            write_all(fd, data)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(temp, path)
    except BaseException:
        temp.unlink(missing_ok=True)
        raise
    fsync_dir(path.parent)


def write_all(fd: int, data: bytes) -> None:
    """Write every byte, however often the operating system takes only a part."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


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
