"""Documents inside a running tree: where they are, and how they are followed and entered."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from dsh.base.errors import DshError
from dsh.loader.home import resolve_dsh_home

if TYPE_CHECKING:
    from dsh.kernel import Context
    from dsh.loader.hmr.service import Hmr

__all__ = ["enter_in_thread", "follow", "home_file"]

T = TypeVar("T")


def home_file(ctx: Context, path: str | None, home: str | None, name: str) -> Path:
    """Return a configured path, or the file of that name in the home folder.

    Args:
        ctx: Knows the home of this run, where it was started with one.
        path: Outranks the rest; a leading ``~`` means the user's folder.
        home: Outranks the home of this run.
        name: The file in the home folder.
    """
    if path is not None:
        return Path(os.path.abspath(Path(path).expanduser()))  # noqa: PTH100 - links stay
    here = ctx.get("dsh_home_path")
    if home is None and here is not None:
        return Path(here(name))
    return resolve_dsh_home(home) / name


def follow(
    ctx: Context, path: Path, refresh: Callable[[], Awaitable[object]], settle_s: float
) -> None:
    """Call ``refresh`` after changes of a file, while something follows files for the tree.

    It is called once as soon as that is so, because the file may have changed before.
    """

    async def settled() -> None:
        # An editor that writes in steps shall not be read between two of them.
        await asyncio.sleep(settle_s)
        await refresh()

    async def start(child: Context) -> None:
        hmr: Hmr = child.require("hmr")
        hmr.register_config(path, settled)
        try:
            await refresh()
        except DshError as error:
            child.report(error, label=f"reading {path.name} again")

    ctx.inject(["hmr"], start)


@asynccontextmanager
async def enter_in_thread(manager: AbstractContextManager[T]) -> AsyncIterator[T]:
    """Enter a context manager that blocks in a thread; leaving it must not block.

    A cancelled entry is waited for, and left at once.
    """
    entering = asyncio.ensure_future(asyncio.to_thread(manager.__enter__))
    try:
        value = await asyncio.shield(entering)
    except asyncio.CancelledError:

        def leave(entered: asyncio.Future[T]) -> None:
            if not entered.cancelled() and entered.exception() is None:
                manager.__exit__(None, None, None)

        entering.add_done_callback(leave)
        await asyncio.wait([entering])
        raise
    with _Entered(manager):
        yield value


class _Entered:
    """Leaves a manager that was entered elsewhere, telling it of an error."""

    def __init__(self, manager: AbstractContextManager[object]) -> None:
        self._manager = manager

    def __enter__(self) -> None:
        return None

    def __exit__(self, *error: object) -> bool | None:
        return self._manager.__exit__(*error)  # type: ignore[arg-type]
