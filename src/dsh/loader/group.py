"""Groups of entries: a list of rows that changes as one transaction."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dsh.kernel import INTERNAL_UPDATE, Context, Next, UpdateRequested
from dsh.loader.entry import Entry, stop_all
from dsh.loader.errors import EntryError
from dsh.loader.expr import detach
from dsh.loader.rows import Row, check_rows

if TYPE_CHECKING:
    from dsh.loader.loader import Loader


class EntryGroup:
    """The entries of one list of rows.

    Attributes:
        ctx: Where the entries are mounted.
        owner: The entry whose plugin this group is; None for the tree's top.
        entries: In the order of the rows.
    """

    def __init__(self, loader: Loader, ctx: Context, owner: Entry | None) -> None:
        self.loader = loader
        self.ctx = ctx
        self.owner = owner
        self.entries: list[Entry] = []

    def all_entries(self) -> Iterator[Entry]:
        """Yield the entries and those of their groups, depth first."""
        for entry in self.entries:
            yield entry
            if entry.subgroup is not None:
                yield from entry.subgroup.all_entries()

    async def update(self, rows: Any) -> None:
        """Make the entries match a list of rows, or leave everything as it was.

        New rows start together. Rows that vanish go only when all others are in place.

        Raises:
            PatchError: the list is not one of rows, or has an id twice.
            EntryError: one row failed; the former rows are back.
            ExceptionGroup: several did.
        """
        where = f'group "{self.owner.id}"' if self.owner is not None else "the tree"
        wanted = [_with_id(row) for row in check_rows([] if rows is None else rows, where)]
        known = {entry.id: entry for entry in self.entries}
        fresh = [row for row in wanted if row["id"] not in known]
        kept = [(known[row["id"]], row) for row in wanted if row["id"] in known]
        undo = [(entry, detach(entry.options)) for entry, _ in kept]
        added = [Entry(self.loader, self, row) for row in fresh]
        before, self.entries = self.entries, [*self.entries, *added]
        failures = [*await self._start(added), *await self._change(kept)]
        if failures and not self._going:
            await stop_all(added)
            self.entries = before
            failures += await self._change(undo)
            raise failures[0] if len(failures) == 1 else ExceptionGroup(where, failures)
        made = {entry.id: entry for entry in added}
        ids = {row["id"] for row in wanted}
        await stop_all([entry for entry in before if entry.id not in ids])
        self.entries = [made.get(row["id"]) or known[row["id"]] for row in wanted]

    async def sync(self) -> None:
        """Mount or unmount entries as their rows say now.

        Raises:
            EntryError: an entry failed to mount.
        """
        for entry in self.entries:
            await entry.sync()

    async def stop(self) -> None:
        """Unmount all entries."""
        await stop_all(self.entries)

    @property
    def _going(self) -> bool:
        """Whether the group itself is being disposed of, so that outcomes mean nothing."""
        return self.ctx.fiber.uid is None

    async def _start(self, added: list[Entry]) -> list[EntryError]:
        """Start new entries together; those of third parties may stay out."""
        failures: list[EntryError] = []
        started: list[Entry] = []
        for entry in added:
            try:
                entry.start()
                started.append(entry)
            except EntryError as error:
                self._failed(entry, error, failures)
        if failures:
            # No body has run yet; none has to be undone.
            return failures
        for entry in started:
            try:
                await entry.settle()
            except EntryError as error:
                self._failed(entry, error, failures)
        return failures

    def _failed(self, entry: Entry, error: EntryError, failures: list[EntryError]) -> None:
        if self.loader.may_leave_out(entry):
            entry.left_out = error
        else:
            failures.append(error)

    async def _change(self, pairs: list[tuple[Entry, Row]]) -> list[EntryError]:
        failures: list[EntryError] = []
        for entry, row in pairs:
            try:
                await entry.update(row)
            except EntryError as error:
                failures.append(error)
        return failures


class GroupPlugin:
    """Builtin ``cordis:group``: its config is a list of rows, mounted below it."""

    name = "group"

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    async def apply(self, ctx: Context, config: Any) -> None:
        """Mount the rows; a new config changes them without a restart."""
        entry = ctx.fiber.entry
        group = EntryGroup(self._loader, ctx, entry if isinstance(entry, Entry) else None)
        if group.owner is not None:
            group.owner.subgroup = group

        async def take_live(request: UpdateRequested, next: Next[Any]) -> None:
            await group.update(request.config)
            request.fiber.config = request.config

        ctx.on(INTERNAL_UPDATE, take_live)
        ctx.defer(lambda: _forget(group), "loader.group")
        await group.update(config)


def _forget(group: EntryGroup) -> None:
    if group.owner is not None and group.owner.subgroup is group:
        group.owner.subgroup = None


def _with_id(row: Row) -> Row:
    """Return a row of our own; one without an id is new on every reading."""
    fresh: Row = detach(row)
    fresh.setdefault("id", secrets.token_hex(4))
    return fresh
