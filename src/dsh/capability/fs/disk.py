"""Looking at files: blocking functions over canonical paths."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from dsh.capability.fs import paths
from dsh.capability.fs.place import not_regular, read_all
from dsh.capability.fs.service import (
    FsEntry,
    FsError,
    FsInfo,
    FsLinkInfo,
    FsTarget,
    FsType,
)
from dsh.capability.fs.text import decode_text

if TYPE_CHECKING:
    from dsh.capability.fs.worker import Stop

# Non-blocking, or opening a named pipe would wait for its writer.
_OPEN = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


def type_of(mode: int) -> FsType:
    """Return what a mode says the path is."""
    if stat.S_ISREG(mode):
        return "file"
    return "directory" if stat.S_ISDIR(mode) else "other"


def info_of(status: os.stat_result) -> FsInfo:
    """Return the public part of a status."""
    return FsInfo(paths.version_of(status), type_of(status.st_mode), status.st_size)


def look(target: FsTarget) -> FsInfo | None:
    """Examine a target, links followed; ``None`` when nothing is there."""
    try:
        with paths.errors_of(target.display_path):
            return info_of(os.stat(target.target_key))
    except FsError as error:
        if error.code == "FS_NOT_FOUND":
            return None
        raise


def look_at_link(path: str) -> FsLinkInfo | None:
    """Examine an absolute path without following its last component."""
    try:
        with paths.errors_of(path):
            status = os.lstat(path)
    except FsError as error:
        if error.code == "FS_NOT_FOUND":
            return None
        raise
    kind: Literal["file", "directory", "symlink", "other"] = type_of(status.st_mode)
    if stat.S_ISLNK(status.st_mode):
        kind = "symlink"
    return FsLinkInfo(paths.version_of(status), kind, status.st_size)


@contextmanager
def opened_file(target: FsTarget) -> Iterator[tuple[int, os.stat_result]]:
    """Hold a regular file open for reading, with its status at that moment.

    Raises:
        FsError: ``FS_NOT_FOUND``, ``FS_NOT_REGULAR_FILE``, ``FS_PERMISSION_DENIED``.
    """
    fd, status = open_file(target)
    try:
        with paths.errors_of(target.display_path):
            yield fd, status
    finally:
        os.close(fd)


def open_file(target: FsTarget) -> tuple[int, os.stat_result]:
    """Open a regular file for reading; the caller closes it. Raises as `opened_file`."""
    try:
        fd = os.open(target.target_key, _OPEN)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise not_regular(target.display_path) from error
        raise paths.system_error(error, target.display_path) from error
    status = os.fstat(fd)
    if stat.S_ISREG(status.st_mode):
        return fd, status
    os.close(fd)
    if stat.S_ISDIR(status.st_mode):
        raise FsError(
            f"{target.display_path!r} is a folder, not a file; use glob to see what is in it",
            code="FS_NOT_REGULAR_FILE",
        )
    raise not_regular(target.display_path)


def read_text(
    target: FsTarget, stop: Stop, stream_from: int | None = None
) -> tuple[FsInfo, str | None]:
    """Read a text file, or only examine it when it has ``stream_from`` bytes or more."""
    with opened_file(target) as (fd, status):
        if stream_from is not None and status.st_size >= stream_from:
            return info_of(status), None
        stop.check()
        data = read_all(fd, status.st_size)
    return info_of(status), decode_text(data, target.display_path)


def read_whole_text(target: FsTarget, stop: Stop) -> str:
    """Read a text file whatever its size."""
    with opened_file(target) as (fd, status):
        data = read_all(fd, status.st_size)
    stop.check()
    return decode_text(data, target.display_path)


def read_text_if_there(
    target: FsTarget, stop: Stop, stream_from: int | None
) -> tuple[FsInfo, str | None] | tuple[None, None]:
    """As `read_text`, but nothing there is a result."""
    try:
        return read_text(target, stop, stream_from)
    except FsError as error:
        if error.code == "FS_NOT_FOUND":
            return None, None
        raise


def read_bytes(target: FsTarget, max_bytes: int, stop: Stop) -> bytes:
    """Read at most ``max_bytes``; more is refused, also when the file grows meanwhile."""
    with opened_file(target) as (fd, status):
        if status.st_size > max_bytes:
            raise too_large(target, status.st_size, max_bytes)
        data = bytearray()
        while chunk := os.read(fd, min(1 << 20, max_bytes + 1 - len(data))):
            stop.check()
            data += chunk
            if len(data) > max_bytes:
                raise too_large(target, len(data), max_bytes)
    return bytes(data)


def too_large(target: FsTarget, size: int, max_bytes: int) -> FsError:
    """Return the refusal of a file over a limit."""
    return FsError(
        f"{target.display_path!r} has {size} bytes or more; at most {max_bytes} may be read",
        code="FS_TOO_LARGE",
    )


def list_dir(target: FsTarget, stop: Stop) -> list[FsEntry]:
    """Return the entries of a folder by name."""
    if (info := look(target)) is None:
        raise paths.no_such_file(target.display_path)
    if info.type != "directory":
        raise FsError(f"{target.display_path!r} is not a folder", code="FS_NOT_DIRECTORY")
    with paths.errors_of(target.display_path), os.scandir(target.target_key) as found:
        entries = []
        for entry in found:
            stop.check()
            entries.append(_entry(entry, target))
    return sorted(entries, key=lambda entry: entry.name)


def _entry(entry: os.DirEntry[str], parent: FsTarget) -> FsEntry:
    shown = os.path.join(parent.display_path, entry.name)
    try:
        key = paths.identity(entry.path) if entry.is_symlink() else entry.path
        status = entry.stat()
    except OSError:
        return FsEntry(entry.name, "other", FsTarget(entry.path, shown), None, None)
    info = info_of(status)
    return FsEntry(entry.name, info.type, FsTarget(key, shown), info.version, info.size)
