"""The service ``loader``: keeps rows and fibers in step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dsh.base.names import snake
from dsh.kernel import (
    INTERNAL_CONFIG,
    INTERNAL_PLUGIN,
    ConfigResolving,
    Context,
    Fiber,
    FiberAnnounced,
    FiberState,
    Label,
    Service,
    SyncNext,
)
from dsh.loader.entry import Entry
from dsh.loader.errors import EntryError, LoaderError
from dsh.loader.expr import Expr
from dsh.loader.fields import evaluate_field, evaluate_flag
from dsh.loader.group import EntryGroup, GroupPlugin
from dsh.loader.resolve import base_folder, resolve_plugin
from dsh.loader.rows import Row
from dsh.loader.scope import scope_for

_MOST_ROUNDS = 1_000
_MOVING = (FiberState.LOADING, FiberState.UNLOADING)


class Loader(Service):
    """Mounts rows as plugins, below its own fiber, and changes them.

    Attributes:
        builtins: Plugins that rows name as ``cordis:<key>``.
        group: The top of the tree.
        working_folder: What expressions call the working folder; the process's when None.
    """

    name = "loader"

    def __init__(self, ctx: Context, config: Any = None) -> None:
        super().__init__(ctx, config)
        self.builtins: dict[str, Any] = {"group": GroupPlugin(self)}
        self.group = EntryGroup(self, ctx, None)
        self.working_folder: Callable[[], str] | None = None
        self._labels: dict[tuple[str, str], Label] = {}
        self._mounting: Entry | None = None
        self._tolerates: Callable[[Entry], bool] = lambda _: False
        self._ready = asyncio.Event()
        ctx.on(INTERNAL_PLUGIN, self._on_plugin, everywhere=True)
        ctx.on(INTERNAL_CONFIG, self._on_config, everywhere=True)

    async def mount(
        self, rows: Sequence[Row], *, may_leave_out: Callable[[Entry], bool] | None = None
    ) -> None:
        """Make the top of the tree match a list of rows, as one transaction.

        Args:
            rows: All top-level rows.
            may_leave_out: Tells which rows may fail without failing the others, in this call.

        Raises:
            PatchError: the rows do not make a tree.
            EntryError: one row failed; the tree is as before.
            ExceptionGroup: several did.
        """
        self._tolerates = may_leave_out or self._tolerates
        await self.group.update(list(rows))

    async def create(
        self, options: Row, parent: str | None = None, position: int | None = None
    ) -> str:
        """Add a row and mount it; returns its id.

        Args:
            options: The row.
            parent: Id of the group it goes into; the top when None.
            position: Where in the group; the end when None.

        Raises:
            EntryError: it cannot be mounted; it is not added then.
        """
        group = self.group if parent is None else self.resolve_group(parent)
        rows = [entry.options for entry in group.entries]
        rows.insert(len(rows) if position is None else position, options)
        known = {entry.id for entry in group.entries}
        await group.update(rows)
        return next(entry.id for entry in group.entries if entry.id not in known)

    async def update(self, id: str, options: Row) -> None:
        """Change fields of a row; a field that is None is removed.

        Raises:
            LookupError: there is no such row.
            EntryError: the row fails with them; it is as before then.
        """
        entry = self.resolve(id)
        merged = {**entry.options, **options, "id": entry.id}
        await entry.update({key: value for key, value in merged.items() if value is not None})

    async def remove(self, id: str) -> None:
        """Unmount a row and forget it.

        Raises:
            LookupError: there is no such row.
        """
        entry = self.resolve(id)
        await entry.stop()
        entry.group.entries.remove(entry)

    def entries(self) -> Iterator[Entry]:
        """Yield all entries, depth first, in the order of their rows."""
        return self.group.all_entries()

    def resolve(self, id: str) -> Entry:
        """Return the entry of a row.

        Raises:
            EntryMissing: there is no such row.
        """
        for entry in self.entries():
            if entry.id == id:
                return entry
        raise EntryMissing(id)

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
                return here.entry.id
            here = here.parent_fiber
        return None

    async def quiesce(self) -> None:
        """Wait until no row is being loaded or unloaded, whatever came of it."""
        # Bounded: a fiber whose driver died stays in between for ever.
        for _ in range(_MOST_ROUNDS):
            moving = [each for each in self.entries() if _is_moving(each)]
            if not moving:
                return
            for entry in moving:
                with suppress(EntryError):
                    await entry.settle()
            await asyncio.sleep(0)

    async def wait(self) -> None:
        """Wait as `quiesce` does, then raise what failed.

        Raises:
            EntryError: one row is in the state FAILED.
            ExceptionGroup: several are.
        """
        await self.quiesce()
        failed = [
            EntryError("apply", entry.id, entry.name, entry.fiber.error)
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

    def is_true(self, expr: Expr, entry: Entry, field: str) -> bool:
        """Evaluate a row's flag against the loader's own context."""
        return evaluate_flag(expr, scope_for(self.ctx, self.working_folder), entry.id, field)

    def shared_label(self, name: str, label: str) -> Label:
        """Return the scope of a service that all rows with this label share."""
        key = (snake(name), label)
        return self._labels.setdefault(key, Label(f"{key[0]}@{label}"))

    @contextmanager
    def mounting(self, entry: Entry) -> Iterator[None]:
        """Tie the fiber that is mounted inside to an entry."""
        outer, self._mounting = self._mounting, entry
        try:
            yield
        finally:
            self._mounting = outer

    def _on_plugin(self, event: FiberAnnounced) -> None:
        entry, fiber = self._mounting, event.fiber
        if entry is not None and fiber.uid is not None and fiber.parent is entry.ctx:
            self._mounting = None
            entry.declare(fiber)

    def _on_config(self, event: ConfigResolving, next: SyncNext[Any]) -> Any:
        raw = next()
        entry = event.fiber.entry
        if not isinstance(entry, Entry) or self._is_carrier(event.fiber):
            return raw
        return evaluate_field(raw, scope_for(event.fiber.ctx, self.working_folder), entry.id)

    def _is_carrier(self, fiber: Fiber) -> bool:
        """Tell whether a fiber's config holds rows, whose expressions are their own."""
        callback = fiber.runtime.callback if fiber.runtime is not None else None
        return isinstance(getattr(callback, "__self__", None), GroupPlugin)


class EntryMissing(LoaderError, LookupError):
    """No row of the tree has this id."""

    code = "ENTRY_MISSING"

    def __init__(self, id: str) -> None:
        super().__init__(f"cannot resolve entry {id}")
        self.id = id


def _is_moving(entry: Entry) -> bool:
    return entry.fiber is not None and entry.fiber.state in _MOVING


def folder_url(folder: Path) -> str:
    """Return the base URL of a tree whose relative names are in a folder."""
    return folder.absolute().as_uri() + "/"
