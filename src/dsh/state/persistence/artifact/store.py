"""One sessions root as a storage backend."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsh.base.clock import SYSTEM_CLOCK, Clock
from dsh.base.files import sync
from dsh.state.persistence.artifact.catalog import CatalogEntry, survey, survey_cwd
from dsh.state.persistence.artifact.known import Known
from dsh.state.persistence.artifact.layout import (
    Encoding,
    artifact_path,
    find_artifact,
    find_artifacts,
    session_dir,
)
from dsh.state.persistence.artifact.reader import FileLog, FilePosition, read_log
from dsh.state.persistence.artifact.writer import ArtifactWriter
from dsh.state.persistence.errors import (
    SessionFormatUnsupportedError,
    SessionPersistenceCorruptionError,
)
from dsh.state.persistence.lease import DEFAULT_LEASE_S
from dsh.state.persistence.scan import check_vocabulary

if TYPE_CHECKING:
    from dsh.state.persistence.lease import Lease
    from dsh.state.session.events import SessionEvent, SessionHeader


class ArtifactStore:
    """The sessions below one root. Every method blocks; calls for one id must not overlap.

    Args:
        root: The sessions root; made when the first session is written.
        encoding: How new files are written; both encodings are read.
        pack: Whether runs of chunks share rows.
        sync: Makes a file descriptor durable.
        lease_s: How long a lease lasts that is not renewed.
        clock: Tells the time.

    Raises:
        NotADirectoryError: the root is something else than a folder.
    """

    name = "jsonl"

    def __init__(
        self,
        root: Path,
        encoding: Encoding = Encoding.ZSTD,
        *,
        pack: bool = True,
        sync: Callable[[int], None] = sync,
        lease_s: float = DEFAULT_LEASE_S,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.root = Path(os.path.abspath(root))
        if self.root.exists() and not self.root.is_dir():
            raise NotADirectoryError(f"the sessions root {str(self.root)!r} is not a folder")
        self._known = Known()
        self._writer = ArtifactWriter(
            self.root, encoding, pack=pack, sync=sync, lease_s=lease_s, clock=clock
        )

    def locate(self, header: Mapping[str, Any]) -> Path:
        """Return where the file of a new session goes; touches no disk."""
        return artifact_path(self.root, header, self._writer.encoding)

    def load(self, id: str) -> FileLog | None:
        """Read a stored session.

        Raises:
            SessionPersistenceCorruptionError: what was committed is damaged.
            SessionFormatUnsupportedError: this build cannot interpret it.
            OSError: it cannot be read.
        """
        path = find_artifact(self.root, id)
        if path is None:
            return None
        stored = read_log(path)
        self._check_identity(path, stored.header, id)
        try:
            check_vocabulary(stored.events)
        except SessionFormatUnsupportedError as error:
            raise error.at(path) from error
        return stored

    def revision(self, id: str) -> str | None:
        """Return a text that changes whenever the stored session does; ``None`` when absent."""
        path = find_artifact(self.root, id)
        return None if path is None else FilePosition.of(path, path.stat()).revision

    def hold(self, id: str) -> Lease | None:
        """Take the lease of a stored session; ``None`` when nothing is stored.

        Raises:
            SessionHeld: another writer, most likely another process, has it.
            OSError: it cannot be written.
        """
        path = find_artifact(self.root, id)
        return None if path is None else self._writer.hold(id, path)

    def renew(self, leases: Iterable[Lease]) -> list[Lease]:
        """Prolong leases; return those that have ended."""
        return self._writer.renew(leases)

    def let_go(self, lease: Lease) -> None:
        """Give a lease up."""
        self._writer.let_go(lease)

    def close(self) -> None:
        """Give all leases up."""
        self._writer.close()

    def create(self, header: SessionHeader, events: Sequence[Mapping[str, Any]]) -> FilePosition:
        """Store the header and first batch of a new session. See `ArtifactWriter`."""
        return self._writer.materialize(header, events)

    def create_held(
        self, header: SessionHeader, events: Sequence[Mapping[str, Any]]
    ) -> tuple[Lease, FilePosition]:
        """Do as `create`, and take the lease in the same step."""
        return self._writer.materialize_held(header, events)

    def append(
        self,
        id: str,
        position: FilePosition,
        events: Sequence[Mapping[str, Any]],
        lease: Lease | None = None,
    ) -> FilePosition:
        """Store the next batch. See `ArtifactWriter.append`."""
        return self._writer.append(id, position, events, lease)

    def repair(
        self, stored: FileLog, closers: Sequence[SessionEvent], lease: Lease | None = None
    ) -> FilePosition:
        """Make a damaged or interrupted log whole. See `ArtifactWriter.repair`."""
        return self._writer.repair(stored, closers, lease)

    def delete(self, id: str) -> bool:
        """Remove the files of a session; say whether there were any.

        Raises:
            SessionHeld: a writer has it.
            OSError: they cannot be removed.
        """
        paths = find_artifacts(self.root, id)
        self._writer.remove(id, paths)
        return bool(paths)

    def survey(self) -> Iterable[CatalogEntry]:
        """Iterate over everything stored, with its headers."""
        return survey(self.root, known=self._known)

    def survey_cwd(self, cwd: str) -> Iterable[CatalogEntry]:
        """Iterate over the sessions of one working directory."""
        return survey_cwd(self.root, cwd, known=self._known)

    def _check_identity(self, path: Path, header: SessionHeader, id: str) -> None:
        if header["id"] != id:
            raise SessionPersistenceCorruptionError(
                f"the header names session {header['id']!r}, not {id!r}", path=path
            )
        expected = session_dir(self.root, header) / path.name
        if expected != path and not _same_file(expected, path):
            raise SessionPersistenceCorruptionError(
                f"the header belongs in {str(expected)!r}", path=path
            )


def _same_file(one: Path, two: Path) -> bool:
    try:
        return one.samefile(two)
    except OSError:
        return False
