"""Changing files: blocking functions that publish a whole new content or nothing."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Literal

from dsh.base.values import value
from dsh.capability.fs import paths
from dsh.capability.fs.place import Folder, Place, not_regular, opened, publish
from dsh.capability.fs.service import (
    CreateIfAbsent,
    EditExpectation,
    FsEdit,
    FsEdited,
    FsError,
    FsWritten,
    ReplaceIfVersion,
    WriteExpectation,
)
from dsh.capability.fs.text import (
    BOM,
    apply_edit,
    comparable,
    decode_text,
    encode_text,
    lf,
)

if TYPE_CHECKING:
    from dsh.capability.fs.worker import Stop


def stale(path: str, why: str) -> FsError:
    """Return the refusal of a change that was meant for another version."""
    return FsError(f"{path!r} {why}", code="FS_STALE_VERSION")


def _missing(path: str) -> FsError:
    return stale(path, "does not exist any more")


def write(
    place: Place, content: str, expected: WriteExpectation, *, basis_max: int, stop: Stop
) -> FsWritten:
    """Replace the content of a file, or create it with its parents.

    Args:
        place: Where, cleared by whoever guards this world.
        content: The new text.
        expected: Checked first, and again together with the publication.
        basis_max: From this many bytes on neither side is kept for a comparison.
        stop: Heeded up to the publication.

    Raises:
        FsError: see `FileSystem.write_text`.
    """
    data = encode_text(content, place.path)
    guarded = isinstance(expected, ReplaceIfVersion)
    with paths.errors_of(place.path):
        try:
            with opened(place, create=not guarded) as folder:
                return _write(folder, content, data, expected, basis_max, stop)
        except FileNotFoundError as error:
            if guarded:
                raise _missing(place.path) from error
            raise


def _write(
    folder: Folder,
    content: str,
    data: bytes,
    expected: WriteExpectation,
    basis_max: int,
    stop: Stop,
) -> FsWritten:
    old = folder.status()
    _admit(old, expected, folder.path)
    prior = _Prior(False, None)
    if old is not None:
        _require_writable(folder)
        prior = _prior(folder, old, basis_max)
    if prior.marked and not data.startswith(BOM):
        data = BOM + data

    def commit() -> None:
        stop.check()
        _admit(folder.status(), expected, folder.path)

    exclusive = isinstance(expected, CreateIfAbsent)
    try:
        new = publish(folder, data, replaces=old, exclusive=exclusive, commit=commit)
    except FileExistsError:
        _admit(folder.status(), expected, folder.path)
        raise
    before = prior.text if len(data) < basis_max else None
    operation: Literal["create", "update"] = "create" if old is None else "update"
    return FsWritten(operation, paths.version_of(new), before, lf(content.removeprefix("\ufeff")))


def edit(
    place: Place, change: FsEdit, expected: EditExpectation, *, basis_max: int, stop: Stop
) -> FsEdited:
    """Replace a piece of a text file.

    The file must still be the one that was read when the result is published, with or without
    an expectation, so no other writer's change is lost.

    Raises:
        FsError: see `FileSystem.edit_text`.
    """
    with paths.errors_of(place.path):
        try:
            with opened(place, create=False) as folder:
                return _edit(folder, change, expected, basis_max, stop)
        except FileNotFoundError as error:
            raise _missing(place.path) from error


def _edit(
    folder: Folder, change: FsEdit, expected: EditExpectation, basis_max: int, stop: Stop
) -> FsEdited:
    path = folder.path
    found = folder.status()
    _admit(found, expected, path)
    if found is None:
        raise _missing(path)
    _require_writable(folder)
    data, status = folder.read()
    read = ReplaceIfVersion(paths.version_of(status))
    _admit(status, expected, path)
    original = decode_text(data, path, whole=True)
    stop.check()
    result = apply_edit(original, change, path)
    new_data = encode_text(result, path)
    if data.startswith(BOM):
        new_data = BOM + new_data

    def commit() -> None:
        stop.check()
        _admit(folder.status(), read, path)

    new = publish(folder, new_data, replaces=status, exclusive=False, commit=commit)
    small = max(len(data), len(new_data)) < basis_max
    return FsEdited(paths.version_of(new), lf(original) if small else None, lf(result))


def _admit(found: os.stat_result | None, expected: WriteExpectation, path: str) -> None:
    """Refuse a change that what is there now does not allow."""
    if found is None:
        if isinstance(expected, ReplaceIfVersion):
            raise _missing(path)
        return
    dangling = stat.S_ISLNK(found.st_mode)
    if not stat.S_ISREG(found.st_mode) and not dangling:
        raise not_regular(path)
    if isinstance(expected, CreateIfAbsent):
        raise FsError(f"{path!r} exists already", code="FS_NOT_OBSERVED")
    if dangling:
        raise not_regular(path)
    if isinstance(expected, ReplaceIfVersion) and paths.version_of(found) != expected.version:
        raise stale(path, "changed since it was last read")


@value
class _Prior:
    marked: bool
    """Starts with a byte order mark."""
    text: str | None
    """For a comparison."""


def _require_writable(folder: Folder) -> None:
    # A rename would replace even a file that its owner protected against writing.
    if not os.access(folder.name, os.W_OK, dir_fd=folder.fd):
        raise FsError(f"{folder.path!r} is write-protected", code="FS_PERMISSION_DENIED")


def _prior(folder: Folder, old: os.stat_result, basis_max: int) -> _Prior:
    try:
        data, status = folder.read(limit=None if old.st_size < basis_max else len(BOM))
    except PermissionError:
        return _Prior(False, None)
    marked = data.startswith(BOM)
    same = paths.version_of(folder.status() or status) == paths.version_of(old)
    comparable_now = old.st_size < basis_max and same
    return _Prior(marked, comparable(data) if comparable_now else None)
