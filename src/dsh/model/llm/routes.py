"""Routes that come and go: who waits for one that is being swapped, and for how long."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dsh.base.changes import Changes, loop_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from dsh.base.signal import AbortSignal

SWAP_WAIT_S: Final = 15.0
"""How long a route that went away may take to come back."""


class RouteWatch:
    """Knows which providers lost their adapter of late, and wakes those who wait for another.

    Whoever replaces an adapter takes the old one out first. A name that never had one, or lost
    it long ago, is not waited for.

    Args:
        wait_s: How long it is waited for, from the moment that the old adapter went.
    """

    def __init__(self, wait_s: float = SWAP_WAIT_S) -> None:
        self.wait_s = wait_s
        self._lost: dict[str, float] = {}
        self._changes = Changes()

    def changed(self, lost: Iterable[str], found: Iterable[str]) -> None:
        """Note which providers have no adapter any more, and which have one now."""
        for provider in found:
            self._lost.pop(provider, None)
        self._lost |= dict.fromkeys(lost, loop_time())
        self._changes.announce()

    async def settle(
        self, provider: str, state: Callable[[], bool | None], signal: AbortSignal | None
    ) -> None:
        """Wait for a provider's adapter while it is being swapped.

        Args:
            provider: Its name.
            state: Whether its adapter takes calls; None when there is none.
            signal: Ends the wait.

        Raises:
            AbortedError: the signal aborted.
        """
        deadline: float | None = None
        while not (there := state()):
            if signal is not None:
                signal.throw_if_aborted()
            if there is None and provider not in self._lost:
                return
            since = loop_time() if there is False else self._lost[provider]
            if deadline is None:
                deadline = since + self.wait_s
            if (left := deadline - loop_time()) <= 0:
                return
            await self._changes.next(left, signal)
