"""Deleting folders that foreign programs have filled."""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def delete_tree(path: str, fd: int) -> None:
    """Delete a folder with all it holds, however deep or locked its folders are; blocks.

    Folders inside each other are not walked, for there may be more of them than a stack or a path
    can hold: each is moved up until none holds another. Links are not followed.

    Args:
        path: Where the folder is; only what ``fd`` is open on is emptied.
        fd: Open on the folder; stays open.

    Raises:
        OSError: something in it could not be deleted; the rest is gone.
    """
    names = os.listdir(fd)
    for name in names:
        with suppress(OSError):
            names += _delete(name, fd)
    os.rmdir(path)


def _delete(name: str, top: int) -> list[str]:
    """Delete one entry of an open folder; return the new names in it of folders that it held."""
    with suppress(OSError):
        os.unlink(name, dir_fd=top)
        return []
    moved: list[str] = []
    folder = _open(name, top)
    try:
        for each in os.listdir(folder):
            try:
                os.unlink(each, dir_fd=folder)
            except OSError:
                os.close(_open(each, folder))
                fresh = secrets.token_hex(8)
                os.rename(each, fresh, src_dir_fd=folder, dst_dir_fd=top)
                moved.append(fresh)
    finally:
        os.close(folder)
    os.rmdir(name, dir_fd=top)
    return moved


def _open(name: str, top: int) -> int:
    """Open a folder in an open folder, and make it one that may be read and changed."""
    with suppress(OSError):
        _unlock(name, top)
    return os.open(name, _FOLDER, dir_fd=top)


def _unlock(name: str, top: int) -> None:
    if not hasattr(os, "O_PATH"):
        os.chmod(name, stat.S_IRWXU, dir_fd=top, follow_symlinks=False)
        return
    # Linux changes no mode without following links, but by way of an open descriptor.
    place = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=top)
    try:
        os.chmod(f"/proc/self/fd/{place}", stat.S_IRWXU)
    finally:
        os.close(place)
