"""Groups of entries: a list of rows that changes as one transaction."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from dsh.kernel import INTERNAL_UPDATE, Context, Next, UpdateRequested
from dsh.loader.entry import Entry, stop_all
from dsh.loader.errors import TreeBusy
from dsh.loader.reconcile import Reconciliation, check_free
from dsh.loader.rows import Row, check_rows

if TYPE_CHECKING:
    from dsh.loader.loader import Loader
    from dsh.loader.tree import EntryTree


class EntryGroup:
    """The entries of one list of rows.

    Attributes:
        tree: The tree that the ids are unique in.
        ctx: Where the entries are mounted.
        owner: The entry whose plugin this group is; None for a tree's top without one.
        entries: In the order of the rows.
        rows: The entries' own rows; what files and dumps show.
        linked: Told when ``rows`` is another list, or is no longer empty.
    """

    def __init__(self, tree: EntryTree, ctx: Context, owner: Entry | None) -> None:
        self.tree = tree
        self.loader: Loader = tree.loader
        self.ctx = ctx
        self.owner = owner
        self.entries: list[Entry] = []
        self.rows: list[Row] = []
        self.linked: Callable[[], None] | None = None
        self._lock = asyncio.Lock()

    @property
    def label(self) -> str:
        """How messages call it."""
        return f'group "{self.owner.full_id}"' if self.owner is not None else "the tree"

    @property
    def going(self) -> bool:
        """Whether the group itself is on its way out, so that outcomes mean nothing."""
        return self.ctx.stop.aborted

    def all_entries(self) -> Iterator[Entry]:
        """Yield the entries and those of their groups, depth first."""
        for entry in self.entries:
            yield entry
            if entry.subgroup is not None:
                yield from entry.subgroup.all_entries()

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Keep others from changing the list meanwhile.

        Raises:
            TreeBusy: whoever changes it may be waiting for the code that asks.
        """
        if self._lock.locked() and self.loader.queue.is_inside():
            raise TreeBusy(self.label)
        async with self._lock:
            yield

    async def update(self, rows: Any) -> None:
        """Make the entries match a list of rows, or leave everything as it was.

        New rows start together, when all changes of others are done. Rows that vanish go only
        when all others are in place.

        Args:
            rows: The list itself becomes the group's; its rows become the entries'.

        Raises:
            PatchError: the list is not one of rows, or has an id twice.
            EntryError: one row failed; the former rows are back.
            ExceptionGroup: several did.
        """
        wanted = check_rows([] if rows is None else rows, self.label)
        for row in wanted:
            identify(row)
        async with self.held():
            await Reconciliation(self, wanted).run()

    async def insert(self, row: Row, position: int | None = None) -> Entry:
        """Add one row and mount it.

        Raises:
            EntryError: it cannot be mounted; it is not added then.
        """
        check_free(self, check_rows([row], self.label))
        entry = self.adopt(row)
        at = len(self.entries) if position is None else position
        self.commit([*self.entries[:at], entry, *self.entries[at:]])
        try:
            await entry.bring_up()
        except BaseException:
            self.drop(entry)
            raise
        return entry

    async def sync(self) -> None:
        """Mount or unmount entries as their rows say now.

        Raises:
            EntryError: an entry failed to mount.
            ExceptionGroup: several did.
        """
        async with self.held():
            outcomes = await asyncio.gather(
                *[entry.sync() for entry in self.entries], return_exceptions=True
            )
        raise_failures(self.label, [each for each in outcomes if isinstance(each, BaseException)])

    async def release(self) -> None:
        """Unmount entries that are not to run any more, before anything else is changed.

        Raises:
            EntryError: one cannot be decided on or waited for.
            ExceptionGroup: several cannot.
        """
        async with self.held():
            outcomes = await asyncio.gather(
                *[entry.release() for entry in self.entries], return_exceptions=True
            )
        raise_failures(self.label, [each for each in outcomes if isinstance(each, BaseException)])

    async def stop(self) -> None:
        """Unmount all entries."""
        await stop_all(self.entries)

    def adopt(self, row: Row) -> Entry:
        """Make an entry for a row, known to the tree and not yet in the list."""
        identify(row)
        entry = Entry(self, row)
        self.tree.store[entry.id] = entry
        return entry

    def drop(self, entry: Entry) -> None:
        """Take an entry that does not run out of the list and the tree."""
        self.forget(entry)
        if entry in self.entries:
            self.commit([each for each in self.entries if each is not entry])

    def forget(self, entry: Entry) -> None:
        """Take an entry that does not run out of the tree."""
        if self.tree.store.get(entry.id) is entry:
            del self.tree.store[entry.id]
        entry.announce(entry.options, active=False)

    def commit(self, entries: list[Entry], rows: list[Row] | None = None) -> None:
        """Set the list of entries, and make the list of rows theirs.

        Args:
            entries: In their order.
            rows: The list to use; the one there was when None.
        """
        self.entries = entries
        self.rows = self.rows if rows is None else rows
        self.rows[:] = [entry.options for entry in entries]
        self.relink()

    def relink(self) -> None:
        """Let the owner's row and fiber hold this very list of rows."""
        if self.linked is not None:
            self.linked()


class Carrier:
    """A plugin whose config holds rows: expressions in it belong to them."""


class GroupPlugin(Carrier):
    """Builtin ``cordis:group``: its config is a list of rows, mounted below it."""

    name = "group"

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    async def apply(self, ctx: Context, config: Any) -> None:
        """Mount the rows; a new config changes them without a restart."""
        owner = ctx.fiber.entry if isinstance(ctx.fiber.entry, Entry) else None
        tree = owner.tree if owner is not None else self._loader.new_tree(ctx)
        group = EntryGroup(tree, ctx, owner)
        group.linked = lambda: _link(group)
        if owner is not None:
            owner.subgroup = group

        async def take_live(request: UpdateRequested, next: Next[Any]) -> None:
            try:
                await self._loader.queue.run("group", lambda: group.update(request.config))
            except BaseException:
                group.relink()
                raise

        ctx.on(INTERNAL_UPDATE, take_live)
        ctx.defer(lambda: forget_group(group), "loader.group")
        await group.update(config)


def _link(group: EntryGroup) -> None:
    fiber, owner, rows = group.ctx.fiber, group.owner, group.rows
    if not rows and fiber.raw_config is None:
        return
    fiber.raw_config = fiber.config = rows
    if owner is not None:
        owner.options["config"] = rows


def forget_group(group: EntryGroup) -> None:
    """Take all entries of a group out of the tree, after they were unmounted."""
    for entry in list(group.all_entries()):
        entry.group.forget(entry)
    owner = group.owner
    if owner is not None and owner.subgroup is group:
        owner.subgroup = owner.subtree = None


def identify(row: Row) -> None:
    """Give a row an id if it has none: such a row is new on every reading."""
    if row.get("id") is None:
        row["id"] = secrets.token_hex(4)


def raise_failures(label: str, failures: list[BaseException]) -> None:
    """Raise one failure as it is, several as a group.

    Raises:
        EntryError: the only one.
        ExceptionGroup: all of them.
    """
    stray = next((each for each in failures if not isinstance(each, Exception)), None)
    if stray is not None:
        raise stray
    errors = [each for each in failures if isinstance(each, Exception)]
    if errors:
        raise errors[0] if len(errors) == 1 else ExceptionGroup(label, errors)
