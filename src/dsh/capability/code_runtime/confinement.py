"""What a program may do to files: as much as a command in the shell, and never more."""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from dsh.base.deletion import delete_tree
from dsh.base.values import value
from dsh.capability.sandbox.service import SandboxPolicy, SandboxProvider
from dsh.capability.subprocess.service import FileGrants, SubprocessError, SubprocessRuntime

if TYPE_CHECKING:
    from dsh.kernel import Context
    from dsh.state.session.session import Session


_log = logging.getLogger("dsh.code_runtime")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class CannotConfine(SubprocessError):
    """A program would get more rights than it may have; it was not run."""

    code = "CANNOT_CONFINE"

    def __init__(self) -> None:
        super().__init__(
            "programs cannot be confined here: no sandbox is mounted and this system has no "
            "Landlock. mount the rows sandbox-policy and sandbox"
        )


@value
class Place:
    """How an interpreter is started."""

    argv: tuple[str, ...]
    folder: str
    grants: FileGrants | None = None
    runner: bool = False
    """``argv[0]`` is a sandbox runner, whose exit status stands for the interpreter's."""


@asynccontextmanager
async def private_folder(ctx: Context, session: Session | None) -> AsyncIterator[str]:
    """Make the folder that one run starts in; when left, it and all it holds are gone.

    Raises:
        OSError: it cannot be made.
    """
    folder = _make_folder(ctx, session)
    # Commands of the session may put something else in its place, so the name says nothing later.
    fd = os.open(folder, _FOLDER)
    try:
        yield folder
    finally:
        try:
            os.rmdir(folder)
        except OSError:
            await asyncio.to_thread(_remove, folder, fd)
        else:
            os.close(fd)


async def place_for(
    ctx: Context, argv: Sequence[str], folder: str, session: Session | None
) -> Place:
    """Say how to run ``argv`` in ``folder`` under the policy of a session.

    Without a policy a program may change its private folder and nothing else.

    Raises:
        CannotConfine: there is no policy, and nothing that could hold the program to its folder.
        SandboxUnavailable: the policy asks for a sandbox and none works.
    """
    policies, sandbox = ctx.get(SandboxPolicy), ctx.get(SandboxProvider)
    if policies is not None:
        policy = policies.resolve(session)
        if policy.mode == "danger-full-access":
            return Place(tuple(argv), folder)
        if sandbox is not None:
            confined = await sandbox.confine(argv, policy)
            return Place(confined.argv, folder, confined.grants, confined.runner is not None)
    if ctx.require(SubprocessRuntime).grants_enforcement() is None:
        raise CannotConfine
    return Place(tuple(argv), folder, FileGrants(("/",), (folder, "/dev/null")))


def _make_folder(ctx: Context, session: Session | None) -> str:
    policies = ctx.get(SandboxPolicy)
    above = None if policies is None else policies.temp_dir(session.id if session else None)
    return os.path.realpath(tempfile.mkdtemp(prefix="dsh-code-", dir=above))


def _remove(path: str, fd: int) -> None:
    try:
        delete_tree(path, fd)
    except OSError as error:
        _log.warning("the folder %s of a program could not be deleted: %s", path, error)
    finally:
        os.close(fd)
