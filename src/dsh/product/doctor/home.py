"""Looks at the home folder: whether it can be used, and whether its files are in order."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dsh.base.errors import DshError, message_of
from dsh.loader.home import display_home
from dsh.loader.reading import read_bounded
from dsh.product.doctor.findings import Case, Finding
from dsh.product.tree.redact import secrets_of_text

TOPIC: Final = "home"
_STALE_S: Final = 3600.0
_MOST_SHOWN: Final = 5


def look_at_home(case: Case) -> Iterator[Finding]:
    """Say where the home folder is and whether it can be written."""
    home, name = case.home, display_home(case.home)
    origin = "from $DSH_HOME" if os.environ.get("DSH_HOME", "").strip() else "the default"
    if os.path.lexists(home) and not home.is_dir():
        kind = "a link that leads nowhere" if home.is_symlink() else "a file"
        yield Finding("error", TOPIC, f"the home folder ({origin}) is {kind}", name, _another(home))
        return
    problem = _unwritable(home)
    if problem is not None:
        what = f"the home folder ({origin}) cannot be written: {problem}; no session can be kept"
        yield Finding("error", TOPIC, what, name, _another(home))
    elif not home.exists():
        yield Finding("ok", TOPIC, f"the home folder ({origin}) is made at the first start", name)
    else:
        yield Finding("ok", TOPIC, f"the home folder ({origin}) can be written", name)
    for inner in ("profiles", "sessions", "logs"):
        folder = home / inner
        if os.path.lexists(folder) and not folder.is_dir():
            what = f"{inner} should be a folder and is not"
            yield Finding("error", TOPIC, what, f"{name}/{inner}", "move it away")
        elif folder.is_dir() and not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
            what = f"the folder {inner} cannot be used"
            remedy = f"give it back to yourself: chmod u+rwx {name}/{inner}"
            yield Finding("error", TOPIC, what, f"{name}/{inner}", remedy)


def look_at_documents(case: Case) -> Iterator[Finding]:
    """Say whether the files of settings and credentials can be used, and by whom."""
    from dsh.state.documents.file import DocumentFile

    name = display_home(case.home)
    for file, what, secret in (
        ("settings.yaml", "settings document", False),
        (".credentials.yaml", "credentials document", True),
    ):
        path = case.home / file
        if not os.path.lexists(path):
            continue
        try:
            # Whether others may open it is told below, with its remedy.
            DocumentFile(path, what=what, lock_s=0, secret=False).read()
        except DshError as error:
            remedy = f"correct {name}/{file}, or move it away to start with none"
            yield Finding("error", TOPIC, message_of(error), f"{name}/{file}", remedy)
            continue
        if not secret or not _open_to_others(path):
            yield Finding("ok", TOPIC, f"the {what} can be read", f"{name}/{file}")
        else:
            what = f"others may open the {what}, so it is not used"
            yield Finding("error", TOPIC, what, f"{name}/{file}", f"chmod 600 {name}/{file}")


def look_at_env_files(case: Case) -> Iterator[Finding]:
    """Say what is wrong with the ``.env`` files of the home folder and of this one."""
    for sentence in case.heard:
        remedy = "export the variable, or put it into the .env of the home folder"
        if "ignored" not in sentence:
            remedy = "correct the file, or move it away"
        yield Finding("warning", TOPIC, sentence, remedy=remedy)
    path = case.home / ".env"
    if path.is_file() and _open_to_others(path) and any(secrets_of_text(_text(path))):
        place = f"{display_home(case.home)}/.env"
        what = "others may read the keys in it"
        yield Finding("warning", TOPIC, what, place, f"chmod 600 {place}")


def look_at_leftovers(case: Case) -> Iterator[Finding]:
    """Say which temporary files an interrupted write left behind."""
    oldest = time.time() - _STALE_S
    stale = [path for path in _temporary(case.home) if _mtime(path) < oldest]
    if stale:
        shown = [str(path) for path in sorted(stale)[:_MOST_SHOWN]]
        more = f" and {len(stale) - len(shown)} more" if len(stale) > len(shown) else ""
        noun = "file" if len(stale) == 1 else "files"
        what = f"{len(stale)} temporary {noun} of interrupted writes: {', '.join(shown)}{more}"
        yield Finding("note", TOPIC, what, remedy="delete them while no dsh runs")


def _another(home: Path) -> str:
    if os.environ.get("DSH_HOME", "").strip():
        return "set DSH_HOME to a folder that you may write"
    return f"make {display_home(home)} a folder that you may write, or set DSH_HOME to one"


def _unwritable(home: Path) -> str | None:
    """Return why nothing can be made in a folder, or in the one it would be made in."""
    place = next(each for each in (home, *home.parents) if each.exists())
    if not place.is_dir():
        return "a folder above it is a file"
    # Being allowed to is not being able to: try, where it leaves nothing behind.
    probe = place / f".dsh-doctor.{os.getpid()}.tmp"
    try:
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        probe.unlink()
    except OSError as error:
        return (error.strerror or "no reason given").lower()
    return None


def _temporary(home: Path) -> Iterator[Path]:
    for pattern in (".*.tmp", "profiles/*/.*.tmp", "sessions/*/*/*.tmp", "storages/*.tmp"):
        yield from home.glob(pattern)


def _mtime(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return time.time()


def _open_to_others(path: Path) -> bool:
    return bool(stat.S_IMODE(path.stat().st_mode) & 0o077)


def _text(path: Path) -> str:
    try:
        return read_bounded(path, 1 << 20).decode("utf-8", "replace")
    except OSError:
        return ""
