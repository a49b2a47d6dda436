"""How long an aborted turn waits for those who do not heed its signal."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from dsh.base.signal import AbortedError

if TYPE_CHECKING:
    from types import TracebackType

    from dsh.base.signal import AbortSignal


class Overdue(AbortedError):
    """Work had to be cancelled, for it went on after its signal had been aborted."""

    code = "ABORTED"


class Patience:
    """Bounds what is awaited inside after an abort: whoever heeds the signal is left alone.

    When the grace period after the abort is over, the task is cancelled once at whatever it awaits
    inside, which has then ended when `Overdue` is raised.

    A cancellation of the task itself that is swallowed inside, or that becomes another error there,
    is raised at the end of the block: nobody inside may decide that the task goes on.

    Args:
        signal: The signal that the awaited work was given.
        grace_s: Seconds that the work may take to end after the abort.
    """

    __slots__ = ("_cancelling", "_fired", "_grace_s", "_remove", "_signal", "_task", "_timer")

    def __init__(self, signal: AbortSignal, grace_s: float) -> None:
        self._signal = signal
        self._grace_s = grace_s
        self._timer: asyncio.TimerHandle | None = None
        self._fired = False

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None  # nothing can be awaited without
        self._task, self._cancelling = task, task.cancelling()
        self._remove = self._signal.add_listener(self._arm, now=True)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._remove()
        if self._timer is not None:
            self._timer.cancel()
        # As in asyncio.timeout: a cancellation that somebody else asked for meanwhile goes on.
        asked = self._task.uncancel() if self._fired else self._task.cancelling()
        if asked > self._cancelling:
            if kind is None or issubclass(kind, Exception):
                raise asyncio.CancelledError from error
        elif self._fired and _is_cancel(kind):
            raise Overdue(self._signal.reason) from error

    def _arm(self) -> None:
        self._timer = self._task.get_loop().call_later(self._grace_s, self._fire)

    def _fire(self) -> None:
        self._fired = True
        self._task.cancel()


def _is_cancel(kind: type[BaseException] | None) -> bool:
    return kind is not None and issubclass(kind, asyncio.CancelledError)
