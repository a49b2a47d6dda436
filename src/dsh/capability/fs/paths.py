"""Paths: what they identify, what they show, and what the system's errors mean for them."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from dsh.base.text import replace_surrogates
from dsh.capability.fs.service import FsError, FsErrorCode, FsTarget

_CODES: dict[int, FsErrorCode] = {
    errno.ENOENT: "FS_NOT_FOUND",
    errno.ENOTDIR: "FS_NOT_FOUND",
    errno.EACCES: "FS_PERMISSION_DENIED",
    errno.EPERM: "FS_PERMISSION_DENIED",
    errno.EROFS: "FS_PERMISSION_DENIED",
    errno.EISDIR: "FS_NOT_REGULAR_FILE",
}


def no_such_file(path: str) -> FsError:
    """Return the refusal for a path that leads nowhere."""
    return FsError(f"no such file: {path!r}", code="FS_NOT_FOUND")


_OF_PROCESSES = re.compile(
    r"/proc/(kcore|(\d+|self|thread-self)(/task/\d+)?/(environ|mem|pagemap|auxv))"
)
"""Memory that the kernel shows as files; dsh's own holds secrets."""


@contextmanager
def errors_of(path: str) -> Iterator[None]:
    """Turn what the system says about ``path`` into `FsError`."""
    try:
        yield
    except OSError as error:
        raise system_error(error, path) from error


def system_error(error: OSError, path: str) -> FsError:
    """Return what an error of the system means for an operation on ``path``."""
    code = _CODES.get(error.errno or 0, "FS_IO_ERROR")
    if code == "FS_NOT_FOUND":
        return no_such_file(path)
    return FsError(f"{path!r}: {error.strerror or error}", code=code)


def absolute(path: str, cwd: str) -> str:
    """Join ``path`` to ``cwd`` without following anything; ``..`` stays where it is.

    Raises:
        FsError: ``FS_NOT_FOUND`` when no file can have this path.
    """
    if not path.strip():
        raise FsError("the path is blank", code="FS_NOT_FOUND")
    # A name that is no text could not be shown again either.
    if "\0" in path or replace_surrogates(path) != path:
        raise no_such_file(path)
    return os.path.join(cwd, path)


def resolve(path: str, cwd: str) -> FsTarget:
    """Find what ``path`` identifies. Blocks.

    Raises:
        FsError: no file can have this path, or a folder on the way cannot be searched.
    """
    joined = absolute(path, cwd)
    climbs = ".." in joined.split("/")
    if climbs and not os.path.isabs(path):
        joined = os.path.join(os.path.realpath(cwd), path)
    with errors_of(path):
        key = identity(joined)
    if _OF_PROCESSES.fullmatch(key):
        raise FsError(f"{path!r} is memory, not a file", code="FS_PERMISSION_DENIED")
    # After a link, `..` means another folder than the text suggests: show where it leads.
    return FsTarget(key, key if climbs else os.path.normpath(joined))


def identity(path: str) -> str:
    """Return the canonical path; what is missing is named below the nearest existing folder.

    A link whose end is missing counts as existing itself: it is named, not followed. Blocks.

    Raises:
        OSError: anything but a missing component.
    """
    head, missing = path, list[str]()
    while True:
        try:
            real = os.path.realpath(head, strict=True)
        except (FileNotFoundError, NotADirectoryError):
            head, name = os.path.split(head.rstrip("/"))
            missing.append(name)
        else:
            break
    if not missing:
        return real
    joined = os.path.normpath(os.path.join(real, *reversed(missing)))
    # Collapsing `..` can end at a path that exists and goes through links.
    return identity(joined) if ".." in missing else joined


def contains(parent: str, child: str) -> bool:
    """Whether a canonical path is another one or lies below it."""
    return child == parent or child.startswith(parent if parent.endswith("/") else parent + "/")


def version_of(status: os.stat_result) -> str:
    """Return the version of a file: anything that a write, a replacement or a chmod changes."""
    return (
        f"{status.st_dev}:{status.st_ino}:{status.st_size}"
        f":{status.st_mtime_ns}:{status.st_ctime_ns}"
    )
