"""Trees whose rows are in a file: read, patched, reconciled, and only then taken for good."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from dsh.base.signal import AbortedError
from dsh.kernel import Context, InactiveEffect, ServiceError
from dsh.loader.aliases import same_plugin
from dsh.loader.config_file import check_known, check_suffix, create_file, parse_rows
from dsh.loader.errors import ConfigFileError, ConfigFileMissing, PatchError
from dsh.loader.events import LOADER_CONFIG_UPDATE, TreeWriting
from dsh.loader.expr import detach
from dsh.loader.group import forget_group, identify
from dsh.loader.ownership import Overlay
from dsh.loader.patch import Patch, apply_patches
from dsh.loader.reconcile import walk_rows
from dsh.loader.render import edit_rows
from dsh.loader.rows import Row, same
from dsh.loader.tree import EntryTree
from dsh.loader.writer import FileWriter
from dsh.loader.yaml import read_text

if TYPE_CHECKING:
    from dsh.loader.entry import Entry
    from dsh.loader.loader import Loader

_log = logging.getLogger("dsh.loader")


class FileTree(EntryTree):
    """The rows of one file.

    Attributes:
        path: The file.
        text: What was read last and is mounted.
    """

    def __init__(self, loader: Loader, ctx: Context, owner: Entry | None, path: Path) -> None:
        super().__init__(loader, ctx, owner)
        self.path = path
        self.text = ""
        self._ctx = ctx
        self._data: list[Row] = []
        self._writing: list[Row] = []
        self._overlay = Overlay()
        self._patches: Sequence[Patch] = ()
        self._unnamed: set[str] = set()
        self._lock = asyncio.Lock()
        self._writer = FileWriter(
            ctx, path, self._produce, self._written, lambda: self.text, self._lock
        )
        check_suffix(path)
        if owner is not None:
            owner.subgroup, owner.subtree = self.root, self

    async def load(self, initial: Sequence[Row] | None, patches: Sequence[Patch]) -> None:
        """Read the file and mount its rows; a missing one is written first if that is wanted.

        Raises:
            ConfigFileMissing: there is no file, and no initial rows.
            ConfigFileError: the file cannot be used.
            EntryError: a row failed; none is mounted.
        """
        if initial is not None and not await asyncio.to_thread(self.path.exists):
            await asyncio.to_thread(create_file, self.path, initial)
        async with self._lock:
            await self._take(await self._read(), patches)

    async def refresh(self) -> None:
        """Read the file again and make the tree match, when it is this tree's turn.

        Raises:
            ConfigFileMissing: the file is gone; its rows go on.
            ConfigFileError: the file cannot be used; the former rows go on.
            EntryError: a row failed; the former rows go on.
        """

        async def change() -> None:
            async with self._lock:
                text = await self._read()
                if text != self.text:
                    await self._take(text, self._patches)

        try:
            await self.loader.queue.run(f"refresh {self.path}", change, stop=self._ctx.stop)
        except (AbortedError, InactiveEffect):
            if not self._ctx.stop.aborted:
                raise

    async def repatch(self, patches: Sequence[Patch]) -> None:
        """Apply other patches to what the file said last.

        Raises:
            PatchError: a patch cannot be used.
            EntryError: a row failed; the former patches hold.
        """
        patched = self._apply(self._data, patches)
        await self._reconcile(patched)
        self._overlay, self._patches = Overlay(self._data, patched), patches

    def follow(self, ctx: Context) -> None:
        """Take changes of the file for as long as a service follows files."""
        if ctx.get("hmr") is None:
            return
        key = str(self.path.resolve())
        watch = self.loader.watches.setdefault(key, {})
        watch[self] = lambda: ctx.require("hmr").register_config(
            self.path, lambda: self._refresh_all(key)
        )
        ctx.defer(lambda: self._unfollow(key))
        if len(watch) == 1:
            watch[self]()

    def check(self, row: Row) -> None:
        """Refuse a row that could not be read again.

        Raises:
            PatchError: it has a field that the loader does not read.
        """
        check_known([row])

    def save(self) -> None:
        """Write the file soon, if rows that are its own changed."""
        if not self.root.going:
            self._writer.schedule()

    def close(self) -> None:
        """Forget the entries; they have been unmounted, and the file is written.

        Raises:
            ConfigFileError: the last write failed.
        """
        forget_group(self.root)
        self._writer.close()

    async def _read(self) -> str:
        try:
            return await asyncio.to_thread(read_text, self.path)
        except FileNotFoundError as error:
            raise ConfigFileMissing(str(self.path)) from error

    async def _take(self, text: str, patches: Sequence[Patch]) -> None:
        data = parse_rows(text, self.path)
        unnamed = [row for row, _ in walk_rows(data) if row.get("id") is None]
        for row in unnamed:
            identify(row)
        patched = self._apply(data, patches)
        await self._reconcile(patched)
        self.text, self._data = text, data
        self._overlay, self._patches = Overlay(data, patched), patches
        self._unnamed = {row["id"] for row in unnamed}

    async def _reconcile(self, patched: list[Row]) -> None:
        try:
            await self.root.update(detach(patched))
        except PatchError as error:
            raise ConfigFileError("validate", str(self.path), str(error)) from error

    def _apply(self, data: Sequence[Row], patches: Sequence[Patch]) -> list[Row]:
        rows = apply_patches(
            data,
            patches,
            lambda text: _log.warning("%s: %s", self.path, text),
            same_name=same_plugin,
        )
        for row, _ in walk_rows(rows):
            identify(row)
        return rows

    def _produce(self) -> str | None:
        """Return the text that the file should have, or None when it has it."""
        rows = self._overlay.own_rows(self.root.rows, self._data)
        if same(rows, self._data):
            return None
        self._ctx.emit(LOADER_CONFIG_UPDATE, TreeWriting(self))
        self._writing = rows
        return edit_rows(self.text, self._data, rows, self._unnamed, self.path)

    def _written(self, text: str) -> None:
        self.text, self._data = text, self._writing

    async def _refresh_all(self, key: str) -> None:
        """Refresh every tree of this file: a path is followed only once."""
        failures: list[Exception] = []
        for tree in list(self.loader.watches.get(key, ())):
            try:
                await tree.refresh()
            except Exception as error:
                failures.append(error)
        if failures:
            raise failures[0] if len(failures) == 1 else ExceptionGroup(key, failures)

    def _unfollow(self, key: str) -> None:
        watch: dict[FileTree, Callable[[], object]] = self.loader.watches.get(key, {})
        first = next(iter(watch), None)
        watch.pop(self, None)
        if not watch:
            self.loader.watches.pop(key, None)
        elif first is self:
            # Its registration goes with it; so may the service, and then the others follow anew.
            with suppress(InactiveEffect, ServiceError):
                next(iter(watch.values()))()
