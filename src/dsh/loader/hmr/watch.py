"""Following whole folders by notifications of the operating system."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import aclosing
from pathlib import Path
from typing import Final

from dsh.loader.hmr.roots import Roots

_STEP_MS: Final = 20
"""How long nothing more must happen for changes to be told."""
_LOOK_MS: Final = 500
_RETRY_S: Final = 1.0
_GROUP_MS: Final = 200
"""How long changes that do not stop are collected."""


class FolderWatch:
    """Tells of files that come, change or go below the roots.

    Folders that are excluded are not even subscribed to: there may be very many of them.

    Attributes:
        armed: Set while changes are noticed.
    """

    def __init__(
        self,
        roots: Roots,
        on_files: Callable[[Iterable[str]], None],
        on_gap: Callable[[], None],
        on_error: Callable[[Exception], None],
        *,
        polling: bool = False,
    ) -> None:
        """Prepare to watch.

        Args:
            roots: What to watch.
            on_files: Gets files of which something was told.
            on_gap: Called when something may have been missed, while folders were subscribed to.
            on_error: Gets what the system refuses; watching goes on by looking all the time.
            polling: Look at files all the time, where notifications do not work.
        """
        self._roots = roots
        self._on_files = on_files
        self._on_gap = on_gap
        self._on_error = on_error
        self._polling = polling
        self.armed = asyncio.Event()

    async def run(self) -> None:
        """Watch until cancelled. What is there at the start is not told."""
        known: set[str] | None = None
        while True:
            folders = await asyncio.to_thread(lambda: list(self._roots.walk()))
            fresh = set(folders) - known if known is not None else set[str]()
            known = set(folders)
            try:
                if not folders:
                    await asyncio.sleep(_RETRY_S)
                    continue
                await self._until_new_folders(folders, fresh)
            except (OSError, RuntimeError) as error:
                await self._not_armed(error, folders)
            finally:
                self.armed.clear()

    async def _until_new_folders(self, folders: list[str], fresh: set[str]) -> None:
        # It costs a program start too much to import this for those who watch nothing.
        from watchfiles import Change, awatch

        changes = awatch(
            *folders,
            watch_filter=lambda _, path: self._roots.has(path),
            debounce=_GROUP_MS,
            step=_STEP_MS,
            stop_event=asyncio.Event(),
            recursive=False,
            force_polling=self._polling or None,
            rust_timeout=_LOOK_MS if self._polling else None,
            yield_on_timeout=self._polling,
            ignore_permission_denied=True,
        )
        async with aclosing(changes) as batches:
            # Runs when the first step below has subscribed.
            arrival = asyncio.get_running_loop().call_soon(self._arm, fresh)
            try:
                async for batch in batches:
                    if self._polling:
                        # The library compares times by the second when it polls.
                        self._on_gap()
                    paths = {path for _, path in batch}
                    inner = await asyncio.to_thread(_folders_of, paths)
                    self._on_files(sorted(paths - inner))
                    if any(change == Change.added and path in inner for change, path in batch):
                        return
            finally:
                arrival.cancel()

    def _arm(self, fresh: set[str]) -> None:
        self.armed.set()
        self._on_gap()
        for folder in sorted(fresh):
            self._on_files(_files_in(folder))

    async def _not_armed(self, error: Exception, folders: list[str]) -> None:
        """Go on as well as possible: a folder may have gone, or the system has no more watches."""
        gone = len(await asyncio.to_thread(_folders_of, folders)) < len(folders)
        if not gone:
            self._on_error(error)
        if not gone and not self._polling:
            self._polling = True
        else:
            await asyncio.sleep(_RETRY_S)


def _folders_of(paths: Iterable[str]) -> set[str]:
    return {path for path in paths if Path(path).is_dir()}


def _files_in(folder: str) -> list[str]:
    try:
        return sorted(str(each) for each in Path(folder).iterdir() if each.is_file())
    except OSError:
        return []
