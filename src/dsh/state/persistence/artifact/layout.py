"""Where a session's file lies below the sessions root."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from dsh.state.persistence.errors import SessionPersistenceCorruptionError

_NO_CWD = "_no-cwd"
_SLUG_LENGTH = 251
_SEPARATORS = re.compile(r"[/\\:]+")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_ESCAPED = re.compile(r"~([0-9A-F]{4})")


class Encoding(Enum):
    """How a file is written; the value is its name."""

    ZSTD = "session.jsonl.zstd"
    PLAIN = "session.jsonl"


def encode_segment(id: str) -> str:
    """Return the folder name of a session: one to one, and safe whatever the id holds.

    Raises:
        ValueError: the id is empty.
    """
    if not id:
        raise ValueError("a session id cannot be empty")
    if id in (".", ".."):
        return id.replace(".", "~002E")
    return _UNSAFE.sub(_escape, id)


def decode_segment(name: str) -> str:
    """Return the id whose folder has a name; the name itself when it is nobody's folder."""
    units = _ESCAPED.sub(lambda match: chr(int(match[1], 16)), name)
    decoded = units.encode("utf-16-be", "surrogatepass").decode("utf-16-be", "surrogatepass")
    return decoded if decoded and encode_segment(decoded) == name else name


def project_key(cwd: str | None) -> str:
    """Return the folder name of a working directory; several directories may share one."""
    if cwd is None:
        return _NO_CWD
    slug = _UNSAFE.sub(_escape, _SEPARATORS.sub("-", cwd)).lstrip("-") or "root"
    return f"--{slug[:_SLUG_LENGTH]}--"


def artifact_path(root: Path, header: Mapping[str, Any], encoding: Encoding) -> Path:
    """Return the file of a session, whether or not it exists."""
    return session_dir(root, header) / encoding.value


def session_dir(root: Path, header: Mapping[str, Any]) -> Path:
    """Return the folder of a session, whether or not it exists."""
    return root / project_key(header.get("cwd")) / encode_segment(header["id"])


def encoding_of(path: Path) -> Encoding:
    """Return how a session's file is written, by its name."""
    return Encoding(path.name)


def find_artifact(root: Path, id: str) -> Path | None:
    """Return the file of a stored session, in whichever project folder it lies.

    Raises:
        SessionPersistenceCorruptionError: the id has several files.
        OSError: a folder cannot be read.
    """
    found = find_artifacts(root, id)
    if len(found) > 1:
        names = " and ".join(repr(str(path)) for path in found)
        raise SessionPersistenceCorruptionError(
            f'session "{id}" is stored more than once, in {names}; move all but one away'
        )
    return found[0] if found else None


def find_artifacts(root: Path, id: str) -> list[Path]:
    """Return every file of a stored session, of which there should be one at most.

    Raises:
        OSError: a folder cannot be read.
    """
    segment = encode_segment(id)
    return [
        path
        for project in project_dirs(root)
        for path in (project / segment / encoding.value for encoding in Encoding)
        if _exists(path)
    ]


def project_dirs(root: Path) -> list[Path]:
    """Return the project folders of a root, none when it does not exist."""
    try:
        with os.scandir(root) as entries:
            return sorted(Path(entry.path) for entry in entries if entry.is_dir())
    except FileNotFoundError:
        return []


def session_dirs(project: Path) -> Iterator[Path]:
    """Iterate over the session folders of a project folder.

    Raises:
        OSError: the folder cannot be read.
    """
    return (project / name for name in session_names(project))


def session_names(project: Path) -> list[str]:
    """Return the names of the session folders of a project folder.

    Raises:
        OSError: the folder cannot be read.
    """
    with os.scandir(project) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir())


def artifacts_in(folder: Path) -> list[Path]:
    """Return the files of this format in a session folder; files of others are not ours."""
    return [path for path in (folder / encoding.value for encoding in Encoding) if _exists(path)]


def _exists(path: Path) -> bool:
    """Only absence means absent: a folder that cannot be read must not look empty."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _escape(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass")
    return "".join(
        f"~{int.from_bytes(units[at : at + 2], 'big'):04X}" for at in range(0, len(units), 2)
    )
