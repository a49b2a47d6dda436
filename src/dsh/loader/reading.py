"""Reading a file of a user's, whatever it turns out to be: bounded, and without waiting."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def read_bounded(path: Path, size_bytes: int, *, pipe: bool = False) -> bytes:
    """Return what a file begins with.

    A device never ends, and a pipe says nothing until somebody writes to it: neither may keep a
    start, or whoever follows the file, waiting.

    Args:
        path: The file.
        size_bytes: The most that is read.
        pipe: Wait for a pipe: its name was given as one, as the shell does for ``<(command)``.

    Raises:
        OSError: what the operating system says; or it is a pipe.
    """
    flags = 0 if pipe else os.O_NONBLOCK
    with open(path, "rb", opener=lambda name, mode: os.open(name, mode | flags)) as file:
        if not pipe and stat.S_ISFIFO(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "is a pipe, not a file", str(path))
        # None is a device that has nothing to say now.
        return file.read(size_bytes) or b""
