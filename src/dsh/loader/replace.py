"""Other plugin objects for running rows, as one transaction: what hot reload is made of."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from dsh.kernel import FiberState
from dsh.loader.entry import Entry, stop_all
from dsh.loader.errors import EntryError

if TYPE_CHECKING:
    from dsh.loader.loader import Loader


class _Former(NamedTuple):
    """What an entry ran before."""

    entry: Entry
    plugin: Any
    raw_config: Any
    failed: bool


async def replace_plugins(loader: Loader, plugins: Mapping[Entry, Any]) -> None:
    """See `Loader.replace`."""
    running = [entry for entry in plugins if entry.running]
    for entry in running:
        entry.refuse_from_inside()
    former = [_former(entry) for entry in running]
    # Together: a provider's unload waits for its dependants, which may be among them.
    await asyncio.gather(*[entry.stop() for entry in reversed(running)], return_exceptions=True)
    try:
        for each in former:
            each.entry.mount(plugins[each.entry], each.raw_config)
    except EntryError as error:
        await stop_all(running)
        await _restore(former, error)
        raise
    since = asyncio.get_running_loop().time()
    for each in former:
        with suppress(EntryError):
            await each.entry.settle(since)


async def _restore(former: list[_Former], cause: EntryError) -> None:
    failures: list[Exception] = []
    for each in former:
        try:
            each.entry.mount(each.plugin, each.raw_config)
        except EntryError as error:
            failures.append(error)
    for each in former:
        try:
            await each.entry.settle()
        except EntryError as error:
            if not each.failed:
                failures.append(error)
    if failures:
        both = ExceptionGroup("the replacement and its rollback failed", [cause, *failures])
        raise EntryError("rollback", cause.id, cause.name, both) from both


def _former(entry: Entry) -> _Former:
    fiber = entry.fiber
    assert fiber is not None  # running
    return _Former(entry, entry.plugin, fiber.raw_config, fiber.state is FiberState.FAILED)
