"""What is stored below a sessions root, the damaged files among it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from dsh.base.errors import DshError, message_of
from dsh.base.values import value
from dsh.state.persistence.artifact.layout import (
    artifacts_in,
    encode_segment,
    project_dirs,
    project_key,
    session_dirs,
)
from dsh.state.persistence.artifact.reader import read_header, read_log
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
    """

    path: Path
    header: SessionHeader | None = None
    events: int | None = None
    folded: Any = None
    damage: str | None = None
    incomplete: bool = False


Fold: TypeAlias = "Callable[[Sequence[SessionEvent]], object]"
"""Makes something of the events of a log."""


def survey(root: Path, *, count: bool = False, fold: Fold | None = None) -> Iterator[CatalogEntry]:
    """Iterate over everything stored; one bad file never hides the others.

    Args:
        root: The sessions root; one that does not exist is empty.
        count: Read each log whole, to count its events and find damage behind the header.
        fold: Read each log whole, and keep what this makes of its events.
    """
    wanted = fold if fold is not None or not count else len
    for project in project_dirs(root):
        yield from _survey_project(project, wanted)


def survey_cwd(root: Path, cwd: str) -> Iterator[CatalogEntry]:
    """Iterate over the sessions of one working directory."""
    project = root / project_key(cwd)
    if project.is_dir():
        entries = _survey_project(project, None)
        yield from (
            entry for entry in entries if entry.header is None or entry.header.get("cwd") == cwd
        )


def _survey_project(project: Path, fold: Fold | None) -> Iterator[CatalogEntry]:
    try:
        folders = list(session_dirs(project))
    except OSError as error:
        yield CatalogEntry(project, damage=_told(error))
        return
    for folder in folders:
        try:
            files = artifacts_in(folder)
        except OSError as error:
            yield CatalogEntry(folder, damage=_told(error))
            continue
        for path in files:
            twice = f"the session is also stored in {files[0].name!r}" if path != files[0] else None
            yield _inspect(path, fold, twice)


def _inspect(path: Path, fold: Fold | None, twice: str | None) -> CatalogEntry:
    header: SessionHeader | None = None
    try:
        header = read_header(path)
        if (problem := _misplaced(path, header) or twice) is not None:
            return CatalogEntry(path, header, damage=problem)
        if fold is None:
            return CatalogEntry(path, header)
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
    return CatalogEntry(path, header, len(stored.events), fold(stored.events), damage)


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
