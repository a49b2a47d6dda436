"""State of a plugin that outlives the reload of its code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from dsh.kernel import Context, Fiber
from dsh.loader.entry import Entry

T = TypeVar("T")

_KEPT: WeakKeyDictionary[Entry, dict[str, Any]] = WeakKeyDictionary()


def keep(ctx: Context, key: str, factory: Callable[[], T]) -> T:
    """Return the value that the plugin's row keeps under a key, made at the first call.

    It stays while the row is in the tree, across reloads, restarts and while it is switched off,
    and goes with the row; nobody closes it. An object of a class from an edited module keeps the
    old class: keep plain data. A plugin that no row mounted gets a new value each time.

    Args:
        ctx: The plugin's context.
        key: Which value; other rows have their own.
        factory: Makes the value.
    """
    entry = _entry_of(ctx.fiber)
    if entry is None:
        return factory()
    values = _KEPT.setdefault(entry, {})
    if key not in values:
        values[key] = factory()
    value: T = values[key]
    return value


def _entry_of(fiber: Fiber) -> Entry | None:
    here: Fiber | None = fiber
    while here is not None:
        if isinstance(here.entry, Entry):
            return here.entry
        here = here.parent_fiber
    return None
