"""Growing a session's file: each call is durable when it returns, or has changed nothing."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsh.base.files import LockTimeout, fsync_dir, write_all
from dsh.state.persistence.artifact.frames import compress
from dsh.state.persistence.artifact.layout import Encoding, artifact_path, encoding_of
from dsh.state.persistence.artifact.reader import Position, StoredLog
from dsh.state.persistence.artifact.records import encode_events, encode_header
from dsh.state.persistence.errors import SessionConflict

if TYPE_CHECKING:
    from dsh.state.session.events import SessionEvent, SessionHeader

_FOLDER_MODE = 0o700
_FILE_MODE = 0o600
_LOCK_TIMEOUT_S = 2.0


class ArtifactWriter:
    """Writes the files below one sessions root.

    Args:
        root: The sessions root, absolute.
        encoding: How new files are written; a file keeps the encoding it has.
        pack: Whether runs of chunks share rows.
        sync: Makes a file descriptor durable.
    """

    def __init__(
        self,
        root: Path,
        encoding: Encoding,
        *,
        pack: bool = True,
        sync: Callable[[int], None] = os.fsync,
    ) -> None:
        self.root = root
        self.encoding = encoding
        self._pack = pack
        self._sync = sync

    def materialize(self, header: SessionHeader, events: Iterable[Mapping[str, Any]]) -> Position:
        """Publish a new file with its header and first batch, both or nothing.

        Raises:
            SessionConflict: the file exists.
            OSError: it cannot be written.
        """
        final = artifact_path(self.root, header, self.encoding)
        self._make_folders(final.parent)
        temp = final.with_name(f"{final.name}.{secrets.token_hex(6)}.tmp")
        head = encode_header(header)
        batch = encode_events(events, pack=self._pack)
        data = compress(head) + compress(batch) if self.encoding is Encoding.ZSTD else head + batch
        fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _FILE_MODE)
        try:
            try:
                write_all(fd, data)
                self._sync(fd)
                os.link(temp, final)
            finally:
                os.unlink(temp)
            fsync_dir(final.parent)
            return Position.of(final, os.fstat(fd))
        except FileExistsError:
            raise SessionConflict(header["id"], f"is stored already in {str(final)!r}") from None
        finally:
            os.close(fd)

    def append(self, id: str, position: Position, events: Iterable[Mapping[str, Any]]) -> Position:
        """Append a batch to a file that nobody else has written since ``position``.

        Raises:
            SessionConflict: somebody has.
            LockTimeout: somebody is writing and does not finish.
            ExceptionGroup: the write failed, and so did taking it back.
            OSError: the write failed; the file is as it was.
        """
        with self._opened(id, position) as fd:
            self._extend(fd, position.size, self._batch(position.path, events))
            return Position.of(position.path, os.fstat(fd))

    def repair(self, stored: StoredLog, closers: Iterable[SessionEvent]) -> Position:
        """Cut off a damaged end, then append what was recovered from it and the closers.

        Committed rows are not touched. A crash in between leaves a file that the next repair
        completes.

        Raises:
            SessionConflict: the file changed since it was read.
            LockTimeout: somebody is writing and does not finish.
            ExceptionGroup: the write failed, and so did taking it back.
            OSError: the write failed.
        """
        tail = stored.tail
        keep = stored.position.size if tail is None else tail.keep
        again = [*(() if tail is None else tail.recovered), *closers]
        with self._opened(stored.header["id"], stored.position) as fd:
            if keep != stored.position.size:
                os.ftruncate(fd, keep)
                self._sync(fd)
            if again:
                self._extend(fd, keep, self._batch(stored.path, again))
            return Position.of(stored.path, os.fstat(fd))

    def _batch(self, path: Path, events: Iterable[Mapping[str, Any]]) -> bytes:
        lines = encode_events(events, pack=self._pack)
        return compress(lines) if encoding_of(path) is Encoding.ZSTD else lines

    def _extend(self, fd: int, size: int, data: bytes) -> None:
        try:
            write_all(fd, data)
            self._sync(fd)
        except Exception as error:
            try:
                os.ftruncate(fd, size)
                self._sync(fd)
            except OSError as rollback:
                raise ExceptionGroup(
                    "the write failed and could not be taken back", [error, rollback]
                ) from error
            raise

    @contextmanager
    def _opened(self, id: str, position: Position) -> Iterator[int]:
        """Open a file for this writer alone, and only as it is known."""
        fd = os.open(position.path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            _lock(fd, position.path)
            stat = os.fstat(fd)
            if (stat.st_dev, stat.st_ino) != (position.device, position.inode):
                raise SessionConflict(id, "was replaced on disk; open it again")
            if stat.st_size != position.size:
                raise SessionConflict(id, "was written by another process; open it again")
            yield fd
        finally:
            os.close(fd)

    def _make_folders(self, folder: Path) -> None:
        missing: list[Path] = []
        while not folder.is_dir():
            missing.append(folder)
            folder = folder.parent
        for new in reversed(missing):
            new.mkdir(_FOLDER_MODE, exist_ok=True)
            fsync_dir(new.parent)


def _lock(fd: int, path: Path) -> None:
    """Take the file for one write; the holder is quick, unless it is stopped."""
    deadline = time.monotonic() + _LOCK_TIMEOUT_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EINTR):
                raise
            if time.monotonic() >= deadline:
                raise LockTimeout(path, _LOCK_TIMEOUT_S) from error
            time.sleep(0.005)
        else:
            return
