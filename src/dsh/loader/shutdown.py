"""Ending the process: one disposal of the tree, bounded, forced by a second signal."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Final

from dsh.loader.ending import RELEASE_S, bounded_end, force_exit
from dsh.loader.events import HOST_EXIT, HostExit

if TYPE_CHECKING:
    from dsh.kernel import Context

GRACE_S: Final = 5.0
"""How long the disposal of a tree may take."""

_BLOCKED_S: Final = 0.5
"""How much longer a loop that is blocked is waited for."""


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
        self._context = copy_context()
        self._blocked = False
        """A signal came that the loop has not got to yet."""

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
        former: dict[signal.Signals, Any] = {}

        # The loop's own handlers would not be heard while a plugin blocks the loop.
        def hear(number: int, _: object) -> None:
            self._heard(loop, signal.Signals(number))

        for number in self._signals:
            # nohup ignores SIGHUP, and means it.
            if number is signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue
            with suppress(ValueError):  # not the main thread: someone else's job
                former[number] = signal.signal(number, hear)
        try:
            yield
        finally:
            for number, handler in former.items():
                signal.signal(number, handler)

    def _heard(self, loop: asyncio.AbstractEventLoop, number: signal.Signals) -> None:
        """Pass a signal to the loop; one more, while that is blocked, ends the process."""
        code = self._signals[number]
        if self._blocked:
            self._force(code)
            return
        self._blocked = True
        loop.call_soon_threadsafe(self.interrupt, code, number.name)

    def shutdown(self, code: int) -> None:
        """Dispose of the tree and end with a code; later calls join the first."""
        if self.code is None:
            self._begin(code, None, self._grace_s)

    def interrupt(self, code: int, name: str | None = None) -> None:
        """End because of a signal; one that comes while an end is under way forces it."""
        self._blocked = False
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
        # Whoever asks may be a plugin whose transition the disposal is to wait for.
        self._disposal = asyncio.get_running_loop().create_task(
            work, name="host shutdown", context=self._context
        )

    async def _dispose(self, grace_s: float) -> None:
        work = asyncio.ensure_future(self._release())
        # The thread is for an undo that blocks the loop, and with it the loop's own timeout.
        with bounded_end(lambda: self.code or 0, grace_s + _BLOCKED_S, self._force):
            done, _ = await asyncio.wait({work}, timeout=grace_s)
        error = work.exception() if done else None
        if error is not None:
            told = {"message": "the disposal of the tree failed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(told)
        if not done or error is not None:
            self._force(self.code or 0)
        self._done.set()

    async def _release(self) -> None:
        if self._root is None:
            return
        # A listener's failure must not keep the tree alive; the kernel has its own report.
        with suppress(BaseExceptionGroup):
            await self._root.parallel(HOST_EXIT, HostExit(self.signal, self.code or 0))
        await self._root.dispose()
