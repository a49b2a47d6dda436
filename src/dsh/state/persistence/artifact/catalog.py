"""What is stored below a sessions root, the damaged files among it."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from dsh.base.errors import DshError, message_of
from dsh.base.values import value
from dsh.state.persistence.artifact.known import Known, Listed
from dsh.state.persistence.artifact.layout import (
    Encoding,
    encode_segment,
    project_dirs,
    project_key,
    session_names,
)
from dsh.state.persistence.artifact.reader import FilePosition, read_header, read_log
from dsh.state.persistence.errors import IncompleteArtifact
from dsh.state.persistence.scan import check_vocabulary

if TYPE_CHECKING:
    from dsh.state.session.events import SessionEvent, SessionHeader


@value
class CatalogEntry:
    """One stored session, or the place where one should be.

    Attributes:
        path: The file, or the folder when that cannot be read.
        header: Its header, when that much can be read.
        events: How many events it holds, when it was read whole.
        folded: What was made of its events, when that was asked for.
        damage: What is wrong with it; ``None`` when nothing is known to be.
        incomplete: The file was cut before anything was committed to it.
        position: The file as it was before it was read, when that much is known.
    """

    path: Path
    header: SessionHeader | None = None
    events: int | None = None
    folded: Any = None
    damage: str | None = None
    incomplete: bool = False
    position: FilePosition | None = None


_NAMES = tuple(encoding.value for encoding in Encoding)

Fold: TypeAlias = "Callable[[Sequence[SessionEvent]], object]"
"""Makes something of the events of a log."""


def survey(
    root: Path, *, count: bool = False, fold: Fold | None = None, known: Known | None = None
) -> Iterator[CatalogEntry]:
    """Iterate over everything stored; one bad file never hides the others.

    Args:
        root: The sessions root; one that does not exist is empty.
        count: Read each log whole, to count its events and find damage behind the header.
        fold: Read each log whole, and keep what this makes of its events.
        known: What earlier surveys found, for one that only reads headers.
    """
    projects = project_dirs(root)
    if count or fold is not None:
        for project in projects:
            yield from _survey_project(project, fold or len, None)
        return
    if known is not None:
        known.keep_only(map(str, projects))
    for project in projects:
        yield from _survey_project(project, None, known)


def survey_cwd(root: Path, cwd: str, *, known: Known | None = None) -> Iterator[CatalogEntry]:
    """Iterate over the sessions of one working directory."""
    project = root / project_key(cwd)
    if project.is_dir():
        entries = _survey_project(project, None, known)
        yield from (
            entry for entry in entries if entry.header is None or entry.header.get("cwd") == cwd
        )


def _survey_project(
    project: Path, fold: Fold | None, known: Known | None
) -> Iterator[CatalogEntry]:
    known = Known() if known is None else known
    key = str(project)
    last, found = known.listed(key), known.begin(key)
    try:
        names = session_names(project)
    except OSError as error:
        yield CatalogEntry(project, damage=_told(error))
        return
    # All that is done for each file that is known already is done on plain strings.
    for name in names:
        folder = f"{key}{os.sep}{name}"
        try:
            files = _files_in(folder)
        except OSError as error:
            yield CatalogEntry(Path(folder), damage=_told(error))
            continue
        if len(files) == 1:
            yield _known_or_read(*files[0], fold, last, found)
            continue
        for number, (path, _) in enumerate(files):
            twice = f"the session is also stored in {_NAMES[0]!r}" if number else None
            yield _inspect(Path(path), fold, twice)
    known.finish(key, found)


def _files_in(folder: str) -> list[tuple[str, os.stat_result]]:
    """Return the files of this format in a session folder; only absence means absent."""
    files = []
    for name in _NAMES:
        path = f"{folder}{os.sep}{name}"
        try:
            files.append((path, os.lstat(path)))
        except (FileNotFoundError, NotADirectoryError):
            continue
    return files


def _known_or_read(
    path: str, state: os.stat_result, fold: Fold | None, last: Listed, found: Listed
) -> CatalogEntry:
    # What a link leads to can change while the link does not.
    if fold is not None or not stat.S_ISREG(state.st_mode):
        return _inspect(Path(path), fold, None)
    entry = last.get(path, state)
    if entry is None:
        place = Path(path)
        entry = _inspect(place, None, None, FilePosition.of(place, state))
    if entry.damage is None:
        found.put(path, state, entry)
    return entry


def _inspect(
    path: Path, fold: Fold | None, twice: str | None, position: FilePosition | None = None
) -> CatalogEntry:
    header: SessionHeader | None = None
    try:
        position = position or FilePosition.of(path, path.stat())
        header = read_header(path)
        if (problem := _misplaced(path, header) or twice) is not None:
            return CatalogEntry(path, header, damage=problem)
        if fold is None:
            return CatalogEntry(path, header, position=position)
        stored = read_log(path)
        check_vocabulary(stored.events)
    except IncompleteArtifact as error:
        return CatalogEntry(path, header, damage=error.problem, incomplete=True)
    except (DshError, OSError) as error:
        return CatalogEntry(path, header, damage=_told(error))
    damage = None
    if stored.tail is not None:
        lost = f"{stored.tail.lost_bytes} bytes at its end are no whole record"
        damage = f"{lost} ({stored.tail.reason}); the next resume sets them aside"
    folded = fold(stored.events)
    return CatalogEntry(path, header, len(stored.events), folded, damage, position=stored.position)


def _misplaced(path: Path, header: SessionHeader) -> str | None:
    folder = path.parent
    if folder.name == encode_segment(header["id"]) and folder.parent.name == project_key(
        header.get("cwd")
    ):
        return None
    return f"its header names session {header['id']!r} of {header.get('cwd')!r}, not this folder"


def _told(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or message_of(error)
    problem: str = getattr(error, "problem", None) or message_of(error)
    return re.sub(r"\s+", " ", problem)
