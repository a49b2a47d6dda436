"""One transaction over a list of rows: what it takes to get there, and back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from dsh.kernel import DuplicateService, live_frames
from dsh.loader.entry import Entry, stop_all
from dsh.loader.errors import EntryError, PatchError
from dsh.loader.expr import detach
from dsh.loader.moves import put_back, settle_in, shift, shift_back
from dsh.loader.rollback import Snapshot, bring_back, take_snapshot
from dsh.loader.rows import Row, holds_rows

if TYPE_CHECKING:
    from dsh.loader.group import EntryGroup

Work = Callable[[], Awaitable[None]]
Move = tuple[Entry, str | None]
"""An entry, and the id of the row whose group it is wanted in; None for the list itself."""


class Reconciliation:
    """Makes a group's entries match a list of rows, or puts everything back.

    Rows that another group below has now are moved first, so that they keep running. Then rows
    that stay are changed, then new ones are mounted, then those that vanish are unmounted. A
    service that goes from one row to another is thus free when it is provided anew; if one that
    vanishes still holds it, that one goes early.
    """

    def __init__(self, group: EntryGroup, rows: list[Row]) -> None:
        self._group = group
        self._rows = rows
        self._ids = {row["id"] for row in rows if row.get("id") is not None}
        self._before = list(group.entries)
        self._added: list[Entry] = []
        self._moved: list[Entry] = []
        self._undos: list[Work] = []

    async def run(self) -> None:
        """Do it.

        Raises:
            PatchError: an id belongs to a row elsewhere in the tree.
            TreeBusy: the running code is part of a row that would vanish, move or change.
            EntryError: one row failed; all is as before.
            ExceptionGroup: several did.
        """
        group, moves = self._group, self.plan()
        self._refuse_from_inside(moves)
        failures = await self._place(moves)
        if not failures:
            failures = await self._change()
        if failures and not group.going:
            failures += await self._roll_back()
            raise failures[0] if len(failures) == 1 else ExceptionGroup(group.label, failures)
        vanished = [entry for entry in group.entries if entry.id not in self._ids]
        await stop_all(vanished)
        for entry in vanished:
            group.forget(entry)
        by_id = {entry.id: entry for entry in group.entries}
        group.commit([by_id[row["id"]] for row in self._rows if row["id"] in by_id], self._rows)

    def plan(self) -> list[Move]:
        """Return the entries that are in another group than the rows want, outer ones first.

        Raises:
            PatchError: an id belongs to a row elsewhere in the tree.
        """
        store = self._group.tree.store
        if not store:
            return []
        moves: list[Move] = []
        for row, parent in walk_rows(self._rows):
            entry = store.get(row.get("id", ""))
            if entry is None:
                continue
            if not self._is_inside(entry):
                raise _id_taken(entry)
            owner = entry.group.owner.id if entry.group is not self._group else None  # type: ignore[union-attr]
            if owner != parent:
                moves.append((entry, parent))
        return moves

    def _refuse_from_inside(self, moves: list[Move]) -> None:
        """Refuse before anything is changed what would wait for the code that asks for it."""
        if next(live_frames(), None) is None:
            return
        rows = {row["id"]: row for row in self._rows}
        changing = [each for each in self._before if each.differs(rows.get(each.id, {}))]
        for entry in (*changing, *(entry for entry, _ in moves)):
            entry.refuse_from_inside()

    def _is_inside(self, entry: Entry) -> bool:
        """Whether an entry is in the group or below it."""
        group: EntryGroup | None = entry.group
        while group is not None:
            if group is self._group:
                return True
            group = group.owner.group if group.owner is not None else None
        return False

    async def _place(self, moves: list[Move]) -> list[Exception]:
        """Bring entries into the groups they are wanted in, or out of the way of new ones.

        Nothing is started for it: what is in the way of that may be about to go.
        """
        for entry, parent in moves:
            target = self._target(parent)
            source, position, ran = entry.group, entry.group.entries.index(entry), entry.running
            if target is not None:
                try:
                    shift(entry, target, len(target.entries))
                except EntryError as error:
                    if not _is_taken(error):
                        return [error]
                else:
                    self._undos.append(partial(shift_back, entry, source, position, ran))
                    self._moved.append(entry)
                    continue
            before = take_snapshot(entry)
            await entry.stop()
            source.drop(entry)
            self._undos.append(partial(put_back, entry, before, position))
        return []

    def _target(self, parent: str | None) -> EntryGroup | None:
        """Return the group of a row's id, if it is mounted and stays so."""
        if parent is None:
            return self._group
        owner = self._group.tree.store.get(parent)
        if owner is None or owner.subgroup is None or not owner.running:
            return None
        row = next((row for row, _ in walk_rows(self._rows) if row.get("id") == parent), None)
        stays = row is not None and not owner.differs(row) & {"name", "inject", "group"}
        return owner.subgroup if stays else None

    async def _change(self) -> list[Exception]:
        group = self._group
        known = {entry.id: entry for entry in group.entries}
        self._added = [group.adopt(row) for row in self._rows if row["id"] not in known]
        group.entries = [*group.entries, *self._added]
        prepared, failures = self._prepare()
        if failures:
            return failures
        changes: list[Work] = []
        for row in self._rows:
            entry = known.get(row["id"])
            if entry is not None and entry.differs(row):
                self._undos.append(partial(_restore, entry, take_snapshot(entry)))
                changes.append(partial(_update, entry, row))
        failures = await self._each(changes)
        failures = failures or await self._each([partial(settle_in, each) for each in self._moved])
        return failures or await self._mount(prepared)

    def _prepare(self) -> tuple[list[tuple[Entry, Any]], list[Exception]]:
        """Import what new rows name, before anything is changed."""
        prepared: list[tuple[Entry, Any]] = []
        failures: list[Exception] = []
        for entry in self._added:
            try:
                prepared.append((entry, entry.prepare()))
            except EntryError as error:
                self._failed(entry, error, failures)
        return prepared, failures

    async def _mount(self, prepared: list[tuple[Entry, Any]]) -> list[Exception]:
        """Mount new rows together; those of third parties may stay out."""
        failures: list[Exception] = []
        started: list[Entry] = []
        again: list[Entry] = []
        for entry, plugin in prepared:
            if plugin is None:
                continue
            try:
                entry.mount(plugin)
                started.append(entry)
            except EntryError as error:
                self._failed(entry, error, failures)
        since = asyncio.get_running_loop().time()
        for entry in started:
            try:
                await entry.settle(since)
            except EntryError as error:
                if _is_taken(error) and self._vanishing_holders(error):
                    await stop_all([entry])
                    again.append(entry)
                else:
                    self._failed(entry, error, failures)
        if again and not failures:
            await self._retire_vanishing()
            for entry in again:
                try:
                    await entry.bring_up()
                except EntryError as error:
                    self._failed(entry, error, failures)
        return failures

    def _failed(self, entry: Entry, error: EntryError, failures: list[Exception]) -> None:
        if self._group.loader.may_leave_out(entry):
            entry.left_out = error
        else:
            failures.append(error)

    async def _each(self, works: Sequence[Work]) -> list[Exception]:
        """Do changes of several entries together, and return what failed.

        One that fails because another still holds its service is tried again after the others.
        """
        failed, taken = await _together(works)
        if taken and not failed and all(error.stage != "rollback" for _, error in taken):
            if any(self._vanishing_holders(error) for _, error in taken):
                await self._retire_vanishing()
            failed += await _one_by_one([work for work, _ in taken])
        else:
            failed += [error for _, error in taken]
        return failed

    def _vanishing(self) -> list[Entry]:
        group = self._group
        return [each for each in group.entries if each.id not in self._ids and each.running]

    def _vanishing_holders(self, error: EntryError) -> bool:
        """Whether a row that vanishes provides the service that was taken."""
        vanishing = {entry.fiber for entry in self._vanishing()}
        services = self._group.ctx.fiber.kernel.services
        for cause in _duplicates(error):
            for binding in services.scopes_of(cause.service):
                fiber = binding.owner
                while fiber is not None:
                    if fiber in vanishing:
                        return True
                    fiber = fiber.parent_fiber  # type: ignore[assignment]  # None above the root
        return False

    async def _retire_vanishing(self) -> None:
        for entry in reversed(self._vanishing()):
            self._undos.append(partial(_restore, entry, take_snapshot(entry)))
            await entry.stop()

    async def _roll_back(self) -> list[Exception]:
        """Undo what was done, last first; returns what could not be undone."""
        group = self._group
        await stop_all(self._added)
        for entry in reversed(self._added):
            group.forget(entry)
        added = set(self._added)
        group.entries = [each for each in group.entries if each not in added]
        failures: list[Exception] = []
        taken: list[Work] = []
        for undo in reversed(self._undos):
            failed, conflicts = await _together([undo])
            failures += failed
            taken += [work for work, _ in conflicts]
        failures += await _one_by_one(taken)
        group.commit(self._before)
        return failures


def walk_rows(rows: list[Row]) -> Iterator[tuple[Row, str | None]]:
    """Yield all rows with the id of the group's row around each, outer ones first."""
    level: list[tuple[list[Row], str | None]] = [(rows, None)]
    while level:
        below: list[tuple[list[Row], str | None]] = []
        for inner, parent in level:
            for row in inner:
                yield row, parent
                if _holds_rows(row):
                    below.append((row["config"], row.get("id")))
        level = below


def check_free(group: EntryGroup, rows: list[Row]) -> None:
    """Refuse new rows whose ids other rows of the tree have.

    Raises:
        PatchError: an id is taken.
    """
    for row, _ in walk_rows(rows):
        if (entry := group.tree.store.get(row.get("id", ""))) is not None:
            raise _id_taken(entry)


async def _update(entry: Entry, row: Row) -> None:
    # A group's list becomes that of its entries; if it fails and is tried again, it must be as new.
    await entry.update({**row, "config": detach(row["config"])} if _holds_rows(row) else row)


async def _restore(entry: Entry, before: Snapshot) -> None:
    # Where it is by then: a second try may come after moves were undone.
    await bring_back(entry, before._replace(group=entry.group))


async def _together(
    works: Sequence[Work],
) -> tuple[list[Exception], list[tuple[Work, EntryError]]]:
    """Do all; returns failures, and apart from them those for want of a free service name."""
    if not works:
        return [], []
    outcomes = await asyncio.gather(*[work() for work in works], return_exceptions=True)
    failed: list[Exception] = []
    taken: list[tuple[Work, EntryError]] = []
    for work, outcome in zip(works, outcomes, strict=True):
        if isinstance(outcome, EntryError) and _is_taken(outcome):
            taken.append((work, outcome))
        elif isinstance(outcome, Exception):
            failed.append(outcome)
        elif outcome is not None:
            raise outcome
    return failed, taken


async def _one_by_one(works: Sequence[Work]) -> list[Exception]:
    failures: list[Exception] = []
    for work in works:
        failed, taken = await _together([work])
        failures += [*failed, *(error for _, error in taken)]
    return failures


def _id_taken(entry: Entry) -> PatchError:
    where = entry.group.label
    return PatchError(f'duplicate row id "{entry.full_id}": {where} has a row of this id')


def _is_taken(error: EntryError) -> bool:
    return next(_duplicates(error), None) is not None


def _duplicates(error: BaseException | None) -> Iterator[DuplicateService]:
    """Yield the refusals of a service name among the causes of a failure."""
    if isinstance(error, DuplicateService):
        yield error
    elif isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _duplicates(each)
    elif error is not None and error.__cause__ is not error:
        yield from _duplicates(error.__cause__)


def _holds_rows(row: Row) -> bool:
    """Whether a row's config is a list of rows."""
    return holds_rows(row) and isinstance(row.get("config"), list)
