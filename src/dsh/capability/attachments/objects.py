"""Attachments on disk: objects named by the digest of their bytes, and derived request images.

Everything here blocks. Objects are published by a link, so that a name never shows half a file;
the bytes and the name are durable when `ObjectStore.publish` returns.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import secrets
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from dsh.base.files import disk, fsync_dir, sync, write_all, write_atomic
from dsh.base.json import dumps, loads
from dsh.capability.attachments.pixels import Picture
from dsh.capability.attachments.probe import NotAnImage, probe
from dsh.capability.attachments.service import AttachmentError

__all__ = ["ObjectStore", "RequestCache", "digest_of"]

_ID: Final = re.compile(r"sha256:([0-9a-f]{64})")
_LEFTOVER_AGE_S: Final = 24 * 3600.0
"""From when on a staged file belongs to nobody; no write takes that long."""
_NO_LINKS: Final = {errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS}


def digest_of(ref: Mapping[str, Any]) -> str:
    """Return the digest in a reference.

    Raises:
        AttachmentError: ``INVALID_ATTACHMENT_REF``: it has not the shape of one.
    """
    given = ref.get("attachmentId")
    match = _ID.fullmatch(given) if isinstance(given, str) else None
    numbers = (ref.get("bytes"), ref.get("width"), ref.get("height"))
    sound = all(type(number) is int and number > 0 for number in numbers)
    if match is None or not sound or not isinstance(ref.get("mediaType"), str):
        raise AttachmentError(
            "INVALID_ATTACHMENT_REF", f"{given!r} with its facts is no reference to an attachment"
        )
    return match[1]


class ObjectStore:
    """The objects below a folder, which is made when the first one is stored."""

    def __init__(self, root: Path) -> None:
        self._objects = root / "objects"
        self._staging = root / "tmp"
        self._swept = False

    def publish(self, data: bytes) -> str:
        """Store bytes and return their id; bytes that are there already are verified.

        Raises:
            AttachmentError: ``ATTACHMENT_WRITE_FAILED``; nothing half written is visible.
        """
        digest = hashlib.sha256(data).hexdigest()
        try:
            self._publish(digest, data)
        except OSError as error:
            raise AttachmentError(
                "ATTACHMENT_WRITE_FAILED",
                f"attachment sha256:{digest[:12]}... cannot be stored in {self._objects}: {error}",
            ) from error
        return f"sha256:{digest}"

    def read(self, ref: Mapping[str, Any]) -> bytes:
        """Return the bytes that a reference means, verified against all that it says of them.

        Raises:
            AttachmentError: a storage code.
        """
        digest = digest_of(ref)
        path = self._path(digest)
        try:
            data = _read(path, int(ref["bytes"]) + 1)
        except FileNotFoundError as error:
            raise AttachmentError(
                "ATTACHMENT_NOT_FOUND",
                f"attachment sha256:{digest} is not in {self._objects}; "
                "it was deleted, or belongs to another home",
            ) from error
        except OSError as error:
            raise AttachmentError(
                "ATTACHMENT_READ_FAILED", f"attachment {path} cannot be read: {error}"
            ) from error
        if problem := _difference(data, digest, ref):
            raise AttachmentError("ATTACHMENT_CORRUPT", f"attachment {path} {problem}")
        return data

    def _path(self, digest: str) -> Path:
        return self._objects / digest[:2] / digest

    def _publish(self, digest: str, data: bytes) -> None:
        path = self._path(digest)
        if self._is_there(path, digest, len(data)):
            return
        self._sweep()
        _make_folders(path.parent)
        _make_folders(self._staging)
        staged = self._staging / f"{os.getpid()}-{secrets.token_hex(8)}"
        try:
            _write_new(staged, data)
            try:
                disk().link(staged, path)
            except FileExistsError:
                if not self._is_there(path, digest, len(data)):
                    disk().replace(staged, path)
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                disk().replace(staged, path)
        finally:
            staged.unlink(missing_ok=True)
        fsync_dir(path.parent)

    def _is_there(self, path: Path, digest: str, size: int) -> bool:
        """Whether the right bytes are stored; what is damaged counts as absent and is healed."""
        try:
            data = _read(path, size + 1)
        except OSError:
            return False
        if hashlib.sha256(data).hexdigest() != digest:
            return False
        # Whoever stored it may have died before its name was durable.
        fsync_dir(path.parent)
        return True

    def _sweep(self) -> None:
        """Remove, once, what writers that were killed left behind."""
        if self._swept:
            return
        self._swept = True
        oldest = time.time() - _LEFTOVER_AGE_S
        with contextlib.suppress(OSError):
            for entry in os.scandir(self._staging):
                if entry.stat(follow_symlinks=False).st_mtime < oldest:
                    os.unlink(entry.path)


class RequestCache:
    """Derived images by key. A file verifies itself; one that does not counts as absent."""

    def __init__(self, root: Path) -> None:
        self._root = root / "request-images"

    def read(self, key: str) -> Picture | None:
        """Return a derived image, or None when it has to be made."""
        try:
            head, _, data = self._path(key).read_bytes().partition(b"\n")
            facts = loads(head)
            if facts["sha256"] != hashlib.sha256(data).hexdigest():
                return None
            found = probe(data)
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return Picture(data, found.media_type, found.width, found.height)

    def write(self, key: str, picture: Picture) -> None:
        """Keep a derived image.

        Raises:
            OSError: it cannot be written; the cache is as before.
        """
        path = self._path(key)
        _make_folders(path.parent)
        head = dumps({"sha256": hashlib.sha256(picture.data).hexdigest()})
        write_atomic(path, head + b"\n" + picture.data, mode=0o600)

    def _path(self, key: str) -> Path:
        return self._root / key[:2] / key


def _difference(data: bytes, digest: str, ref: Mapping[str, Any]) -> str | None:
    if len(data) != ref["bytes"] or hashlib.sha256(data).hexdigest() != digest:
        return "is damaged: its bytes are not those that were stored"
    try:
        facts = probe(data)
    except NotAnImage as error:
        return f"is not an image: {error}"
    if (facts.media_type, facts.width, facts.height) != (
        ref["mediaType"],
        ref["width"],
        ref["height"],
    ):
        return (
            f"is {facts.media_type} of {facts.width}x{facts.height} pixels, and the reference says "
            f"{ref['mediaType']} of {ref['width']}x{ref['height']}"
        )
    return None


def _read(path: Path, most: int) -> bytes:
    """Read a regular file, no further than ``most`` bytes."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    with os.fdopen(fd, "rb") as file:
        return file.read(most)


def _write_new(path: Path, data: bytes) -> None:
    fd = disk().open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        write_all(fd, data)
        sync(fd)
    finally:
        os.close(fd)


def _make_folders(path: Path) -> None:
    """Make a private folder and those above it, each entry durable."""
    if path.is_dir():
        return
    _make_folders(path.parent)
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    fsync_dir(path.parent)
