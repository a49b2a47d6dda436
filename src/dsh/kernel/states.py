"""The states of a fiber; numbers and lower-case names are wire facts."""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class FiberState(IntEnum):
    """Where a fiber is in its life."""

    PENDING = 0
    """Waits for services, or has not started."""
    LOADING = 1
    """Its body runs."""
    ACTIVE = 2
    """Its body is done and what it provides is visible."""
    FAILED = 3
    """Its body raised; what it had registered is undone."""
    DISPOSED = 4
    """Gone for good."""
    UNLOADING = 5
    """What it registered is being undone."""

    @property
    def label(self) -> str:
        """The name on the wire."""
        return self.name.lower()


PENDING: Final = FiberState.PENDING
LOADING: Final = FiberState.LOADING
ACTIVE: Final = FiberState.ACTIVE
FAILED: Final = FiberState.FAILED
DISPOSED: Final = FiberState.DISPOSED
UNLOADING: Final = FiberState.UNLOADING
