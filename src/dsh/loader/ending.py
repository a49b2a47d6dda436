"""Ending the process whatever still runs in it; imports nothing of the kernel."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from threading import Timer

RELEASE_S: Final = 2.0
"""How long it may take after a fatal failure."""


def force_exit(code: int) -> None:
    """End the process now; what is buffered for stdout and stderr is written if it can be."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(code)


@contextmanager
def interrupts_end(code: int) -> Iterator[None]:
    """End the process at once on SIGINT, until somebody inside hears signals.

    A KeyboardInterrupt could come out of any import: some native modules crash on one, and one
    that is raised in a callback of the interpreter's is lost, with the wish to end.
    """
    import signal

    try:
        former = signal.signal(signal.SIGINT, lambda *_: force_exit(code))
    except ValueError:  # not the main thread, which hears no signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, former)


@contextmanager
def bounded_end(
    code: Callable[[], int], seconds: float, force: Callable[[int], None] = force_exit
) -> Iterator[None]:
    """Force the process to end when the block inside takes too long.

    Threads that still run would otherwise hold up the loop's end, and the interpreter's.
    """
    timer = _force_after(seconds, lambda: force(code()))
    try:
        yield
    finally:
        timer.cancel()


def end_threads(code: int) -> int:
    """Return the code; a thread that outlives the host by more than the release is not waited for.

    To be called last: the interpreter would wait for such a thread without end.
    """
    import threading

    others = [each for each in threading.enumerate() if not each.daemon]
    if others != [threading.main_thread()]:
        _force_after(RELEASE_S, lambda: force_exit(code))
    return code


def _force_after(seconds: float, force: Callable[[], None]) -> Timer:
    from threading import Timer

    timer = Timer(seconds, force)
    timer.daemon = True
    timer.start()
    return timer
