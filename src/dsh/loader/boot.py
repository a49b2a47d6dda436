"""Boot a composed profile: mount its rows, audit them, run until something ends it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any, Final

from dsh.base.values import value
from dsh.kernel import Context, FiberState
from dsh.kernel.logger import Logger
from dsh.loader.audit import Problem, audit, boot_failed, describe, leave_out, problems_of
from dsh.loader.compose import Composition
from dsh.loader.ending import RELEASE_S, bounded_end
from dsh.loader.entry import Entry
from dsh.loader.environment import LaunchEnvironment
from dsh.loader.errors import BootFailed
from dsh.loader.host import AppExit, CmdlineArgs, CommandLine
from dsh.loader.journal import Journal
from dsh.loader.loader import Loader, folder_url
from dsh.loader.shutdown import ShutdownController
from dsh.loader.static import home_path_of

EXIT_FAILURE: Final = 1
EXIT_SIGTERM_ONESHOT: Final = 143
SLOW_S: Final = 10.0
"""After how long a start tells what it waits for."""


@value(kw_only=True)
class Launch:
    """Everything that one run of a profile needs."""

    composition: Composition
    home: Path
    environment: LaunchEnvironment
    cmdline: CommandLine = field(default_factory=CommandLine)
    cwd: str | None = None
    """What expressions call the working folder; the process's when None."""
    strict: bool = False
    """Rows of third parties that fail are fatal, too."""
    say: Callable[[str], None]
    """Writes one line for the user, on stderr."""
    debug: bool = False
    """Tracebacks go to the user as well as to the log."""
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    """Waits a number of seconds; what a slow start is told by."""

    def tolerated(self, composition: Composition) -> frozenset[str]:
        """Return the ids of the rows that may fail without failing the host."""
        if self.strict:
            return frozenset()
        rows = enumerate(composition.rows)
        return frozenset(str(row["id"]) for n, row in rows if not composition.is_shipped(n))


def run(launch: Launch) -> int:
    """Run a profile in an event loop of its own, until its app or a signal ends it.

    Returns:
        The process's exit code. A tree that does not go within the grace period ends the
        process from inside.
    """
    code = EXIT_FAILURE
    runner = asyncio.Runner()
    try:
        code = _run_to_end(runner.get_loop(), launch)
    finally:
        # The tree is gone and its failures are told; tasks found dead from here on are its remains.
        runner.get_loop().set_exception_handler(lambda *_: None)
        with bounded_end(lambda: code, RELEASE_S):
            runner.close()
    return code


def _run_to_end(loop: asyncio.AbstractEventLoop, launch: Launch) -> int:
    main = loop.create_task(host(launch), name="host")
    while True:
        try:
            return loop.run_until_complete(main)
        except SystemExit as error:
            # Raised in a plugin's task it stops the loop as well: go on, to undo the tree.
            if main.done():
                raise
            launch.say(f"a plugin raised {describe(error)}; only app_exit may end the host")


async def host(launch: Launch) -> int:
    """Boot a profile in the running loop, wait for its end, and return the exit code."""
    sigterm = EXIT_SIGTERM_ONESHOT if launch.composition.oneshot else 0
    controller = ShutdownController(sigterm=sigterm)
    journal = Journal(launch.home, launch.say, redact=launch.environment.redact, debug=launch.debug)
    root = Context()
    controller.attach(root)
    with controller.signals(), journal.attached(root), _fail_loud(controller, journal):
        try:
            # Mounted first, so that it goes last.
            place = await root.plugin(launcher)
            left_out = await boot(root, launch, AppExit(controller.shutdown))
            journal.booted(left_out)
            if launch.composition.files and not controller.stopping:
                # Not before: nothing of it is needed until the tree is up.
                from dsh.loader.live import UserLayers

                layers = UserLayers(
                    place.ctx,
                    root.require(Loader),
                    launch.composition,
                    journal,
                    left_out=left_out,
                    tolerated=launch.tolerated,
                    going=lambda: controller.stopping,
                    abandoned=partial(controller.shutdown, EXIT_FAILURE)
                    if launch.composition.oneshot
                    else None,
                )
                await layers.watch()
        except Exception as error:
            # A tree that goes because somebody asked for it has nothing to tell.
            if not controller.stopping:
                _tell_failure(error, journal)
                controller.fail(EXIT_FAILURE)
        return await controller.finished()


def launcher(_: Context) -> None:
    """Own what the launcher runs beside the tree."""


async def boot(root: Context, launch: Launch, app_exit: AppExit) -> list[Problem]:
    """Mount a profile's rows on a root and audit them.

    Args:
        root: A fresh root context; the caller disposes of it, also after a failure.
        launch: What to run.
        app_exit: The service by which the app ends the host.

    Returns:
        The rows of third parties that were left out.

    Raises:
        BootFailed: the tree cannot be mounted, or a row is not active.
    """
    root.provide(CommandLine, launch.cmdline)
    root.provide(CmdlineArgs, CmdlineArgs(launch.cmdline.argv))
    folder = launch.composition.profile.folder
    loader = await prepare(root, folder, launch.home, launch.environment, app_exit)
    if launch.cwd is not None:
        loader.working_folder = partial(str, launch.cwd)
    tolerated = launch.tolerated(launch.composition)
    loader.starting = True
    async with _slowness_told(loader, launch):
        try:
            await loader.mount(
                launch.composition.rows, may_leave_out=lambda entry: entry.id in tolerated
            )
        except Exception as error:
            raise _mount_failure(error) from error
        await loader.quiesce()
    problems = audit(loader.entries())
    fatal = [each for each in problems if each.entry and not loader.may_leave_out(each.entry)]
    if fatal:
        raise boot_failed(fatal)
    left_out = await leave_out(loader)
    for entry in loader.overdue():
        launch.say(f'the start goes on without row "{entry.id}" ({entry.name}), still loading')
    loader.announce_ready()
    return left_out


async def prepare(
    root: Context, folder: Path, home: Path, environment: LaunchEnvironment, app_exit: AppExit
) -> Loader:
    """Give a root what the host gives every tree, the command line aside, and mount the loader.

    Args:
        root: A fresh root context.
        folder: What relative names of the top rows are resolved against.
        home: The home folder.
        environment: The variables of this launch.
        app_exit: The service by which the app ends the host.
    """
    root.provide(LaunchEnvironment, environment)
    root.provide(AppExit, app_exit)
    root.provide("dsh_home_path", home_path_of(home))
    await root.plugin(Logger)
    await root.extend(base_url=folder_url(folder)).plugin(Loader)
    return root.require(Loader)


@asynccontextmanager
async def _slowness_told(loader: Loader, launch: Launch) -> AsyncIterator[None]:
    """Name the rows for which a start waits, each once, when it takes long."""

    async def watch() -> None:
        told: set[str] = set()
        while True:
            await launch.sleep(SLOW_S)
            for entry in loader.entries():
                if entry.id not in told and _is_loading(entry):
                    told.add(entry.id)
                    launch.say(
                        f'the start waits for row "{entry.id}" ({entry.name}), which is still '
                        f"loading after {SLOW_S:g} s"
                    )

    watching = asyncio.create_task(watch(), name="slow start")
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.wait([watching])


def _is_loading(entry: Entry) -> bool:
    """Tell whether a row's own plugin is being loaded; a group loads because its rows do."""
    if entry.subgroup is not None and entry.subgroup.entries:
        return False
    return entry.fiber is not None and entry.fiber.state is FiberState.LOADING


def _mount_failure(error: Exception) -> BootFailed:
    problems = problems_of(error)
    if problems:
        return boot_failed(problems)
    return BootFailed([f"plugin tree failed to load: {describe(error)}"], [error])


def _tell_failure(error: Exception, journal: Journal) -> None:
    if isinstance(error, BootFailed):
        journal.record(error.causes)
        for line in error.problems:
            journal.say(line)
    else:
        journal.record([error])
        journal.say(f"host preparation failed: {describe(error)}")


@contextmanager
def _fail_loud(controller: ShutdownController, journal: Journal) -> Iterator[None]:
    """End the host when a task fails that nobody waits for: the first such failure is told."""

    def handle(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, BaseException):
            journal.note(str(context.get("message", "the event loop complains")))
            return
        journal.record([error])
        orphan = "future" in context or "task" in context
        if orphan and not controller.stopping:
            journal.say(f"fatal load failure: {describe(error)}")
            controller.fail(EXIT_FAILURE)
        elif not orphan:
            journal.remark(f"{context.get('message', 'a callback failed')}: {describe(error)}")

    loop = asyncio.get_running_loop()
    former = loop.get_exception_handler()
    loop.set_exception_handler(handle)
    try:
        yield
    finally:
        loop.set_exception_handler(former)
