"""Growing a session's file: each call is durable when it returns, or has changed nothing.

A writer that goes on with a session has its *lease*: others may read the file, and are refused
when they want to write. Whether the lease is in force is checked under the lock under which the
write happens.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsh.base.clock import SYSTEM_CLOCK, Clock
from dsh.base.files import LockTimeout, disk, fsync_dir, sync, write_all
from dsh.state.persistence.artifact.aside import keep_aside, kept_aside, temporaries
from dsh.state.persistence.artifact.frames import compress
from dsh.state.persistence.artifact.layout import Encoding, artifact_path, encoding_of
from dsh.state.persistence.artifact.leases import LeaseFile, LeaseFiles, removed
from dsh.state.persistence.artifact.reader import FilePosition
from dsh.state.persistence.artifact.records import encode_events, encode_header
from dsh.state.persistence.errors import SessionConflict, SessionHeld
from dsh.state.persistence.lease import DEFAULT_LEASE_S, Lease

if TYPE_CHECKING:
    from dsh.state.persistence.artifact.reader import FileLog
    from dsh.state.session.events import SessionEvent

_FOLDER_MODE = 0o700
_FILE_MODE = 0o600
_HOLD_PATIENCE_S = 0.2


@dataclass(slots=True)
class _Open:
    """A session's file while this writer has it to itself."""

    fd: int
    lease: Lease | None


class ArtifactWriter:
    """Writes the files below one sessions root.

    Args:
        root: The sessions root, absolute.
        encoding: How new files are written; a file keeps the encoding it has.
        pack: Whether runs of chunks share rows.
        sync: Makes a file descriptor durable.
        lease_s: How long a lease lasts that is not renewed.
        clock: Tells the time.
    """

    def __init__(
        self,
        root: Path,
        encoding: Encoding,
        *,
        pack: bool = True,
        sync: Callable[[int], None] = sync,
        lease_s: float = DEFAULT_LEASE_S,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.root = root
        self.encoding = encoding
        self._pack = pack
        self._sync = sync
        self._leases = LeaseFiles(root, lease_s, clock)
        self._held: dict[Lease, Path] = {}
        # Leases whose last write failed and could not be taken back: what is beyond the size
        # they know is then their own rest.
        self._unclean: set[Lease] = set()

    def hold(self, id: str, path: Path) -> Lease:
        """Take the lease of a session; it lasts until `let_go` if it is renewed.

        Raises:
            SessionHeld: another writer has it.
            SessionConflict: the file is gone.
            OSError: the lease cannot be written.
        """
        with self._leased(id, path, wait_s=_HOLD_PATIENCE_S) as file:
            if not path.exists():
                raise removed(id, path)
            lease = self._leases.take(file)
            for stray in temporaries(path):
                stray.unlink(missing_ok=True)
            self._held[lease] = path
            return lease

    def renew(self, leases: Iterable[Lease]) -> list[Lease]:
        """Prolong leases of this writer; return those that have ended.

        Raises:
            OSError: one could not be written; the others are prolonged all the same.
        """
        ended: list[Lease] = []
        failure: OSError | None = None
        for lease in leases:
            try:
                if not self._renew(lease):
                    self._forget(lease)
                    ended.append(lease)
            except (LockTimeout, SessionHeld):
                continue  # somebody is writing, most likely this writer; it is asked again soon
            except OSError as error:
                failure = error
        if failure is not None:
            raise failure
        return ended

    def let_go(self, lease: Lease) -> None:
        """Give a lease up; one that has ended, or whose file is gone, is left so."""
        path = self._forget(lease)
        if path is None:
            return
        try:
            with self._leased(lease.id, path) as file:
                record = file.read()
                if record is not None and file.is_in_force(lease):
                    file.write(self._leases.terms.ended(record))
        except (SessionConflict, LockTimeout):
            return  # it is gone, or somebody else's by now

    def close(self) -> None:
        """Give all leases up."""
        for lease in list(self._held):
            self.let_go(lease)
        self._leases.close()

    def materialize(
        self, header: Mapping[str, Any], events: Iterable[Mapping[str, Any]]
    ) -> FilePosition:
        """Publish a new file with its header and first batch, both or nothing.

        Raises:
            SessionConflict: the file exists.
            OSError: it cannot be written.
        """
        final = artifact_path(self.root, header, self.encoding)
        self._make_folders(final.parent)
        return self._publish(final, header, events)

    def materialize_held(
        self, header: Mapping[str, Any], events: Iterable[Mapping[str, Any]]
    ) -> tuple[Lease, FilePosition]:
        """Do as `materialize`, and take the lease in the same step.

        Raises:
            SessionHeld: another writer has the id.
            SessionConflict: the file exists.
            OSError: it cannot be written.
        """
        final = artifact_path(self.root, header, self.encoding)
        self._make_folders(final.parent)
        with self._leased(header["id"], final) as file:
            if final.exists():
                raise _stored_already(header["id"], final)
            is_first = file.read() is None
            try:
                lease = self._leases.take(file)
                position = self._publish(final, header, events)
            except BaseException:
                if is_first:
                    file.path.unlink(missing_ok=True)
                raise
            self._held[lease] = final
            return lease, position

    def append(
        self,
        id: str,
        position: FilePosition,
        events: Iterable[Mapping[str, Any]],
        lease: Lease | None = None,
    ) -> FilePosition:
        """Append a batch to a file that nobody else has written since ``position``.

        Raises:
            SessionConflict: somebody has, or the file is gone.
            SessionLeaseLost: the lease has ended.
            SessionHeld: there is no lease, and another writer has one.
            LockTimeout: somebody is writing and does not finish.
            ExceptionGroup: the write failed, and so did taking it back.
            OSError: the write failed; the file is as it was.
        """
        data = self._batch(position.path, events)
        with self._opened(id, position, lease) as file:
            self._extend(file, position.size, data)
            return FilePosition.of(position.path, os.fstat(file.fd))

    def repair(
        self, stored: FileLog, closers: Iterable[SessionEvent], lease: Lease | None = None
    ) -> FilePosition:
        """Cut off a damaged end, then append what was recovered from it and the closers.

        Committed rows are not touched, and what is cut off is kept aside. A crash in between
        leaves a file that the next repair completes.

        Raises:
            SessionConflict: the file changed since it was read.
            SessionLeaseLost: the lease has ended.
            SessionHeld: there is no lease, and another writer has one.
            LockTimeout: somebody is writing and does not finish.
            ExceptionGroup: the write failed, and so did taking it back.
            OSError: the write failed.
        """
        tail, position = stored.tail, stored.position
        keep = position.size if tail is None else tail.keep
        again = [*(() if tail is None else tail.recovered), *closers]
        with self._opened(stored.header["id"], position, lease) as file:
            if keep != position.size:
                keep_aside(position.path, keep, self._sync)
                disk().truncate(file.fd, keep)
                self._sync(file.fd)
            if again:
                self._extend(file, keep, self._batch(position.path, again))
            return FilePosition.of(position.path, os.fstat(file.fd))

    def remove(self, id: str, paths: Sequence[Path]) -> None:
        """Remove the files of a session, the lease too, and its folders when nothing is left.

        Raises:
            SessionHeld: a writer has its lease.
            OSError: they cannot be removed.
        """
        for path in paths:
            folder = path.parent
            with self._leased(id, path, wait_s=_HOLD_PATIENCE_S) as file:
                self._leases.take(file)  # nobody may come in between
                for left in [path, *temporaries(path), *kept_aside(path), file.path]:
                    left.unlink(missing_ok=True)
            fsync_dir(folder)
            if not any(folder.iterdir()):
                folder.rmdir()
                fsync_dir(folder.parent)

    def _renew(self, lease: Lease) -> bool:
        path = self._held.get(lease)
        if path is None:
            return False
        try:
            with self._leased(lease.id, path, wait_s=0) as file:
                record = file.read()
                if record is None or not file.is_in_force(lease):
                    return False
                file.write(self._leases.terms.renewed(record))
                return True
        except SessionHeld:
            raise
        except SessionConflict:
            return True  # the file is gone, which the next write tells

    def _forget(self, lease: Lease) -> Path | None:
        self._unclean.discard(lease)
        return self._held.pop(lease, None)

    def _batch(self, path: Path, events: Iterable[Mapping[str, Any]]) -> bytes:
        lines = encode_events(events, pack=self._pack)
        return compress(lines) if encoding_of(path) is Encoding.ZSTD else lines

    def _publish(
        self, final: Path, header: Mapping[str, Any], events: Iterable[Mapping[str, Any]]
    ) -> FilePosition:
        temp = final.with_name(f"{final.name}.{secrets.token_hex(6)}.tmp")
        head = encode_header(header)
        batch = encode_events(events, pack=self._pack)
        data = compress(head) + compress(batch) if self.encoding is Encoding.ZSTD else head + batch
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        fd = disk().open(temp, flags, _FILE_MODE)
        try:
            try:
                write_all(fd, data)
                self._sync(fd)
                disk().link(temp, final)
            finally:
                temp.unlink(missing_ok=True)
            fsync_dir(final.parent)
            return FilePosition.of(final, os.fstat(fd))
        except FileExistsError:
            raise _stored_already(header["id"], final) from None
        finally:
            os.close(fd)

    def _extend(self, file: _Open, size: int, data: bytes) -> None:
        try:
            write_all(file.fd, data)
            self._sync(file.fd)
        except Exception as error:
            try:
                self._cut(file, size)
            except OSError as rollback:
                raise ExceptionGroup(
                    "the write failed and could not be taken back", [error, rollback]
                ) from error
            raise

    def _cut(self, file: _Open, size: int) -> None:
        if file.lease is not None:
            self._unclean.add(file.lease)
        disk().truncate(file.fd, size)
        self._sync(file.fd)
        if file.lease is not None:
            self._unclean.discard(file.lease)

    @contextmanager
    def _leased(self, id: str, path: Path, **wait: float) -> Iterator[LeaseFile]:
        try:
            with self._leases.locked(id, path.parent, **wait) as file:
                yield file
        except FileNotFoundError:
            if path.parent.is_dir():
                raise
            raise removed(id, path) from None

    @contextmanager
    def _opened(self, id: str, position: FilePosition, lease: Lease | None) -> Iterator[_Open]:
        """Open a file for this writer alone, and only as it is known."""
        with self._leased(id, position.path) as lease_file:
            lease_file.permit(lease)
            file = _Open(_open(id, position.path), lease)
            try:
                self._check(id, position, file)
                yield file
            finally:
                os.close(file.fd)

    def _check(self, id: str, position: FilePosition, file: _Open) -> None:
        stat = os.fstat(file.fd)
        if (stat.st_dev, stat.st_ino) != (position.device, position.inode):
            raise SessionConflict(id, "was replaced on disk; open it again")
        if file.lease in self._unclean and stat.st_size > position.size:
            self._cut(file, position.size)
        elif stat.st_size != position.size:
            raise SessionConflict(id, "was written by another process; open it again")

    def _make_folders(self, folder: Path) -> None:
        missing: list[Path] = []
        while not folder.is_dir():
            missing.append(folder)
            folder = folder.parent
        for new in reversed(missing):
            with suppress(FileExistsError):
                disk().mkdir(new, _FOLDER_MODE)
            fsync_dir(new.parent)


def _open(id: str, path: Path) -> int:
    try:
        flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        return disk().open(path, flags, _FILE_MODE)
    except FileNotFoundError:
        raise removed(id, path) from None


def _stored_already(id: str, path: Path) -> SessionConflict:
    return SessionConflict(id, f"is stored already in {str(path)!r}")
