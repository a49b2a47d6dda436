"""Ending the process: one disposal of the tree, bounded, forced by a second signal."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from dsh.loader.events import HOST_EXIT, HostExit

if TYPE_CHECKING:
    from dsh.kernel import Context

GRACE_S: Final = 5.0
"""How long the disposal of a tree may take."""

RELEASE_S: Final = 2.0
"""How long it may take after a fatal failure."""


def force_exit(code: int) -> None:
    """End the process now; what is buffered for stdout and stderr is written if it can be."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(code)


class ShutdownController:
    """Decides when and with which code the host ends.

    Attributes:
        code: What was asked for; None while nothing was.
        signal: Name of the signal that asked; None when none did.
    """

    def __init__(
        self,
        *,
        sigterm: int,
        grace_s: float = GRACE_S,
        force: Callable[[int], None] = force_exit,
    ) -> None:
        self.code: int | None = None
        self.signal: str | None = None
        self._signals = {signal.SIGINT: 130, signal.SIGTERM: sigterm, signal.SIGHUP: 129}
        self._grace_s = grace_s
        self._force = force
        self._root: Context | None = None
        self._disposal: asyncio.Task[None] | None = None
        self._done = asyncio.Event()

    @property
    def stopping(self) -> bool:
        """Whether the end was asked for."""
        return self.code is not None

    def attach(self, root: Context) -> None:
        """Say which tree to dispose of."""
        self._root = root

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Handle SIGINT, SIGTERM and SIGHUP while entered."""
        loop = asyncio.get_running_loop()
        installed: list[signal.Signals] = []
        for number, code in self._signals.items():
            # nohup ignores SIGHUP, and means it.
            if number is signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue
            with suppress(ValueError, RuntimeError):  # not the main thread: someone else's job
                loop.add_signal_handler(number, self.interrupt, code, number.name)
                installed.append(number)
        try:
            yield
        finally:
            for number in installed:
                loop.remove_signal_handler(number)

    def shutdown(self, code: int) -> None:
        """Dispose of the tree and end with a code; later calls join the first."""
        if self.code is None:
            self._begin(code, None, self._grace_s)

    def interrupt(self, code: int, name: str | None = None) -> None:
        """End because of a signal; one that comes while an end is under way forces it."""
        if self.code is None:
            self._begin(code, name, self._grace_s)
        elif not self._done.is_set():
            self._force(code)

    def fail(self, code: int) -> None:
        """End after a fatal failure, with less patience."""
        if self.code is None:
            self._begin(code, None, RELEASE_S)

    async def finished(self) -> int:
        """Wait until the tree is gone; returns the code.

        Disposal that takes too long, or fails, ends the process instead.
        """
        await self._done.wait()
        return self.code or 0

    def _begin(self, code: int, name: str | None, grace_s: float) -> None:
        self.code, self.signal = code, name
        work = self._dispose(grace_s)
        self._disposal = asyncio.get_running_loop().create_task(work, name="host shutdown")

    async def _dispose(self, grace_s: float) -> None:
        work = asyncio.ensure_future(self._release())
        done, _ = await asyncio.wait({work}, timeout=grace_s)
        if not done or work.exception() is not None:
            self._force(self.code or 0)
        self._done.set()

    async def _release(self) -> None:
        if self._root is None:
            return
        # A listener's failure must not keep the tree alive; the kernel has its own report.
        with suppress(BaseExceptionGroup):
            await self._root.parallel(HOST_EXIT, HostExit(self.signal, self.code or 0))
        await self._root.dispose()


@contextmanager
def bounded_end(code: Callable[[], int], seconds: float) -> Iterator[None]:
    """Force the process to end when the block inside takes too long.

    Threads that still run would otherwise hold up the loop's end, and the interpreter's.
    """
    timer = threading.Timer(seconds, lambda: force_exit(code()))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
