"""Bringing an entry back to what it was before a change that failed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from dsh.kernel import Fiber, FiberState
from dsh.loader.errors import EntryError
from dsh.loader.expr import detach
from dsh.loader.rows import Row, same

if TYPE_CHECKING:
    from dsh.loader.entry import Entry
    from dsh.loader.group import EntryGroup


class Snapshot(NamedTuple):
    """What an entry was before a change, for taking it back."""

    options: Row
    group: EntryGroup
    plugin: Any
    fiber: Fiber | None
    raw_config: Any
    failed: bool


def take_snapshot(entry: Entry) -> Snapshot:
    """Return what `bring_back` needs to have the entry as it is now."""
    options, fiber = dict(entry.options), entry.fiber if entry.running else None
    if _has_rows(entry) and "config" in options:
        # The rows below are changed in place.
        options["config"] = detach(options["config"])
    raw = fiber.raw_config if fiber is not None else None
    failed = fiber is not None and fiber.state is FiberState.FAILED
    return Snapshot(options, entry.group, entry.plugin, fiber, raw, failed)


async def bring_back(entry: Entry, before: Snapshot, cause: Exception | None = None) -> None:
    """Bring back what was before a change: the same fiber where it still lives.

    Raises:
        EntryError: that fails, too; has both causes.
    """
    tried = dict(entry.options)
    entry.assign(before.options)
    entry.group = before.group
    try:
        await _restore(entry, before)
    except Exception as error:
        # What could not run before does not run now.
        if before.failed and entry.running:
            return
        causes = [each for each in (cause, error) if each is not None]
        both = ExceptionGroup("the change and its rollback failed", causes)
        raise EntryError("rollback", entry.full_id, entry.name, both) from both
    finally:
        entry.announce(tried)


async def _restore(entry: Entry, before: Snapshot) -> None:
    former = before.fiber
    if former is None:
        await entry.stop()
        return
    if entry.fiber is not former or former.uid is None:
        await entry.stop()
        entry.mount(before.plugin)
        await entry.settle()
        return
    await entry.release()
    entry.place()
    group, config = entry.subgroup, entry.options.get("config")
    revive = former.state is FiberState.FAILED and not before.failed
    if group is not None and _has_rows(entry):
        if same(group.rows, config):
            group.relink()
        else:
            await entry.give(config)
    elif revive or former.raw_config is not before.raw_config:
        await entry.give(before.raw_config)
    else:
        await entry.settle_transition()
    if entry.subgroup is not None:
        await entry.subgroup.sync()


def _has_rows(entry: Entry) -> bool:
    """Whether the config of a mounted entry is its rows, and not a file's name."""
    return entry.subgroup is not None and entry.subtree is None
