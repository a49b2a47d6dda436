"""What plugins do to themselves goes into their rows: another config, and that they are gone."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from dsh.kernel import Context, Fiber, FiberState
from dsh.loader.entry import Entry
from dsh.loader.errors import ExprError


class WriteBack:
    """Keeps rows true to what their plugins ask for, and has their trees saved.

    What the loader itself does to a fiber is not written back, nor what happens to it because
    what is around it goes.
    """

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    def updated(self, entry: Entry, fiber: Fiber) -> None:
        """Take a config that a row's fiber was given, and runs with, as the row's."""
        if entry.fiber is not fiber:
            return
        raw: Any = fiber.raw_config
        if entry.options.get("config") is not raw:
            legacy = dict(entry.options)
            entry.options["config"] = raw
            if raw is None:
                del entry.options["config"]
            entry.announce(legacy)
        entry.tree.save()

    def activating(self, entry: Entry, fiber: Fiber) -> None:
        """Look whether a fiber that was given a config while it did not run, runs with it."""
        raw = fiber.raw_config
        known = raw is entry.options.get("config") or raw is entry.unsaved
        if entry.fiber is not fiber or entry.applying or known:
            return

        async def adopt() -> None:
            with suppress(Exception):
                await fiber
            if fiber.raw_config is raw and fiber.state is FiberState.ACTIVE:
                self.updated(entry, fiber)

        self._ctx.spawn(adopt(), f"loader: config of row {entry.full_id}")

    def disposed(self, entry: Entry, fiber: Fiber) -> None:
        """Switch off the row of a plugin that ended itself."""
        if entry.fiber is not fiber or _is_taken_down(fiber):
            return
        entry.fiber = None
        with suppress(ExprError):
            if entry.disabled:
                return
        legacy = dict(entry.options)
        entry.options["disabled"] = True
        entry.announce(legacy)
        entry.tree.save()


def _is_taken_down(fiber: Fiber) -> bool:
    """Whether a fiber goes with what is around it, or with its plugin."""
    above = fiber.parent_fiber
    if above is None or above.uid is None or above.stop.aborted:
        return True
    return fiber.runtime is not None and fiber.runtime.deleted
