"""Entries that change places: from group to group, and back when that fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsh.loader.errors import PatchError
from dsh.loader.rollback import Snapshot, bring_back
from dsh.loader.rows import Row

if TYPE_CHECKING:
    from dsh.loader.entry import Entry
    from dsh.loader.group import EntryGroup


async def move(entry: Entry, options: Row, target: EntryGroup, position: int | None) -> None:
    """Move an entry, which keeps running where nothing in its row means something else there.

    Args:
        entry: Its own group is held by the caller.
        options: The row that it has from then on.
        target: The group it goes to, which may be its own.
        position: Where in it; the end when None.

    Raises:
        PatchError: it would be inside of itself, or its id is taken there.
        EntryError: it cannot be there; it is where it was.
    """
    inside: EntryGroup | None = target
    while inside is not None:
        if inside.owner is entry:
            raise PatchError(f'row "{entry.full_id}" cannot move into itself')
        inside = inside.owner.group if inside.owner is not None else None
    if target.tree is not entry.tree and entry.id in target.tree.store:
        raise PatchError(f'duplicate row id "{entry.id}" in {target.label}')
    at = len(target.entries) if position is None else position
    if target is entry.group:
        await _relocate(entry, options, target, at)
        return
    async with target.held():
        await _relocate(entry, options, target, at)


def shift(entry: Entry, target: EntryGroup, position: int) -> None:
    """Put an entry into another group of its tree, running or not.

    Raises:
        EntryError: a service inside cannot go to the scope it has there; nothing has changed.
    """
    source = entry.group
    entry.transfer(target)
    source.commit([each for each in source.entries if each is not entry])
    target.commit([*target.entries[:position], entry, *target.entries[position:]])


async def shift_back(entry: Entry, source: EntryGroup, position: int, ran: bool) -> None:
    """Undo a `shift`, and what was started or stopped for it.

    Raises:
        EntryError: it cannot be where it was.
    """
    if not ran:
        await entry.stop()
    source = _present(source)
    if entry.group is not source:
        shift(entry, source, position)
    await settle_in(entry)


async def settle_in(entry: Entry) -> None:
    """Start or stop an entry as its new place says, and wait for what the move led to.

    Raises:
        EntryError: it cannot run there.
    """
    await entry.sync()
    await entry.settle_transition()


async def _relocate(entry: Entry, options: Row, target: EntryGroup, position: int) -> None:
    """Move an entry to another place, with another version of its row; it keeps running.

    Raises:
        EntryError: it cannot be there; it is where it was.
    """
    source, before = entry.group, list(entry.group.entries)
    there = [each for each in target.entries if each is not entry]
    was = list(target.entries)
    _relist(entry, source, target)
    source.commit([each for each in before if each is not entry])
    target.commit([*there[:position], entry, *there[position:]])
    try:
        await entry.update(options, target)
    except BaseException:
        _relist(entry, target, source)
        target.commit(was)
        source.commit(before)
        raise


def _relist(entry: Entry, source: EntryGroup, target: EntryGroup) -> None:
    if source.tree is not target.tree:
        source.tree.store.pop(entry.id, None)
        target.tree.store[entry.id] = entry


async def put_back(entry: Entry, before: Snapshot, position: int) -> None:
    """Undo that an entry was taken out of its group.

    Raises:
        EntryError: it cannot be mounted again.
    """
    group = _present(before.group)
    group.tree.store[entry.id] = entry
    if entry not in group.entries:
        group.commit([*group.entries[:position], entry, *group.entries[position:]])
    await bring_back(entry, before._replace(group=group))


def _present(group: EntryGroup) -> EntryGroup:
    """Return what has become of a group whose row was mounted anew."""
    owner = group.owner
    if owner is None or group is group.tree.root:
        return group
    now = group.tree.store.get(owner.id)
    return group if now is None or now.subgroup is None else now.subgroup
