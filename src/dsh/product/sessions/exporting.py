"""``dsh sessions export``: a session as one file."""

from __future__ import annotations

import os
import secrets
import stat
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dsh.base.errors import DshError
from dsh.product.sessions.terminal import writing
from dsh.state.log_export import archive_chunks, archive_name, log_lines, markdown_lines
from dsh.state.titles.text import fold_session_title

if TYPE_CHECKING:
    from dsh.state.log_export.archive import ReadImage
    from dsh.state.persistence.service import SessionPersistence


class ExportFailed(DshError, OSError):
    """The file could not be written; nothing of it is left."""

    code = "SESSION_EXPORT_FAILED"

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"cannot write {str(path)!r}: {reason}")
        self.path = path
        self.reason = reason


_EXTENSIONS: Final = {"zip": "zip", "jsonl": "jsonl", "markdown": "md"}
_MODE = 0o600
_LONGEST_NAME: Final = 50
"""Characters of the target's name in that of the temporary file, which is longer otherwise."""


async def export(
    persistence: SessionPersistence,
    read_image: ReadImage,
    id: str,
    format: str,
    target: str | None,
) -> str | None:
    """Write a session to a file, whole or not at all.

    Args:
        persistence: Where it is.
        read_image: Reads the images that it refers to.
        id: The session.
        format: ``zip``, ``jsonl`` or ``markdown``.
        target: The file, ``-`` for standard output, or a folder; one in the current folder,
            named after the session, when absent. A file that exists is replaced only if named.

    Returns:
        The file; ``None`` for standard output.

    Raises:
        ExportFailed: it cannot be written.
        DshError: the session cannot be read.
    """
    parts = _parts(persistence, read_image, id, format)
    if target == "-":
        async for part in parts:
            with writing():
                sys.stdout.buffer.write(part)
        with writing():
            sys.stdout.buffer.flush()
        return None
    name = archive_name(id, _EXTENSIONS[format])
    path = _free(Path(name)) if target is None else Path(target)
    if path.is_dir():
        path = _free(path / name)
    if _is_special(path):
        await _fill(path, parts)
    else:
        await _write(path, _followed(path), parts)
    return str(path)


def _is_special(path: Path) -> bool:
    """Whether something is there that takes what is written, and must not give way to a file."""
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return False


def _followed(path: Path) -> Path:
    """Return the file behind links: writing to a link must not replace it."""
    return Path(os.path.realpath(path))


async def _fill(path: Path, parts: AsyncIterator[bytes]) -> None:
    """Write into a device or a pipe."""
    try:
        with path.open("wb", buffering=0) as file:
            async for part in parts:
                rest = memoryview(part)
                while rest:
                    rest = rest[file.write(rest) :]
    except OSError as error:
        raise ExportFailed(path, error.strerror or str(error)) from error


async def _write(path: Path, place: Path, parts: AsyncIterator[bytes]) -> None:
    temp = place.with_name(f".{place.name[:_LONGEST_NAME]}.{secrets.token_hex(6)}.tmp")
    try:
        fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE)
        with os.fdopen(fd, "wb") as file:
            async for part in parts:
                file.write(part)
        temp.replace(place)
    except OSError as error:
        raise ExportFailed(path, error.strerror or str(error)) from error
    finally:
        with suppress(OSError):
            temp.unlink()


async def _parts(
    persistence: SessionPersistence, read_image: ReadImage, id: str, format: str
) -> AsyncIterator[bytes]:
    if format == "zip":
        async for part in archive_chunks(persistence, id, read_image=read_image):
            yield part
    elif format == "jsonl":
        header, events = await persistence.read_from(id, 0)
        for lines in log_lines(header, events):
            yield lines
    else:
        seen = await persistence.inspect(id)
        for line in markdown_lines(seen.meta, seen.events, fold_session_title(seen.events)):
            yield (line + "\n").encode("utf-8", "replace")


def _free(path: Path) -> Path:
    """Return a name that no file has yet."""
    free, number = path, 1
    while free.exists():
        number += 1
        free = path.with_name(f"{path.stem}-{number}{path.suffix}")
    return free
