"""Where a file is changed: its folder held open, so that no swapped link can lead elsewhere.

A path that was checked and is then opened by name may have become another path in between.
So the way from a trusted folder down to the parent is walked one component at a time without
following links, and everything else happens relative to the descriptor that this gives.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dsh.base.values import value
from dsh.capability.fs.service import FsError

_WALK = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK = 1 << 20


@value
class Place:
    """A canonical path as a trusted folder and the components below it."""

    base: str
    parts: tuple[str, ...]
    path: str
    """For messages."""
    fenced: bool
    """The base is the border of what may be changed."""


@value
class Folder:
    """An open parent folder and the one name in it that is at stake."""

    fd: int
    name: str
    path: str

    def status(self) -> os.stat_result | None:
        """Examine the name itself; ``None`` when nothing has it."""
        try:
            return os.stat(self.name, dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def read(self, limit: int | None = None) -> tuple[bytes, os.stat_result]:
        """Read the file, or its first ``limit`` bytes, with its status from just before."""
        fd = os.open(self.name, _READ | os.O_NOFOLLOW, dir_fd=self.fd)
        try:
            status = os.fstat(fd)
            if limit is not None:
                return os.read(fd, limit), status
            return read_all(fd, status.st_size), status
        finally:
            os.close(fd)


@contextmanager
def opened(place: Place, *, create: bool) -> Iterator[Folder]:
    """Hold the parent folder of a place open.

    Args:
        place: What is at stake.
        create: Make missing folders on the way.

    Raises:
        FileNotFoundError: a folder is missing and may not be made.
        FsError: ``FS_NOT_REGULAR_FILE`` for the trusted folder itself, ``FS_NOT_DIRECTORY`` for a
            way through a file or a link, ``FS_SANDBOX_DENIED`` for a link below a fenced base.
    """
    if not place.parts:
        raise not_regular(place.path)
    fd = os.open(place.base, _WALK)
    try:
        for part in place.parts[:-1]:
            inner = _step(fd, part, place, create)
            os.close(fd)
            fd = inner
        yield Folder(fd, place.parts[-1], place.path)
    finally:
        os.close(fd)


def _step(fd: int, part: str, place: Place, create: bool) -> int:
    try:
        return os.open(part, _WALK | os.O_NOFOLLOW, dir_fd=fd)
    except FileNotFoundError:
        if not create:
            raise
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            raise _blocked(fd, part, place) from error
        raise
    try:
        os.mkdir(part, dir_fd=fd)
    except FileExistsError:
        pass  # somebody else made it; if it is a link the next line refuses it
    return _step(fd, part, place, create=False)


def _blocked(fd: int, part: str, place: Place) -> FsError:
    if not stat.S_ISLNK(os.stat(part, dir_fd=fd, follow_symlinks=False).st_mode):
        return FsError(f"{place.path!r}: {part!r} is not a folder", code="FS_NOT_DIRECTORY")
    return FsError(
        f"{place.path!r} goes through {part!r}, a symbolic link that leads nowhere or was just "
        "put there",
        code="FS_SANDBOX_DENIED" if place.fenced else "FS_NOT_DIRECTORY",
    )


def not_regular(path: str) -> FsError:
    """Return the refusal of anything that is not a regular file."""
    return FsError(f"{path!r} is not a regular file", code="FS_NOT_REGULAR_FILE")


def read_all(fd: int, size: int) -> bytes:
    """Read a descriptor to its end; ``size`` is the expected length."""
    data = os.read(fd, size + 1)
    if len(data) == size:
        return data
    chunks = [data]
    while data := os.read(fd, _CHUNK):
        chunks.append(data)
    return b"".join(chunks)


def publish(
    folder: Folder,
    data: bytes,
    *,
    replaces: os.stat_result | None,
    exclusive: bool,
    commit: Callable[[], None],
) -> os.stat_result:
    """Write a file aside and give it its name in one step.

    Args:
        folder: Where.
        data: The content.
        replaces: The file whose mode and owner the new one takes over; otherwise the umask rules.
        exclusive: Never replace what has the name by then.
        commit: Called last before the name is given; what it raises leaves nothing behind.

    Returns:
        The new file's status, taken from its own descriptor.

    Raises:
        FileExistsError: ``exclusive``, and something has the name.
    """
    aside = f".dsh-{os.getpid()}-{secrets.token_hex(6)}.tmp"
    fd = os.open(aside, _CREATE, 0o600 if replaces else 0o666, dir_fd=folder.fd)
    try:
        try:
            _fill(fd, data, replaces)
            commit()
            if exclusive:
                _link(aside, folder)
            else:
                os.replace(aside, folder.name, src_dir_fd=folder.fd, dst_dir_fd=folder.fd)
        finally:
            _remove(aside, folder.fd)
        return os.fstat(fd)
    finally:
        os.close(fd)


def _fill(fd: int, data: bytes, replaces: os.stat_result | None) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    if replaces is not None:
        _take_over(fd, replaces)
    os.fsync(fd)


def _take_over(fd: int, old: os.stat_result) -> None:
    new = os.fstat(fd)
    if (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid):
        try:
            os.fchown(fd, old.st_uid, old.st_gid)
        except PermissionError:
            pass  # only root can give files away; the content is what was asked for
    os.fchmod(fd, stat.S_IMODE(old.st_mode))


def _link(aside: str, folder: Folder) -> None:
    try:
        os.link(
            aside, folder.name, src_dir_fd=folder.fd, dst_dir_fd=folder.fd, follow_symlinks=False
        )
    except FileExistsError:
        raise
    except OSError as error:
        raise FsError(
            f"{folder.path!r} was not created: its file system cannot publish a file without the "
            f"risk of overwriting another ({error.strerror})",
            code="FS_IO_ERROR",
        ) from error


def _remove(name: str, dir_fd: int) -> None:
    try:
        os.unlink(name, dir_fd=dir_fd)
    except OSError:
        pass  # renamed away, or the folder is gone; the outcome is decided without it
