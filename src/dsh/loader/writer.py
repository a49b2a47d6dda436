"""Writing a tree's file: soon, as one step, one write at a time, and for sure before the end."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from dsh.base.files import write_atomic
from dsh.kernel import Context
from dsh.loader.errors import ConfigFileError, ConfigReadOnly, LoaderError

DEBOUNCE_S: Final = 0.05
RETRIES: Final = 10
RETRY_S: Final = 0.05
_TRANSIENT: Final = (errno.EACCES, errno.EBUSY, errno.EPERM)


class ConfigChanged(LoaderError):
    """A change of rows is not saved, because the file holds something else by now."""

    code = "CONFIG_CHANGED"

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path} was changed by another program; the change of its rows is not saved there"
        )
        self.path = path


class FileWriter:
    """Writes what a function produces, whenever it is asked to, at most one at a time.

    Args:
        ctx: Its plugin owns the writing; its unload waits for the last write.
        path: The file; a link is followed.
        produce: Returns the new text, or None when there is nothing to write.
        written: Told the text that is in the file now.
        known: Returns the text that the file should still have.
        lock: Held while it is written; whoever reads the file holds it until what was read counts.
    """

    def __init__(
        self,
        ctx: Context,
        path: Path,
        produce: Callable[[], str | None],
        written: Callable[[str], None],
        known: Callable[[], str],
        lock: asyncio.Lock,
    ) -> None:
        self._ctx = ctx
        self._path = path
        self._produce = produce
        self._written = written
        self._known = known
        self._lock = lock
        self._due = False
        self._task: asyncio.Task[None] | None = None
        self._told = False
        self._failure: Exception | None = None

    def schedule(self) -> None:
        """Write soon; several calls make one write."""
        self._due = True
        if self._task is None or self._task.done():
            self._task = self._ctx.fiber.own_task(self._run(), f"save {self._path}", cancel=False)

    def close(self) -> None:
        """Tell of a last write that failed.

        Raises:
            ConfigFileError: what was to be saved is not.
        """
        if self._failure is not None:
            raise self._failure

    async def _run(self) -> None:
        while self._due:
            with suppress(TimeoutError):
                async with asyncio.timeout(DEBOUNCE_S):
                    await self._ctx.stop.wait()
            self._due = False
            try:
                async with self._lock:
                    await self._save()
                self._failure = None
            except ConfigReadOnly as error:
                self._tell_once(error)
            except Exception as error:
                self._failure = error
                if not self._ctx.stop.aborted:
                    self._ctx.report(error, label=f"save {self._path}")

    async def _save(self) -> None:
        text = self._produce()
        if text is None:
            return
        path = self._path.resolve()
        if await asyncio.to_thread(is_read_only, path):
            raise ConfigReadOnly(str(self._path))
        if await asyncio.to_thread(_differs, path, self._known()):
            raise ConfigChanged(str(self._path))
        await self._write(path, text.encode())
        self._written(text)

    async def _write(self, path: Path, data: bytes) -> None:
        for left in range(RETRIES, -1, -1):
            try:
                await asyncio.to_thread(write_atomic, path, data)
            except OSError as error:
                if error.errno not in _TRANSIENT or not left:
                    problem = (error.strerror or str(error)).lower()
                    raise ConfigFileError("write", str(self._path), problem) from error
                await asyncio.sleep(RETRY_S)
            else:
                return

    def _tell_once(self, error: Exception) -> None:
        if not self._told:
            self._told = True
            self._ctx.report(error, label=f"save {self._path}")


def is_read_only(path: Path) -> bool:
    """Tell whether a file is protected against writing, or its folder is.

    Permission bits count even for a user that they do not bind.
    """
    try:
        modes = [path.stat().st_mode, path.parent.stat().st_mode]
    except OSError:
        return False
    bound = not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK))
    return bound or not all(mode & 0o222 for mode in modes)


def _differs(path: Path, text: str) -> bool:
    try:
        return path.read_bytes().decode("utf-8-sig") != text
    except FileNotFoundError:
        return False
    except (OSError, UnicodeDecodeError):
        return True
