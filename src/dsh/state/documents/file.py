"""One document on disk: read as it is now, and changed by one process at a time."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from dsh.base.files import FileLock, LockTimeout, sweep_unfinished, write_atomic
from dsh.base.json import equal
from dsh.state.documents.errors import DocumentError, DocumentUnpatchable, OpenToOthers
from dsh.state.documents.parsing import parse_json, parse_yaml, render_json

__all__ = ["DocumentFile", "Draft", "Stamp", "make_private_folder"]

MAX_BYTES: Final = 8 << 20
"""Largest document that is read."""

_FILE_MODE: Final = 0o600
_FOLDER_MODE: Final = 0o700

Stamp = tuple[int, int, int, int]
"""What tells two states of a file apart without reading it."""


class DocumentFile:
    """A YAML or JSON file of one mapping; an absent file is an empty mapping.

    All methods block the thread that calls them.

    Args:
        path: The file, whose suffix decides its kind. Where it is a link, what it leads to is
            read and written.
        what: What errors call it.
        lock_s: How long a writer waits for another process.
        secret: Refuse to parse a file that its owner's group or others can open.
    """

    def __init__(self, path: Path, *, what: str, lock_s: float, secret: bool = False) -> None:
        self.path = path
        self.what = what
        self._lock_s = lock_s
        self._secret = secret
        self._is_json = path.suffix == ".json"

    def read(self) -> Mapping[str, Any]:
        """Return the content.

        Raises:
            DocumentError: the file cannot be read or parsed.
        """
        return self.parse(self.read_text())

    def parse(self, text: str) -> Mapping[str, Any]:
        """Return what a text would hold as this document.

        Raises:
            DocumentError: it cannot be parsed.
        """
        parse = parse_json if self._is_json else parse_yaml
        return parse(text, self.path, self.what)

    def read_text(self) -> str:
        """Return the text; an absent file has none.

        Raises:
            DocumentError: the file cannot be read.
        """
        try:
            # A pipe at this place must not stop the start.
            fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            if self.path.is_symlink():
                raise self._problem("the link leads to no file") from None
            return ""
        except OSError as error:
            raise self._problem((error.strerror or "unreadable").lower()) from error
        try:
            self._examine(os.fstat(fd))
            with os.fdopen(fd, "rb", closefd=False) as file:
                data = file.read(MAX_BYTES + 1)
        except OSError as error:
            raise self._problem((error.strerror or "unreadable").lower()) from error
        finally:
            os.close(fd)
        return self._decode(data)

    def stamp(self) -> Stamp | None:
        """Return what changes whenever the file does; None while there is no file."""
        try:
            info = self.path.stat()
        except OSError:
            return None
        return info.st_mtime_ns, info.st_size, info.st_ino, info.st_mode

    @contextmanager
    def draft(self) -> Iterator[Draft]:
        """Lock the document against other processes and read it anew.

        Raises:
            DocumentError: the file cannot be read, or its folder cannot be made.
            LockTimeout: another process writes for longer than one waits.
        """
        try:
            target = Path(os.path.realpath(self.path))
            make_private_folder(target.parent)
            # Not the plain `.lock`: other harnesses on this home take its presence for a lock.
            lock = FileLock(target.with_name(f"{target.name}.write"), timeout_s=self._lock_s)
            lock.__enter__()
        except LockTimeout:
            raise
        except OSError as error:
            problem = f"it cannot be locked: {(error.strerror or str(error)).lower()}"
            raise self._problem(problem) from error
        try:
            # They may hold a secret that is to go.
            sweep_unfinished(target)
            text = self.read_text()
            yield Draft(self, target, text, self.parse(text))
        finally:
            lock.__exit__(None, None, None)

    def patched(self, text: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
        """Return the text that holds ``new`` and keeps all it can of the former text.

        Raises:
            DocumentUnpatchable: there is none.
        """
        if self._is_json:
            return render_json(new)
        from dsh.state.documents.patching import patch_yaml  # only writers need it

        result = patch_yaml(text, old, new, self.parse)
        if result is None:
            raise DocumentUnpatchable(self.path, what=self.what)
        return result

    def failed(self, error: OSError) -> DocumentError:
        """Return what to tell when the file could not be written."""
        return self._problem(f"it cannot be written: {(error.strerror or str(error)).lower()}")

    def _examine(self, info: os.stat_result) -> None:
        if not stat.S_ISREG(info.st_mode):
            kind = "a folder" if stat.S_ISDIR(info.st_mode) else "no regular file"
            raise self._problem(f"it is {kind}")
        if self._secret and info.st_mode & 0o077:
            raise OpenToOthers(self.path, info.st_mode, what=self.what)

    def _decode(self, data: bytes) -> str:
        if len(data) > MAX_BYTES:
            raise self._problem(f"it is larger than {MAX_BYTES} bytes")
        try:
            return data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            place = error.start
        raise self._problem(f"byte {place} is not UTF-8")

    def _problem(self, problem: str) -> DocumentError:
        return DocumentError(self.path, problem, what=self.what)


class Draft:
    """A document under its lock.

    Attributes:
        text: The text as it is on disk.
        data: What it holds.
    """

    __slots__ = ("_file", "_target", "data", "text")

    def __init__(
        self, file: DocumentFile, target: Path, text: str, data: Mapping[str, Any]
    ) -> None:
        self._file, self._target = file, target
        self.text, self.data = text, data

    def write(self, data: Mapping[str, Any]) -> None:
        """Make the document hold ``data``, in one step; nothing is written when it does already.

        Raises:
            DocumentError: the file cannot be written, or not without harm to what it holds.
        """
        if not equal(self.data, data):
            self.write_text(self._file.patched(self.text, self.data, data), data)

    def write_text(self, text: str, data: Mapping[str, Any]) -> None:
        """Write a text that holds ``data``.

        Raises:
            DocumentError: the file cannot be written.
        """
        try:
            write_atomic(self._target, text.encode("utf-8"), mode=_FILE_MODE)
        except OSError as error:
            raise self._file.failed(error) from error
        self.text, self.data = text, data


def make_private_folder(folder: Path) -> None:
    """Make a folder and those above it, for their owner alone; existing ones stay as they are."""
    for each in (*reversed(folder.parents), folder):
        if not each.exists():
            each.mkdir(mode=_FOLDER_MODE, exist_ok=True)
