"""Compose a profile, mount it without its app, look at the tree, dispose of it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from dsh.loader.compose import Composition, compose_profile
from dsh.loader.ending import RELEASE_S, bounded_end, force_exit
from dsh.loader.environment import LaunchEnvironment, load_environment, publish_user_values
from dsh.loader.home import display_home
from dsh.product.cli.overlays import launcher_overlays
from dsh.product.tree.redact import Redactor, redactor

if TYPE_CHECKING:
    from dsh.loader.trial import Trial

LIMIT_S: Final = 60.0
"""How long a profile may be looked at; a plugin that blocks the loop is the reason to end."""

T = TypeVar("T")


class Prepared(NamedTuple):
    """A profile that is composed and may be mounted."""

    home: Path
    composition: Composition
    environment: LaunchEnvironment
    warnings: tuple[str, ...]
    """What the user would hear at a start, without secrets."""
    redact: Redactor

    def short(self, text: str) -> str:
        """Return a text in which the home folder has its display name, and without secrets."""
        return self.redact(text.replace(str(self.home), display_home(self.home)))


def prepare(name: str, home: Path, patches: Sequence[str] = ()) -> Prepared:
    """Compose a profile and read the environment, as a start does.

    Raises:
        LoaderError: the profile or a file cannot be used.
    """
    warnings: list[str] = []
    environment = load_environment(home, Path.cwd(), warn=warnings.append)
    composition = compose_profile(name, home, patches=patches)
    if overlays := launcher_overlays(environment):
        composition = composition.with_overlays(overlays)
    redact = redactor(
        home,
        environment,
        profiles=[composition.profile.folder],
        files=[Path(each) for each in patches],
        rows=composition.rows,
    )
    told = (*composition.profile.notices, *composition.warnings, *warnings)
    return Prepared(home, composition, environment, tuple(map(redact, told)), redact)


def look_at(
    prepared: Prepared,
    look: Callable[[Trial], Awaitable[T]],
    *,
    stuck: Callable[[], None],
    limit_s: float = LIMIT_S,
) -> T:
    """Mount a prepared profile in an event loop of its own and return what a look found.

    The process's environment gets the user's own values, and the profile's plugins can be imported
    from then on, as at a start. What does not go in time is left behind.

    Args:
        prepared: What to mount.
        look: Gets the tree when it is settled.
        stuck: Called in a thread when a plugin blocks the loop; then the process ends with 1.
        limit_s: How long everything may take.

    Raises:
        LoaderError: the rows do not make a tree.
        KeyboardInterrupt: after the tree is disposed of.
    """
    publish_user_values(prepared.environment)
    site = prepared.composition.profile.folder / "site"
    if site.is_dir() and str(site) not in sys.path:
        sys.path.append(str(site))
    loop = asyncio.new_event_loop()

    def give_up(code: int) -> None:
        stuck()
        force_exit(code)

    with bounded_end(lambda: 1, limit_s, give_up):
        try:
            return _run(loop, _look(prepared, look))
        finally:
            loop.set_exception_handler(lambda *_: None)
            _close(loop)


async def _look(prepared: Prepared, look: Callable[[Trial], Awaitable[T]]) -> T:
    from dsh.loader.trial import mounted

    async with mounted(prepared.composition, prepared.home, prepared.environment) as trial:
        return await look(trial)


def _run(loop: asyncio.AbstractEventLoop, work: Awaitable[T]) -> T:
    """Run to the end, whatever plugins raise into the loop; an interrupt unmounts first."""
    main = loop.create_task(_own(work), name="look")
    interrupted: KeyboardInterrupt | None = None
    while True:
        try:
            return loop.run_until_complete(main)
        except (SystemExit, KeyboardInterrupt) as error:
            if main.done():
                raise
            if isinstance(error, KeyboardInterrupt):
                interrupted = error
                main.cancel()
        except asyncio.CancelledError:
            raise (interrupted or KeyboardInterrupt()) from None


async def _own(work: Awaitable[T]) -> T:
    return await work


def _close(loop: asyncio.AbstractEventLoop) -> None:
    """Close a loop; tasks that do not end are not waited for, nor are threads."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks, timeout=RELEASE_S))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
