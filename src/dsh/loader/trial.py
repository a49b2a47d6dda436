"""Mount a composed profile to look at it: everything comes up but the app itself.

The host gives the tree what it gives at a boot, without the command line: rows that wait for the
app's words stay pending, and nothing is told that the tree is ready. A row that fails stays in the
tree and says why; the others come up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dsh.base.values import record
from dsh.kernel import Context
from dsh.loader.audit import describe
from dsh.loader.boot import prepare
from dsh.loader.environment import LaunchEnvironment
from dsh.loader.host import AppExit
from dsh.loader.inspect import snapshot
from dsh.loader.loader import Loader
from dsh.loader.rows import Row
from dsh.loader.shutdown import GRACE_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsh.kernel import Fiber
    from dsh.loader.compose import Composition, Provenance

SETTLE_S: Final = 20.0
"""How long rows are waited for; what still loads then is shown as loading."""


@record(kw_only=True)
class Trial:
    """A tree that was mounted to be looked at."""

    root: Context
    loader: Loader
    provenance: dict[str, Provenance]
    """Where each top-level row comes from, by its id."""
    settled: bool
    """False when rows were still loading after the patience ran out."""
    heard: list[str] = field(default_factory=list)
    """Every contained error and warning, a line each; it may quote a config."""

    def remarks(self) -> list[str]:
        """Return what went wrong beside the rows' own failures."""
        told = [row["error"] for row in _all_rows(snapshot(self.loader)["rows"]) if row["error"]]
        return [each for each in self.heard if not any(text in each for text in told)]

    def snapshot(self, redact: Callable[[str], str] = str) -> dict[str, Any]:
        """Return the rows and services; see `dsh.loader.inspect.snapshot`."""
        return snapshot(self.loader, provenance=self.provenance, redact=redact)


@asynccontextmanager
async def mounted(
    composition: Composition,
    home: Path,
    environment: LaunchEnvironment,
    *,
    settle_s: float = SETTLE_S,
) -> AsyncIterator[Trial]:
    """Mount a profile while entered, and dispose of the tree afterwards.

    Args:
        composition: What to mount.
        home: The home folder.
        environment: What expressions and plugins see as their environment.
        settle_s: How long to wait for rows.

    Raises:
        PatchError: the rows do not make a tree.
    """
    root = Context()
    rows = composition.rows
    provenance = {
        row["id"]: origin for row, origin in zip(rows, composition.provenance, strict=True)
    }
    heard: list[str] = []
    with _overheard(root, heard):
        try:
            folder = composition.profile.folder
            loader = await prepare(root, folder, home, environment, AppExit(lambda _: None))
            settled = await _settle(loader, rows, settle_s)
            yield Trial(
                root=root,
                loader=loader,
                provenance=provenance,
                settled=settled,
                heard=heard,
            )
        finally:
            await _dispose(root)


def _all_rows(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for row in rows:
        yield row
        yield from _all_rows(row["rows"])


async def _settle(loader: Loader, rows: list[Row], settle_s: float) -> bool:
    async def mount() -> None:
        await loader.mount(rows, may_leave_out=lambda _: True)
        await loader.quiesce()

    work = asyncio.ensure_future(mount())
    try:
        done, _ = await asyncio.wait({work}, timeout=settle_s)
    finally:
        work.cancel()
    if done:
        work.result()
    else:
        await asyncio.wait({work})
    return bool(done)


async def _dispose(root: Context) -> None:
    """Dispose of the tree; a plugin that does not go is not waited for without end."""
    gone = asyncio.ensure_future(_gone(root))
    await asyncio.wait({gone}, timeout=GRACE_S)


async def _gone(root: Context) -> None:
    await root.dispose()


@contextmanager
def _overheard(root: Context, heard: list[str]) -> Iterator[None]:
    """Collect contained errors, warnings of dsh and deaths of tasks, instead of printing them."""

    def report(error: BaseException, owner: Fiber | None, label: str) -> None:
        where = "the host" if owner is None else f"plugin {owner.name!r}"
        heard.append(f"{where}: {label} failed: {describe(error)}")

    def handle(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        what = str(context.get("message", "the event loop complains"))
        known = isinstance(error, BaseException)
        heard.append(f"{what}: {describe(error)}" if known else what)  # type: ignore[arg-type]

    loop = asyncio.get_running_loop()
    former = loop.get_exception_handler()
    logger, handler = logging.getLogger("dsh"), _Collector(heard)
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    loop.set_exception_handler(handle)
    root.set_reporter(report)
    try:
        yield
    finally:
        loop.set_exception_handler(former)
        logger.removeHandler(handler)
        logger.propagate = propagate


class _Collector(logging.Handler):
    """Brings warnings of dsh's own modules to what is heard."""

    def __init__(self, heard: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._heard = heard

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._heard.append(record.getMessage())
        except Exception:
            self.handleError(record)
