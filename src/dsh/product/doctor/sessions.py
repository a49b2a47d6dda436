"""Looks at the stored sessions; each is read, none is changed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dsh.loader.home import display_home
from dsh.product.doctor.findings import Case, Finding
from dsh.state.persistence.artifact.catalog import CatalogEntry, survey
from dsh.state.persistence.artifact.layout import Encoding, project_dirs, session_dirs
from dsh.state.persistence.artifact.leases import LEASE_FILE, holder_of

TOPIC: Final = "sessions"
PATIENCE_S: Final = 10.0
"""How long logs are read whole; of the rest only headers are."""


def look_at_sessions(case: Case) -> Iterator[Finding]:
    """Say how many sessions there are, which are damaged, and which another process writes."""
    root = case.home / "sessions"
    if not root.is_dir():
        yield Finding("ok", TOPIC, "no sessions yet")
        return
    entries, whole = _survey(root)
    damaged = [each for each in entries if each.damage is not None]
    count = len(entries)
    what = f"{count} {'session' if count == 1 else 'sessions'} stored, {len(damaged)} damaged"
    yield Finding(
        "ok" if not damaged else "note", TOPIC, what, f"{display_home(case.home)}/sessions"
    )
    if not whole:
        what = "there are so many sessions that of some only the headers were read"
        yield Finding("note", TOPIC, what, remedy="dsh sessions list reads them all")
    for entry in damaged:
        yield _damage(entry)
    yield from _held(entries)
    yield from _foreign(root)


def _survey(root: Path) -> tuple[list[CatalogEntry], bool]:
    """Return every session, read whole while there is time, and whether there was."""
    end = time.monotonic() + PATIENCE_S
    found: list[CatalogEntry] = []
    for entry in survey(root, count=True):
        found.append(entry)
        if time.monotonic() > end:
            seen = {each.path for each in found}
            rest = [each for each in survey(root) if each.path not in seen]
            return [*found, *rest], not rest
    return found, True


def _damage(entry: CatalogEntry) -> Finding:
    name = entry.header["id"] if entry.header is not None else entry.path.parent.name
    damage = entry.damage or ""
    if "format version" in damage:
        what = f"session {name} is of another format: {damage}"
        remedy = "keep the file; a dsh of that format reads it"
        return Finding("note", "upgrade", what, str(entry.path), remedy)
    if entry.incomplete:
        remedy = "nothing was committed to it: delete its folder"
    elif "next resume" in damage:
        remedy = f"dsh sessions repair {name}; what it cuts off is kept beside it"
    else:
        remedy = "move its folder out of sessions; other sessions are not affected"
    return Finding(
        "warning", TOPIC, f"session {name} is damaged: {damage}", str(entry.path), remedy
    )


def _held(entries: list[CatalogEntry]) -> Iterator[Finding]:
    for entry in entries:
        if entry.header is not None and holder_of(entry.path) is not None:
            what = f"session {entry.header['id']} is open in another process"
            remedy = "to resume it here, end it there first"
            yield Finding("note", TOPIC, what, str(entry.path), remedy)


def _foreign(root: Path) -> Iterator[Finding]:
    """Yield a finding when there are session files that another harness wrote."""
    own = tuple(encoding.value for encoding in Encoding)
    count = 0
    for project in project_dirs(root):
        for folder in session_dirs(project):
            names = {path.name for path in folder.glob("session.*")} - {LEASE_FILE}
            # What is kept beside a log has its name and more.
            count += any(not name.startswith(own) for name in names)
    if count:
        noun = "session has a file" if count == 1 else "sessions have files"
        what = f"{count} {noun} of another format, which is left alone and not listed"
        yield Finding("note", "upgrade", what, remedy="nothing to do; the other program reads them")
