"""Leases in files: one beside each session's file, and one a writer that shows it is alive.

The lock on a session's lease file is held for moments only: while a lease changes hands, and
while a batch is written. The lock on a writer's own file is held for its whole life, and the
operating system ends it with the process: whoever gets it has proof that the writer is gone.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dsh.base.clock import SYSTEM_CLOCK, Clock
from dsh.base.files import LockTimeout, disk, lock_fd, sync, write_all
from dsh.state.persistence.errors import SessionConflict, SessionHeld
from dsh.state.persistence.lease import DEFAULT_LEASE_S, Lease, LeaseRecord, LeaseTerms, Writer

LEASE_FILE = "session.lease"
_ALIVE = ".writer-{}-{}.lock"
_MODE = 0o600
_SIZE = 512  # of a lease file, whatever it says: to write it again never needs space
_PATIENCE_S = 2.0


class LeaseFiles:
    """The lease files below one sessions root, as one writer sees them.

    Args:
        root: The sessions root.
        length_s: How long a lease lasts that is not renewed.
        clock: Tells the time.
    """

    def __init__(
        self, root: Path, length_s: float = DEFAULT_LEASE_S, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self.root = root
        self.terms = LeaseTerms(length_s, clock=clock, is_gone=self._is_gone)
        self._alive_fd = -1

    @contextmanager
    def locked(self, id: str, folder: Path, *, wait_s: float = _PATIENCE_S) -> Iterator[LeaseFile]:
        """Lock the lease file of a session; it is made when it is missing.

        Raises:
            SessionHeld: another writer keeps it locked and does not finish.
            LockTimeout: this writer does.
            FileNotFoundError: the folder is gone.
            OSError: it cannot be written.
        """
        path = folder / LEASE_FILE
        while True:
            fd = disk().open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, _MODE)
            try:
                self._lock(id, fd, path, wait_s)
                if _is_at(fd, path):
                    yield LeaseFile(id, fd, path, self.terms)
                    return
            finally:
                os.close(fd)

    def take(self, file: LeaseFile) -> Lease:
        """Take the lease that a locked file stands for.

        Raises:
            SessionHeld: another writer has it.
            OSError: it cannot be written.
        """
        record = self.terms.grant(file.id, file.read())
        self._show_alive()
        file.write(record)
        sync(file.fd)
        return self.terms.lease(file.id, record)

    def close(self) -> None:
        """Show no more that this writer is alive; it must have given up its leases."""
        if self._alive_fd >= 0:
            self._alive_path(self.terms.writer).unlink(missing_ok=True)
            os.close(self._alive_fd)
            self._alive_fd = -1

    def _lock(self, id: str, fd: int, path: Path, wait_s: float) -> None:
        try:
            lock_fd(fd, path, timeout_s=wait_s)
        except LockTimeout:
            last = LeaseFile(id, fd, path, self.terms).read()
            if last is None or last.writer is None or last.writer.token == self.terms.writer.token:
                raise
            raise SessionHeld(id, last.writer.process, last.since_ms) from None

    def _show_alive(self) -> None:
        path = self._alive_path(self.terms.writer)
        if self._alive_fd >= 0:
            if _is_at(self._alive_fd, path):
                return
            os.close(self._alive_fd)  # the root was removed, and made again since
            self._alive_fd = -1
        self._sweep()
        while self._alive_fd < 0:
            fd = disk().open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, _MODE)
            # Between the two steps a sweep of another writer may take the file away.
            if _try_lock(fd) and _is_at(fd, path):
                self._alive_fd = fd
            else:
                os.close(fd)

    def _sweep(self) -> None:
        """Remove what writers left that were killed.

        Those of other computers are left: not every shared file system shares locks.
        """
        for path in self.root.glob(_ALIVE.format(_kernel(self.terms.writer), "*")):
            _remove_if_free(path)

    def _alive_path(self, writer: Writer) -> Path:
        return self.root / _ALIVE.format(_kernel(writer), writer.token)

    def _is_gone(self, writer: Writer) -> bool:
        if writer.process.is_gone():
            return True
        # Containers on one kernel cannot see each other's processes, but share its locks.
        if _kernel(writer) != _kernel(self.terms.writer):
            return False
        return _remove_if_free(self._alive_path(writer))


class LeaseFile:
    """The lease file of one session while it is locked.

    Attributes:
        id: The session.
        fd: The open file.
        path: Its place.
    """

    __slots__ = ("_terms", "fd", "id", "path")

    def __init__(self, id: str, fd: int, path: Path, terms: LeaseTerms) -> None:
        self.id = id
        self.fd = fd
        self.path = path
        self._terms = terms

    def read(self) -> LeaseRecord | None:
        """Return what is stored; ``None`` when nobody ever had a lease."""
        content = os.pread(self.fd, _SIZE, 0)
        if not content:
            return None
        try:
            return LeaseRecord.decode(content)
        except ValueError:
            return self._terms.unreadable()

    def write(self, record: LeaseRecord) -> None:
        """Store a record in place of the last one."""
        os.lseek(self.fd, 0, os.SEEK_SET)
        write_all(self.fd, record.encode().ljust(_SIZE - 1) + b"\n")

    def permit(self, lease: Lease | None) -> None:
        """Refuse a write that somebody else's lease forbids.

        Raises:
            SessionHeld: there is no lease, and another writer has one.
            SessionLeaseLost: the lease has ended.
        """
        self._terms.permit(self.id, lease, self.read())

    def is_in_force(self, lease: Lease) -> bool:
        """Tell whether a lease is the last one."""
        return self._terms.is_in_force(lease, self.read())


def holder_of(artifact: Path) -> SessionHeld | None:
    """Return what a writer of a session's file would be told, or ``None`` if it is free.

    No session is locked or changed.
    """
    try:
        record = LeaseRecord.decode((artifact.parent / LEASE_FILE).read_bytes())
    except (OSError, ValueError):
        return None
    # The root is two folders up: project, session.
    files = LeaseFiles(artifact.parents[2])
    holder = files.terms.holder(record)
    return None if holder is None else SessionHeld(_id(artifact), holder.process, record.since_ms)


def removed(id: str, path: Path) -> SessionConflict:
    """Return the error for a session whose file is not there any more."""
    return SessionConflict(id, f"was removed from disk ({str(path)!r}); go on in a new session")


def _id(artifact: Path) -> str:
    return artifact.parent.name


def _kernel(writer: Writer) -> str:
    """Return what names the running system of a writer, containers on it included."""
    return re.sub(r"[^A-Za-z0-9]+", "", writer.process.machine.partition(":")[0])


def _is_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.lstat(path))
    except FileNotFoundError:
        return False


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _remove_if_free(path: Path) -> bool:
    """Remove a writer's file whose writer is gone; say whether it is."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        if not _try_lock(fd):
            return False
        path.unlink(missing_ok=True)
        return True
    finally:
        os.close(fd)
