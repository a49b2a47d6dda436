"""A thread for work that would hold up the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from dsh.state.query.service import SessionQueryError

T = TypeVar("T")


class Worker:
    """Runs calls one after the other in a thread that starts with the first of them."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: ThreadPoolExecutor | None = None
        self._closed = False

    async def run(self, call: Callable[..., T], *args: Any) -> T:
        """Run a call in its turn; one that has begun goes on when its caller is cancelled.

        Raises:
            SessionQueryError: ``ABORTED``, when the thread has been ended.
        """
        if self._closed:
            raise SessionQueryError("SESSION_QUERY_ABORTED", "the session query is shutting down")
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix=self._name)
        return await asyncio.get_running_loop().run_in_executor(self._thread, call, *args)

    async def close(self) -> None:
        """Take no more calls, and wait for the one that runs; those that wait are left out."""
        self._closed = True
        thread, self._thread = self._thread, None
        if thread is not None:
            await asyncio.to_thread(thread.shutdown, cancel_futures=True)
