"""Leases that are held: renewed in the background until they are given up."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from dsh.base.errors import error_chain

if TYPE_CHECKING:
    from dsh.state.persistence.backend import Backend
    from dsh.state.persistence.background import Tasks
    from dsh.state.persistence.lease import Lease

_log = logging.getLogger("dsh.session_persistence")
_RENEWALS_A_LEASE = 3


class LeaseKeeper:
    """Renews leases well before they expire.

    Args:
        backend: Where they are.
        tasks: Owns the renewals.
    """

    def __init__(self, backend: Backend[Any], tasks: Tasks) -> None:
        self._backend = backend
        self._tasks = tasks
        self._held: set[Lease] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._is_renewing = False
        self._told = False

    def keep(self, lease: Lease) -> None:
        """Renew a lease from now on."""
        self._held.add(lease)
        self._schedule()

    async def give_up(self, lease: Lease) -> None:
        """Renew a lease no more, and let others have it; a failure is told, and costs only time."""
        self._drop(lease)
        try:
            await self._backend.let_go(lease)
        except Exception as error:
            _log.warning(
                "session %r stays closed to others until its lease expires: %s",
                lease.id,
                error_chain(error),
            )

    async def close(self) -> None:
        """Give up all that is held; a failure is told, and costs only time."""
        self._cancel()
        held, self._held = list(self._held), set()
        # One first: a medium that is away would be waited for once a lease.
        for leases in (held[:1], held[1:]):
            freeing = (self._backend.let_go(lease) for lease in leases)
            done = await asyncio.gather(*freeing, return_exceptions=True)
            if failures := [each for each in done if isinstance(each, Exception)]:
                _log.warning(
                    "sessions stay closed to others until their leases expire: %s",
                    error_chain(failures[0]),
                )
                return

    async def renew(self) -> None:
        """Renew all leases now; one that has ended is told, and kept no longer."""
        held = list(self._held)
        for lease in await self._backend.renew(held):
            self._drop(lease)
            _log.warning(
                "session %r was taken over by another writer; nothing more of it is stored here",
                lease.id,
            )

    def _drop(self, lease: Lease) -> None:
        self._held.discard(lease)
        if not self._held:
            self._cancel()

    def _schedule(self) -> None:
        if self._timer is None and self._held and not self._is_renewing:
            self._timer = asyncio.get_running_loop().call_later(
                self._backend.lease_s / _RENEWALS_A_LEASE, self._due, context=self._tasks.context
            )

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _due(self) -> None:
        self._timer = None
        self._is_renewing = True
        self._tasks.start(self._renew_in_time(), "session-log:leases")

    async def _renew_in_time(self) -> None:
        try:
            await self.renew()
            self._told = False
        except Exception as error:
            if not self._told:
                self._told = True
                _log.warning("session leases could not be renewed: %s", error_chain(error))
        finally:
            self._is_renewing = False
            self._schedule()
