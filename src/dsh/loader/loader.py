"""The service ``loader``: keeps rows and fibers in step."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dsh.kernel import (
    INTERNAL_CONFIG,
    INTERNAL_PLUGIN,
    INTERNAL_UPDATE,
    ConfigResolving,
    Context,
    Fiber,
    FiberAnnounced,
    Next,
    Service,
    SyncNext,
    UpdateRequested,
)
from dsh.loader.entry import Entry
from dsh.loader.errors import EntryError, EntryMissing, LoaderError
from dsh.loader.expr import Expr, detach, holds_expr
from dsh.loader.fields import evaluate_field, evaluate_flag
from dsh.loader.group import Carrier, EntryGroup, GroupPlugin
from dsh.loader.include import IncludePlugin
from dsh.loader.loading import Loading
from dsh.loader.moves import move
from dsh.loader.patience import SETTLE_GRACE_S, START_GRACE_S
from dsh.loader.queue import ChangeQueue
from dsh.loader.realms import Realms
from dsh.loader.replace import replace_plugins
from dsh.loader.resolve import base_folder, resolve_plugin
from dsh.loader.rows import Row, check_rows
from dsh.loader.scope import scope_for
from dsh.loader.tree import EntryTree
from dsh.loader.writeback import WriteBack

if TYPE_CHECKING:
    from dsh.loader.file_tree import FileTree


class _Unset:
    """Stands for an argument that was left out, where None means something."""

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = _Unset()
"""Where a row stays where it is."""


class Loader(Service):
    """Mounts rows as plugins, below its own fiber, and changes them.

    Changes are transactions, and one waits for the other. Code that a change waits for, such as
    the body of a plugin, may change what is not being changed just then.

    Attributes:
        builtins: Plugins that rows name as ``cordis:<key>``.
        tree: The loader's own tree, without those of included files.
        watches: The trees of each followed file, and how each of them gets it followed.
        queue: The line that all changes of rows wait in, also those of included files.
        working_folder: What expressions call the working folder; the process's when None.
        externals: Names of the modules that were there before the loader; none is reloaded.
        patience_s: How long changes wait for a plugin to load or unload.
        starting: The host starts, and has more patience with rows that it cannot do without.
        restart: Called when one of them was edited; None where no host can start again.
    """

    name = "loader"

    def __init__(self, ctx: Context, config: Any = None) -> None:
        super().__init__(ctx, config)
        self.builtins: dict[str, Any] = {
            "group": GroupPlugin(self),
            "include": IncludePlugin(self),
        }
        self.queue = ChangeQueue(ctx)
        self.tree = EntryTree(self, ctx)
        self.watches: dict[str, dict[FileTree, Callable[[], object]]] = {}
        self.working_folder: Callable[[], str] | None = None
        self.externals = frozenset(sys.modules)
        self.restart: Callable[[], object] | None = None
        self.patience_s = SETTLE_GRACE_S
        self.starting = False
        self._mounting: Entry | None = None
        self._write_back = WriteBack(ctx)
        self._loading = Loading(self)
        self._tolerates: Callable[[Entry], bool] = lambda _: False
        self._ready = asyncio.Event()
        self.realms = Realms(ctx)
        ctx.on(INTERNAL_PLUGIN, self._on_plugin, everywhere=True)
        ctx.on(INTERNAL_CONFIG, self._on_config, everywhere=True)
        ctx.on(INTERNAL_UPDATE, self._on_update, everywhere=True, prepend=True)

    @property
    def group(self) -> EntryGroup:
        """The top of the tree."""
        return self.tree.root

    async def mount(
        self, rows: Sequence[Row], *, may_leave_out: Callable[[Entry], bool] | None = None
    ) -> None:
        """Make the tree match a list of rows, as one transaction.

        Args:
            rows: All top-level rows; they are copied.
            may_leave_out: Tells which rows may fail without failing the others, in this call and
                those that say nothing.

        Raises:
            PatchError: the rows do not make a tree.
            EntryError: one row failed; the tree is as before.
            ExceptionGroup: several did.
        """

        async def change() -> None:
            self._tolerates = may_leave_out or self._tolerates
            await self.group.update(detach(list(rows)))

        await self.queue.run("mount", change)

    async def create(
        self, options: Row, parent: str | None = None, position: int | None = None
    ) -> str:
        """Add a row and mount it; returns its id.

        Args:
            options: The row; it is copied.
            parent: Id of the group it goes into; the top when None.
            position: Where in the group; the end when None.

        Raises:
            LookupError: there is no such group.
            PatchError: it is no row, or its id is taken.
            EntryError: it cannot be mounted; it is not added then.
        """

        async def change() -> str:
            group = self._group_of(parent)
            group.tree.check(options)
            async with group.held():
                entry = await group.insert(detach(options), position)
            group.tree.save()
            return entry.id

        return await self.queue.run("create", change)

    async def update(
        self,
        id: str,
        options: Row,
        parent: str | _Unset | None = UNSET,
        position: int | None = None,
    ) -> None:
        """Change fields of a row, and its place; a field that is None is removed.

        A move does not restart the plugin, unless names in the row mean something else there.

        Args:
            id: The row.
            options: The fields that change; they are copied.
            parent: Id of the group that it moves to, None for the top; it stays when left out.
            position: Where in the group; as it is when None, the end after a move.

        Raises:
            LookupError: there is no such row or group.
            PatchError: a field has the wrong type, or the move leads into the row itself.
            EntryError: the row fails with them; it is as before then, in its place.
        """

        async def change() -> None:
            entry = self.resolve(id)
            source = entry.group
            target = source if isinstance(parent, _Unset) else self._group_of(parent)
            fields = {**entry.options, **detach(options), "id": entry.id}
            merged = {key: value for key, value in fields.items() if value is not None}
            check_rows([merged], source.label)
            target.tree.check(merged)
            async with source.held():
                if target is source and position is None:
                    await entry.update(merged)
                else:
                    await move(entry, merged, target, position)
            for tree in {source.tree, target.tree}:
                tree.save()

        await self.queue.run("update", change)

    async def remove(self, id: str) -> None:
        """Unmount a row and forget it.

        Raises:
            LookupError: there is no such row.
            TreeBusy: called by code that is part of its plugin.
        """

        async def change() -> None:
            entry = self.resolve(id)
            entry.refuse_from_inside()
            group = entry.group
            async with group.held():
                await entry.stop()
                group.drop(entry)
            group.tree.save()

        await self.queue.run("remove", change)

    async def replace(self, plugins: Mapping[Entry, Any]) -> None:
        """Give entries other plugin objects, with the same raw configs, as one transaction.

        The old fibers are gone before the new ones are mounted, in the same places. Entries that
        do not run are left alone. A body that fails leaves its row in the state FAILED.

        Raises:
            EntryError: a plugin cannot be mounted; all old ones are mounted again.
        """
        await self.queue.run("replace", lambda: replace_plugins(self, plugins))

    def entries(self) -> Iterator[Entry]:
        """Yield all entries, depth first, in the order of their rows."""
        return self.tree.entries()

    def resolve(self, id: str) -> Entry:
        """Return the entry of a row; ``outer:inner`` names one of an included file.

        Raises:
            EntryMissing: there is no such row.
        """
        return self.tree.resolve(id)

    def resolve_group(self, id: str) -> EntryGroup:
        """Return the rows below a group.

        Raises:
            EntryMissing: there is no such row.
            LoaderError: it is not a mounted group.
        """
        group = self.resolve(id).subgroup
        if group is None:
            raise LoaderError(f"entry {id} is not a group")
        return group

    def locate(self, fiber: Fiber) -> str | None:
        """Return the id of the row that a fiber belongs to, directly or through a parent."""
        here: Fiber | None = fiber
        while here is not None:
            if isinstance(here.entry, Entry):
                return here.entry.full_id
            here = here.parent_fiber
        return None

    def check(self) -> bool:
        """Hold back dependants that asked to wait until rows have loaded; see `quiesce`."""
        via = self._via_or_none()
        if via is None or not self.resolve_config().get("await"):
            return True
        return self._loading.may_start(via.fiber)

    async def quiesce(self) -> None:
        """Wait until no row is being loaded or unloaded, whatever came of it.

        What the calling code is part of does not count, nor do rows that take too long.
        """
        await self._loading.quiesce()

    async def wait(self) -> None:
        """Wait as `quiesce` does, then raise what failed.

        Raises:
            EntryError: one row is in the state FAILED.
            ExceptionGroup: several are.
        """
        await self.quiesce()
        failed = [
            EntryError("apply", entry.full_id, entry.name, entry.fiber.error)
            for entry in self.entries()
            if entry.fiber is not None and entry.fiber.error is not None and not entry.left_out
        ]
        if failed:
            raise failed[0] if len(failed) == 1 else ExceptionGroup("rows failed", failed)

    async def ready(self) -> None:
        """Wait until the host has found the whole tree in order.

        An app that does work of its own starts it after this. It never returns when the start
        failed: the tree is disposed of then, and whoever waits here with it.
        """
        await self._ready.wait()

    def announce_ready(self) -> None:
        """Let those that wait for `ready` go on."""
        self.starting = False
        self._ready.set()

    def import_(self, name: str, base_url: str | None) -> Any:
        """Return the plugin that a row names; see `resolve_plugin`."""
        return resolve_plugin(name, base_folder(base_url), self.builtins)

    def may_leave_out(self, entry: Entry) -> bool:
        """Tell whether a failing entry is reported and left out, rather than fatal."""
        owner = entry
        while owner.group.owner is not None:
            owner = owner.group.owner
        return self._tolerates(owner)

    def patience_for(self, entry: Entry) -> float:
        """Return for how many seconds a change waits for a row's plugin."""
        fatal = self.starting and not self.may_leave_out(entry)
        # A group ends its own wait when those of its rows have ended.
        return (START_GRACE_S if fatal else self.patience_s) * (2 if entry.subgroup else 1)

    def overdue(self) -> list[Entry]:
        """Return the rows that nothing waits for any more, though they are still in transition."""
        return [entry for entry in self.entries() if self._loading.is_overdue(entry)]

    def note_overdue(self, entry: Entry, fiber: Fiber, waited_s: float) -> None:
        """Report a row that takes too long, and wait for it no more until it has come to rest."""
        self._loading.note_overdue(entry, fiber, waited_s)

    def is_true(self, expr: Expr, entry: Entry, field: str) -> bool:
        """Evaluate a row's flag against the loader's own context."""
        return evaluate_flag(expr, scope_for(self.ctx, self.working_folder), entry.full_id, field)

    def new_tree(self, ctx: Context) -> EntryTree:
        """Return a tree for rows that are mounted apart from the loader's own."""
        return EntryTree(self, ctx)

    @contextmanager
    def mounting(self, entry: Entry) -> Iterator[None]:
        """Tie the fiber that is mounted inside to an entry."""
        outer, self._mounting = self._mounting, entry
        try:
            yield
        finally:
            self._mounting = outer

    def _group_of(self, parent: str | None) -> EntryGroup:
        return self.group if parent is None else self.resolve_group(parent)

    def _on_plugin(self, event: FiberAnnounced) -> None:
        entry, fiber = self._mounting, event.fiber
        if fiber.uid is None:
            if isinstance(fiber.entry, Entry):
                self._write_back.disposed(fiber.entry, fiber)
            return
        if entry is not None and fiber.parent is entry.ctx:
            self._mounting = None
            entry.declare(fiber)

    def _on_config(self, event: ConfigResolving, next: SyncNext[Any]) -> Any:
        raw = next()
        entry = event.fiber.entry
        if not isinstance(entry, Entry) or _is_carrier(event.fiber):
            return raw
        self._write_back.activating(entry, event.fiber)
        if not holds_expr(raw):
            return raw
        return evaluate_field(raw, scope_for(event.fiber.ctx, self.working_folder), entry.full_id)

    async def _on_update(self, event: UpdateRequested, next: Next[Any]) -> Any:
        entry, fiber = event.fiber.entry, event.fiber
        if not isinstance(entry, Entry) or entry.fiber is not fiber:
            return await next()
        if entry.applying:
            # What listeners do to the tree is part of this very change.
            with self.queue.joined():
                return await next()
        if event.no_save:
            entry.unsaved = fiber.raw_config
        result = await next()
        if not event.no_save:
            self._write_back.updated(entry, fiber)
        return result


def _is_carrier(fiber: Fiber) -> bool:
    """Tell whether a fiber's config holds rows, whose expressions are their own."""
    callback = fiber.runtime.callback if fiber.runtime is not None else None
    return isinstance(getattr(callback, "__self__", None), Carrier)


def folder_url(folder: Path) -> str:
    """Return the base URL of a tree whose relative names are in a folder."""
    return folder.absolute().as_uri() + "/"


__all__ = ["UNSET", "EntryMissing", "Loader", "folder_url"]
