"""Growing a session's file: each call is durable when it returns, or has changed nothing.

A writer that goes on with a session *holds* its file: others may read it, and are refused when
they want to write. The operating system ends a hold with its process.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsh.base.files import LockTimeout, fsync_dir, lock_fd, write_all
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
_HOLD_TIMEOUT_S = 0.2


@dataclass(slots=True)
class _Hold:
    """A file that this writer keeps for itself.

    ``is_unclean`` when a failed write could not be taken back: what is beyond the known size is
    then our own rest.
    """

    fd: int
    is_unclean: bool = False


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
        self._holds: dict[str, _Hold] = {}

    def hold(self, id: str, path: Path) -> None:
        """Keep the file of a session from other writers until `let_go`.

        Raises:
            SessionConflict: another writer, most likely another process, holds it.
            OSError: the file cannot be written.
        """
        if id in self._holds:
            return
        fd = _open(id, path)
        try:
            lock_fd(fd, path, timeout_s=_HOLD_TIMEOUT_S)
        except BaseException as error:
            os.close(fd)
            if isinstance(error, LockTimeout):
                problem = "is open in another process; close it there, or start a new session"
                raise SessionConflict(id, problem) from None
            raise
        self._holds[id] = _Hold(fd)

    def let_go(self, id: str) -> None:
        """End a hold; one that is not there is none to end."""
        if (held := self._holds.pop(id, None)) is not None:
            os.close(held.fd)

    def close(self) -> None:
        """End all holds."""
        for held in list(self._holds):
            self.let_go(held)

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
                temp.unlink(missing_ok=True)
            fsync_dir(final.parent)
            return Position.of(final, os.fstat(fd))
        except FileExistsError:
            raise SessionConflict(header["id"], f"is stored already in {str(final)!r}") from None
        finally:
            os.close(fd)

    def append(self, id: str, position: Position, events: Iterable[Mapping[str, Any]]) -> Position:
        """Append a batch to a file that nobody else has written since ``position``.

        Raises:
            SessionConflict: somebody has, or the file is gone.
            LockTimeout: somebody is writing and does not finish.
            ExceptionGroup: the write failed, and so did taking it back.
            OSError: the write failed; the file is as it was.
        """
        data = self._batch(position.path, events)
        with self._opened(id, position) as file:
            self._extend(file, position.size, data)
            return Position.of(position.path, os.fstat(file.fd))

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
        with self._opened(stored.header["id"], stored.position) as file:
            if keep != stored.position.size:
                os.ftruncate(file.fd, keep)
                self._sync(file.fd)
            if again:
                self._extend(file, keep, self._batch(stored.path, again))
            return Position.of(stored.path, os.fstat(file.fd))

    def _batch(self, path: Path, events: Iterable[Mapping[str, Any]]) -> bytes:
        lines = encode_events(events, pack=self._pack)
        return compress(lines) if encoding_of(path) is Encoding.ZSTD else lines

    def _extend(self, file: _Hold, size: int, data: bytes) -> None:
        try:
            write_all(file.fd, data)
            self._sync(file.fd)
        except Exception as error:
            file.is_unclean = True
            try:
                self._cut(file, size)
            except OSError as rollback:
                raise ExceptionGroup(
                    "the write failed and could not be taken back", [error, rollback]
                ) from error
            raise

    def _cut(self, file: _Hold, size: int) -> None:
        os.ftruncate(file.fd, size)
        self._sync(file.fd)
        file.is_unclean = False

    @contextmanager
    def _opened(self, id: str, position: Position) -> Iterator[_Hold]:
        """Open a file for this writer alone, and only as it is known."""
        held = self._holds.get(id)
        file = _Hold(_open(id, position.path)) if held is None else held
        try:
            if held is None:
                lock_fd(file.fd, position.path, timeout_s=_LOCK_TIMEOUT_S)
            self._check(id, position, file)
            yield file
        finally:
            if held is None:
                os.close(file.fd)

    def _check(self, id: str, position: Position, file: _Hold) -> None:
        try:
            stat = position.path.stat(follow_symlinks=False)
        except FileNotFoundError:
            raise _gone(id, position.path) from None
        if (stat.st_dev, stat.st_ino) != (position.device, position.inode):
            raise SessionConflict(id, "was replaced on disk; open it again")
        size = os.fstat(file.fd).st_size
        if file.is_unclean and size > position.size:
            self._cut(file, position.size)
        elif size != position.size:
            raise SessionConflict(id, "was written by another process; open it again")

    def _make_folders(self, folder: Path) -> None:
        missing: list[Path] = []
        while not folder.is_dir():
            missing.append(folder)
            folder = folder.parent
        for new in reversed(missing):
            new.mkdir(_FOLDER_MODE, exist_ok=True)
            fsync_dir(new.parent)


def _open(id: str, path: Path) -> int:
    try:
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        raise _gone(id, path) from None


def _gone(id: str, path: Path) -> SessionConflict:
    return SessionConflict(id, f"was removed from disk ({str(path)!r}); go on in a new session")
