"""The anonymous id of whoever uses a home: a random number in a file, and nothing else."""

from __future__ import annotations

import logging
import os
import re
import secrets
import uuid
from pathlib import Path
from typing import Final

__all__ = ["FILE_NAME", "anonymous_user_id"]

FILE_NAME: Final = ".anonymous-user-id"
"""The file in the home folder; one line."""

_UUID4: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_ENOUGH: Final = 64
_log = logging.getLogger("dsh.anonymous")
_of_this_process: list[str] = []


def anonymous_user_id(home: Path) -> str:
    """Return the id of a home, which is made when first asked for. Blocks.

    Processes that ask at the same time agree. A file that holds no such id is replaced. Where the
    home cannot be written, the id lasts as long as this process.
    """
    path = home / FILE_NAME
    try:
        return _read(path) or _make(path)
    except OSError as error:
        if not _of_this_process:
            _of_this_process.append(str(uuid.uuid4()))
            _log.debug("no lasting anonymous id: %s", error)
        return _of_this_process[0]


def _read(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            text = file.read(_ENOUGH).decode("ascii", "replace").strip()
    except FileNotFoundError:
        return None
    return text if _UUID4.fullmatch(text) else None


def _make(path: Path) -> str:
    """Publish an id as a whole file; whoever comes second takes the first one's."""
    path.parent.mkdir(parents=True, exist_ok=True)
    made = str(uuid.uuid4())
    staged = path.with_name(f"{FILE_NAME}.{secrets.token_hex(6)}.tmp")
    fd = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(fd, "w") as file:
            file.write(made + "\n")
        try:
            os.link(staged, path)
        except OSError:
            # Somebody was first, the file is damaged, or there are no links here.
            if (theirs := _read(path)) is not None:
                return theirs
            staged.replace(path)
        return _read(path) or made
    finally:
        staged.unlink(missing_ok=True)
