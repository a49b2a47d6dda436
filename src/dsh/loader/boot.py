"""Boot a composed profile: mount its rows, audit them, run until something ends it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any, Final

from dsh.base.values import value
from dsh.kernel import Context
from dsh.loader.audit import Problem, audit, boot_failed, describe, problems_of
from dsh.loader.compose import Composition
from dsh.loader.ending import RELEASE_S, bounded_end
from dsh.loader.environment import LaunchEnvironment
from dsh.loader.errors import BootFailed
from dsh.loader.host import AppExit, CmdlineArgs, CommandLine
from dsh.loader.journal import Journal
from dsh.loader.loader import Loader, folder_url
from dsh.loader.rows import Row
from dsh.loader.shutdown import ShutdownController
from dsh.loader.static import home_path_of

EXIT_FAILURE: Final = 1
EXIT_SIGTERM_ONESHOT: Final = 143


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
            left_out = await boot(root, launch, AppExit(controller.shutdown))
            journal.booted(left_out)
        except Exception as error:
            # A tree that goes because somebody asked for it has nothing to tell.
            if not controller.stopping:
                _tell_failure(error, journal)
                controller.fail(EXIT_FAILURE)
        return await controller.finished()


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
    _provide(root, launch, app_exit)
    await root.extend(base_url=folder_url(launch.composition.profile.folder)).plugin(Loader)
    loader = root.require(Loader)
    if launch.cwd is not None:
        loader.working_folder = partial(str, launch.cwd)
    rows, foreign = _with_ids(launch.composition)
    tolerated = frozenset() if launch.strict else foreign
    try:
        await loader.mount(rows, may_leave_out=lambda entry: entry.id in tolerated)
    except Exception as error:
        raise _mount_failure(error) from error
    await loader.quiesce()
    problems = audit(loader.entries())
    optional = [each for each in problems if each.entry and loader.may_leave_out(each.entry)]
    if len(optional) < len(problems):
        raise boot_failed([each for each in problems if each not in optional])
    for problem in optional:
        await loader.remove(problem.id)
    loader.announce_ready()
    return optional


def _provide(root: Context, launch: Launch, app_exit: AppExit) -> None:
    root.provide(LaunchEnvironment, launch.environment)
    root.provide(CommandLine, launch.cmdline)
    root.provide(CmdlineArgs, CmdlineArgs(launch.cmdline.argv))
    root.provide(AppExit, app_exit)
    root.provide("dsh_home_path", home_path_of(launch.home))


def _with_ids(composition: Composition) -> tuple[list[Row], frozenset[str]]:
    """Return the rows, each with an id, and the ids of those that third parties added."""
    rows = [{**row, "id": row.get("id") or secrets.token_hex(4)} for row in composition.rows]
    foreign = [row["id"] for n, row in enumerate(rows) if not composition.is_shipped(n)]
    return rows, frozenset(foreign)


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
