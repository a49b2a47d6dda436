"""What is stored below a sessions root, the damaged files among it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from dsh.state.session.events import SessionHeader


@value
class CatalogEntry:
    """One stored session, or the place where one should be.

    Attributes:
        path: The file, or the folder when that cannot be read.
        header: Its header, when that much can be read.
        events: How many events it holds, when they were counted.
        damage: What is wrong with it; ``None`` when nothing is known to be.
        incomplete: The file was cut before anything was committed to it.
    """

    path: Path
    header: SessionHeader | None = None
    events: int | None = None
    damage: str | None = None
    incomplete: bool = False


def survey(root: Path, *, count: bool = False) -> Iterator[CatalogEntry]:
    """Iterate over everything stored; one bad file never hides the others.

    Args:
        root: The sessions root; one that does not exist is empty.
        count: Read each log whole, to count its events and find damage behind the header.
    """
    for project in project_dirs(root):
        yield from _survey_project(project, count)


def survey_cwd(root: Path, cwd: str) -> Iterator[CatalogEntry]:
    """Iterate over the sessions of one working directory."""
    project = root / project_key(cwd)
    if project.is_dir():
        entries = _survey_project(project, False)
        yield from (
            entry for entry in entries if entry.header is None or entry.header.get("cwd") == cwd
        )


def _survey_project(project: Path, count: bool) -> Iterator[CatalogEntry]:
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
            yield _inspect(path, count, twice)


def _inspect(path: Path, count: bool, twice: str | None) -> CatalogEntry:
    header: SessionHeader | None = None
    try:
        header = read_header(path)
        if (problem := _misplaced(path, header) or twice) is not None:
            return CatalogEntry(path, header, damage=problem)
        if not count:
            return CatalogEntry(path, header)
        stored = read_log(path)
    except IncompleteArtifact as error:
        return CatalogEntry(path, header, damage=error.problem, incomplete=True)
    except (DshError, OSError) as error:
        return CatalogEntry(path, header, damage=_told(error))
    damage = None
    if stored.tail is not None:
        lost = f"{stored.tail.lost_bytes} bytes at its end are no whole record"
        damage = f"{lost} ({stored.tail.reason}); the next resume cuts them off"
    return CatalogEntry(path, header, len(stored.events), damage)


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
