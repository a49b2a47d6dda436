"""Time as a dependency: wall clock in milliseconds, monotonic clock in seconds."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Where code that must be testable gets the time from."""

    def now_ms(self) -> int:
        """Return the wall clock, in milliseconds since the epoch; it may step backwards."""
        ...

    def monotonic(self) -> float:
        """Return seconds on a clock that never steps backwards."""
        ...


class SystemClock:
    """The clocks of the operating system."""

    __slots__ = ()

    def now_ms(self) -> int:
        """See `Clock.now_ms`."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """See `Clock.monotonic`."""
        return time.monotonic()


SYSTEM_CLOCK: Clock = SystemClock()
"""The default clock."""
