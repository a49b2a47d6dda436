"""Looks at what dsh runs on: Python, the programs it can use, the disk."""

from __future__ import annotations

import platform
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dsh import __version__
from dsh.product.doctor.findings import Case, Finding

TOPIC: Final = "installation"
_OLDEST: Final = (3, 11)
_TOOLS: Final = (
    ("rg", "ripgrep", "searches run on a slower engine of our own"),
    ("bwrap", "bubblewrap", "commands are confined by Landlock alone, where the kernel has it"),
    ("git", "git", "an agent cannot use it"),
)
_LOW: Final = 200 << 20
_FULL: Final = 1 << 20


def look_at_python(case: Case) -> Iterator[Finding]:
    """Say which dsh and which Python this is."""
    what = f"dsh {__version__} on Python {platform.python_version()}, {platform.system()}"
    if sys.version_info < _OLDEST:
        yield Finding("error", TOPIC, what, remedy="install Python 3.11 or newer")
    elif sys.platform not in {"linux", "darwin"}:
        yield Finding("warning", TOPIC, what, remedy="run dsh on Linux or macOS, or under WSL")
    else:
        yield Finding("ok", TOPIC, what)


def look_at_tools(case: Case) -> Iterator[Finding]:
    """Say which optional programs are there."""
    path = case.environment.value("PATH")
    found = [name for program, name, _ in _TOOLS if shutil.which(program, path=path)]
    if found:
        yield Finding("ok", TOPIC, f"optional programs: {', '.join(found)}")
    for program, name, loss in _TOOLS:
        if name not in found:
            what = f"{name} is not installed ({program} is not on PATH): {loss}"
            yield Finding("note", TOPIC, what, remedy=f"install {name} by your system's packages")


def look_at_disk(case: Case) -> Iterator[Finding]:
    """Say whether there is room for sessions."""
    place = _existing(case.home)
    total, _, free = shutil.disk_usage(place)
    if total == 0:
        # A file system that says nothing of its room, such as one of the kernel's.
        return
    what = f"{_size(free)} free where the home folder is"
    if free < _LOW:
        level = "error" if free < _FULL else "warning"
        yield Finding(level, TOPIC, f"only {what}", remedy="free some space, or move $DSH_HOME")  # type: ignore[arg-type]
    else:
        yield Finding("ok", TOPIC, what)


def look_at_working_folder(case: Case) -> Iterator[Finding]:
    """Say when there is no folder to work in."""
    try:
        Path.cwd()
    except OSError:
        what = "the working folder does not exist any more"
        yield Finding("error", TOPIC, what, remedy="change to a folder that exists")


def _existing(path: Path) -> Path:
    return next(each for each in (path, *path.parents) if each.exists())


def _size(count: int) -> str:
    number, units = float(count), ["B", "kB", "MB", "GB", "TB"]
    while number >= 1024 and len(units) > 1:
        number, units = number / 1024, units[1:]
    return f"{number:.0f} {units[0]}"
