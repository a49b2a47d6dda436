"""One sessions root as a storage backend."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsh.state.persistence.artifact.catalog import CatalogEntry, survey, survey_cwd
from dsh.state.persistence.artifact.layout import (
    Encoding,
    artifact_path,
    find_artifact,
    session_dir,
)
from dsh.state.persistence.artifact.reader import Position, StoredLog, read_log
from dsh.state.persistence.artifact.records import check_vocabulary
from dsh.state.persistence.artifact.writer import ArtifactWriter
from dsh.state.persistence.errors import (
    SessionFormatUnsupportedError,
    SessionPersistenceCorruptionError,
)

if TYPE_CHECKING:
    from dsh.state.session.events import SessionEvent, SessionHeader


class ArtifactStore:
    """The sessions below one root. Every method blocks; calls for one id must not overlap.

    Args:
        root: The sessions root; made when the first session is written.
        encoding: How new files are written; both encodings are read.
        pack: Whether runs of chunks share rows.
        sync: Makes a file descriptor durable.

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
        sync: Callable[[int], None] = os.fsync,
    ) -> None:
        self.root = Path(os.path.abspath(root))
        if self.root.exists() and not self.root.is_dir():
            raise NotADirectoryError(f"the sessions root {str(self.root)!r} is not a folder")
        self._writer = ArtifactWriter(self.root, encoding, pack=pack, sync=sync)

    def locate(self, header: Mapping[str, Any]) -> Path:
        """Return where the file of a new session goes; touches no disk."""
        return artifact_path(self.root, header, self._writer.encoding)

    def load(self, id: str) -> StoredLog | None:
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
        self._check_identity(stored, id)
        try:
            check_vocabulary(stored.events)
        except SessionFormatUnsupportedError as error:
            raise error.at(path) from error
        return stored

    def revision(self, id: str) -> str | None:
        """Return a text that changes whenever the stored session does; ``None`` when absent."""
        path = find_artifact(self.root, id)
        return None if path is None else Position.of(path, path.stat()).revision

    def hold(self, id: str) -> None:
        """Keep a stored session from other writers; one that is absent is left so.

        Raises:
            SessionConflict: another writer, most likely another process, holds it.
            OSError: its file cannot be written.
        """
        path = find_artifact(self.root, id)
        if path is not None:
            self._writer.hold(id, path)

    def let_go(self, id: str) -> None:
        """Let others write to a session again."""
        self._writer.let_go(id)

    def close(self) -> None:
        """Let others write to all sessions again."""
        self._writer.close()

    def create(self, header: SessionHeader, events: Sequence[Mapping[str, Any]]) -> Position:
        """Store the header and first batch of a new session. See `ArtifactWriter`."""
        return self._writer.materialize(header, events)

    def append(self, id: str, position: Position, events: Sequence[Mapping[str, Any]]) -> Position:
        """Store the next batch. See `ArtifactWriter.append`."""
        return self._writer.append(id, position, events)

    def repair(self, stored: StoredLog, closers: Sequence[SessionEvent]) -> Position:
        """Make a damaged or interrupted log whole. See `ArtifactWriter.repair`."""
        return self._writer.repair(stored, closers)

    def survey(self) -> Iterable[CatalogEntry]:
        """Iterate over everything stored, with its headers."""
        return survey(self.root)

    def survey_cwd(self, cwd: str) -> Iterable[CatalogEntry]:
        """Iterate over the sessions of one working directory."""
        return survey_cwd(self.root, cwd)

    def _check_identity(self, stored: StoredLog, id: str) -> None:
        header = stored.header
        if header["id"] != id:
            raise SessionPersistenceCorruptionError(
                f"the header names session {header['id']!r}, not {id!r}", path=stored.path
            )
        expected = session_dir(self.root, header) / stored.path.name
        if expected != stored.path and not _same_file(expected, stored.path):
            raise SessionPersistenceCorruptionError(
                f"the header belongs in {str(expected)!r}", path=stored.path
            )


def _same_file(one: Path, two: Path) -> bool:
    try:
        return one.samefile(two)
    except OSError:
        return False
