"""The steps between fork and exec of a command."""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Callable
from typing import NoReturn

from . import landlock
from .wire import Request

_RESET = ("SIGINT", "SIGQUIT", "SIGHUP", "SIGTERM", "SIGPIPE", "SIGXFSZ", "SIGCHLD")
EXIT_FAILED = 125
"""Exit status of a launcher that could not run the command."""


def become(request: Request, fds: list[int], report: Callable[[str, OSError], None]) -> NoReturn:
    """Turn this freshly forked process into the command; ends the process when it cannot.

    Args:
        request: What to run.
        fds: Descriptors that came with the request.
        report: Told the stage and the error of a failure.
    """
    stage = "supervisor"
    try:
        os.setsid()
        reset_signals()
        _place(fds, request["fds"])
        stage = "cwd"
        os.chdir(request["cwd"])
        stage = "exec"
        program = find_program(request["argv"][0], request["env"])
        if request["write"] is not None:
            stage = "confine"
            landlock.restrict(request["read"], request["write"])
        stage = "exec"
        os.execve(program, request["argv"], request["env"])
    except OSError as error:
        report(stage, error)
    except ValueError as error:
        report(stage, OSError(22, str(error)))
    os._exit(EXIT_FAILED)


def find_program(name: str, env: dict[str, str]) -> str:
    """Return where ``name`` is on the PATH of ``env``; a name with a slash is a path already.

    Raises:
        FileNotFoundError: no folder of PATH holds such an executable.
    """
    if "/" in name:
        return name
    for folder in env.get("PATH", os.defpath).split(os.pathsep):
        path = f"{folder or '.'}/{name}"
        if os.access(path, os.X_OK) and not os.path.isdir(path):
            return path
    raise FileNotFoundError(2, "no such program on PATH")


def reset_signals() -> None:
    """Undo what Python and dsh's own parent did to signals."""
    for name in _RESET:
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _place(fds: list[int], numbers: list[int]) -> None:
    """Give each descriptor its number, where the numbers may be those of other descriptors."""
    above = max(numbers) + 1
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, above) for fd in fds]
    for fd, number in zip(moved, numbers, strict=True):
        os.dup2(fd, number, inheritable=True)
