"""The command line of the supervisor folder.

``--serve FD``: the form dsh uses. ``--probe``: say what Landlock can enforce here. ``[--ro PATH]...
[--rw PATH]... -- PROGRAM [ARGUMENT]...``: confine this process, then become the program.
"""

from __future__ import annotations

import os
import sys

from . import landlock
from .child import EXIT_FAILED, find_program, reset_signals

_PREFIX = "landlock-run: "


def main(arguments: list[str]) -> int:
    """Run one of the three forms; every failure of the launcher itself is exit status 125."""
    if arguments[:1] == ["--serve"] and len(arguments) == 2:
        from .serve import serve

        return serve(int(arguments[1]))
    try:
        if arguments == ["--probe"]:
            return _probe()
        return _run(*_parse(arguments))
    except (OSError, ValueError) as error:
        print(f"{_PREFIX}{error}", file=sys.stderr)  # noqa: T201 - this is a program of its own
        return EXIT_FAILED


def _probe() -> int:
    abi = landlock.abi_version()
    if abi == 0:
        raise OSError(0, "this kernel does not offer Landlock")
    full = abi >= landlock.FULL_ABI
    verdict = "fully enforced" if full else "partially enforced (older ABI)"
    print(f"landlock: {verdict}")  # noqa: T201
    return 0


def _parse(arguments: list[str]) -> tuple[list[str], list[str], list[str]]:
    if "--" not in arguments:
        raise ValueError("usage: [--ro PATH]... [--rw PATH]... -- PROGRAM [ARGUMENT]...")
    cut = arguments.index("--")
    options, argv = arguments[:cut], arguments[cut + 1 :]
    if not argv or len(options) % 2 or set(options[::2]) - {"--ro", "--rw"}:
        raise ValueError("usage: [--ro PATH]... [--rw PATH]... -- PROGRAM [ARGUMENT]...")
    pairs = list(zip(options[::2], options[1::2], strict=True))
    real = {path: os.path.realpath(path) for _, path in pairs}
    read, write = ([real[p] for o, p in pairs if o == option] for option in ("--ro", "--rw"))
    return read, write, argv


def _run(read: list[str], write: list[str], argv: list[str]) -> int:
    program = find_program(argv[0], dict(os.environ))
    if landlock.abi_version() < landlock.FULL_ABI:
        notice = f"{_PREFIX}partial enforcement (older Landlock ABI)"
        print(notice, file=sys.stderr)  # noqa: T201
    landlock.restrict(read, write)
    reset_signals()
    os.execv(program, argv)
