"""Group commit: what several callers want written at once waits for the disk once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsh.state.persistence.background import Tasks, Workers
    from dsh.state.persistence.sqlite.database import Work


class GroupCommit:
    """Collects jobs while a transaction runs; the next one takes all of them.

    Args:
        transact: Does jobs in one transaction, and returns what each returned or raised; blocks.
        workers: The one thread in which it does.
        tasks: Owns the transactions.
    """

    def __init__(
        self,
        transact: Callable[[Sequence[Callable[[], Work]]], list[Any]],
        workers: Workers,
        tasks: Tasks,
    ) -> None:
        self._transact = transact
        self._workers = workers
        self._tasks = tasks
        self._waiting: list[tuple[Callable[[], Work], asyncio.Future[Any]]] = []
        self._is_running = False

    async def run(self, job: Callable[[], Work]) -> Any:
        """Do a job; durable on return.

        Raises:
            Exception: what the job or the transaction raised.
        """
        outcome: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((job, outcome))
        if not self._is_running:
            self._is_running = True
            self._tasks.start(self._drain(), "session-log:commit")
        return await outcome

    async def _drain(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                await self._commit(batch)
        finally:
            self._is_running = False

    async def _commit(self, batch: list[tuple[Callable[[], Work], asyncio.Future[Any]]]) -> None:
        outcomes: Sequence[Any]
        try:
            outcomes = await self._workers.run(self._transact, [job for job, _ in batch])
        except Exception as error:
            outcomes = [error] * len(batch)
        for (_, waiter), outcome in zip(batch, outcomes, strict=True):
            if waiter.done():
                continue
            if isinstance(outcome, Exception):
                waiter.set_exception(outcome)
            else:
                waiter.set_result(outcome)
