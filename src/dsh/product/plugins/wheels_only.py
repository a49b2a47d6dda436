"""Runs pip so that it cannot build anything: ``python wheels_only.py <pip's words>``.

Pip's ``--only-binary`` leaves source alone that a wheel requires by address. Building it means
to start a Python, so here starting one is refused. Standard library and pip only: this file runs
in a process of its own, by its path.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import PurePath

REFUSAL = (
    "a package that is required here has no wheel, and building one runs its code; "
    "allow it with --allow-build"
)

_HARMLESS = ["-sS", "-c", "import platform; print(platform.mac_ver()[0])"]
"""How pip asks for the version of macOS."""


def _guard(event: str, args: tuple[object, ...]) -> None:
    if event != "subprocess.Popen":
        return
    words = args[1] if isinstance(args[1], (list, tuple)) else [args[1]]
    programs = {str(each) for each in (args[0], *words[:1]) if isinstance(each, (str, PurePath))}
    if any(_is_python(each) for each in programs) and list(words[1:]) != _HARMLESS:
        raise _refusal()


def _is_python(program: str) -> bool:
    return program == sys.executable or PurePath(program).name.lower().startswith("python")


def _refusal() -> Exception:
    """Return an error that pip tells in one line, where it still has one of that name."""
    try:
        from pip._internal.exceptions import InstallationError
    except ImportError:
        return PermissionError(REFUSAL)
    return InstallationError(REFUSAL)


if __name__ == "__main__":
    sys.addaudithook(_guard)
    runpy.run_module("pip", run_name="__main__", alter_sys=True)
