"""A disk that fails on demand, in the place of the real one."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from dsh.base.files import Disk, writing_through

__all__ = ["Fault", "FaultyDisk", "Operation", "faulty_disk"]

Operation = Literal["open", "write", "sync", "truncate", "link", "replace", "mkdir"]


class Fault:
    """One way in which the disk fails, until it is mended.

    Attributes:
        hits: How often it struck.
    """

    def __init__(
        self, operation: Operation, error: int, below: Path, room: int, passes: int, times: int
    ) -> None:
        self.operation = operation
        self.hits = 0
        self.room = room
        self._error = error
        self._below = below
        self._passes = passes
        self._times = times

    def strikes(self, operation: Operation, path: Path) -> bool:
        """Tell whether an operation fails; those that pass are counted."""
        if operation != self.operation or self.hits >= self._times:
            return False
        if not path.is_relative_to(self._below):
            return False
        if self._passes > 0:
            self._passes -= 1
            return False
        return True

    def strike(self, path: Path) -> OSError:
        """Return what the operating system would say."""
        self.hits += 1
        return OSError(self._error, os.strerror(self._error), str(path))

    def mend(self) -> None:
        """Fail no more."""
        self._times = 0


class FaultyDisk(Disk):
    """The real disk, apart from what a test wants to fail. Made for Linux."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []
        self._lock = threading.Lock()

    def fail(
        self,
        operation: Operation,
        error: int,
        *,
        below: Path = Path("/"),
        room: int = 0,
        passes: int = 0,
        times: int = 1 << 62,
    ) -> Fault:
        """Let an operation fail from now on.

        Args:
            operation: What fails.
            error: The number that the operating system gives, of `errno`.
            below: Only for this file, or for those in this folder.
            room: How many bytes of writes still fit before; the one that does not is cut short.
            passes: How many calls succeed before the first that fails.
            times: How many calls fail before all is well again.
        """
        fault = Fault(operation, error, below, room, passes, times)
        self._faults.append(fault)
        return fault

    def mend(self) -> None:
        """Let nothing fail any more."""
        for fault in self._faults:
            fault.mend()

    def open(self, path: Path, flags: int, mode: int) -> int:
        """See `Disk.open`."""
        self._try("open", path)
        return super().open(path, flags, mode)

    def write(self, fd: int, data: memoryview) -> int:
        """See `Disk.write`; a disk that fills up takes what fits, as a real one does."""
        path = _path_of(fd)
        with self._lock:
            fault = self._fault("write", path)
            if fault is not None:
                if fault.room == 0:
                    raise fault.strike(path)
                data = data[: fault.room]
                fault.room -= len(data)
        return super().write(fd, data)

    def sync(self, fd: int) -> None:
        """See `Disk.sync`."""
        self._try("sync", _path_of(fd))
        super().sync(fd)

    def truncate(self, fd: int, size: int) -> None:
        """See `Disk.truncate`."""
        self._try("truncate", _path_of(fd))
        super().truncate(fd, size)

    def link(self, source: Path, target: Path) -> None:
        """See `Disk.link`."""
        self._try("link", target)
        super().link(source, target)

    def replace(self, source: Path, target: Path) -> None:
        """See `Disk.replace`."""
        self._try("replace", target)
        super().replace(source, target)

    def mkdir(self, path: Path, mode: int) -> None:
        """See `Disk.mkdir`."""
        self._try("mkdir", path)
        super().mkdir(path, mode)

    def _try(self, operation: Operation, path: Path) -> None:
        with self._lock:
            fault = self._fault(operation, path)
            if fault is not None:
                raise fault.strike(path)

    def _fault(self, operation: Operation, path: Path) -> Fault | None:
        return next((each for each in self._faults if each.strikes(operation, path)), None)


@contextmanager
def faulty_disk() -> Iterator[FaultyDisk]:
    """Put a disk in the place of the real one that fails as it is told to."""
    disk = FaultyDisk()
    with writing_through(disk):
        yield disk


def _path_of(fd: int) -> Path:
    return Path(f"/proc/self/fd/{fd}").readlink()
