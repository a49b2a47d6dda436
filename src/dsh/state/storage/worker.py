"""One thread for the blocking work of a storage backend."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from dsh.state.storage.errors import StorageClosed

T = TypeVar("T")


class Worker:
    """Runs calls one after the other in a thread that starts with the first of them.

    Args:
        what: Names the thread, and what is closed once it has ended.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._thread: ThreadPoolExecutor | None = None
        self._closed = False

    async def run(self, call: Callable[..., T], *args: Any) -> T:
        """Run a call in its turn; it is carried out even when its caller is cancelled.

        Raises:
            StorageClosed: the thread has been ended.
        """
        if self._closed:
            raise StorageClosed(self._what)
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix=self._what)
        running = asyncio.get_running_loop().run_in_executor(self._thread, call, *args)
        running.add_done_callback(_seen)
        return await asyncio.shield(running)

    async def close(self) -> None:
        """Take no more calls, and wait for those that were asked for; harmless when repeated."""
        self._closed = True
        thread, self._thread = self._thread, None
        if thread is not None:
            await asyncio.to_thread(thread.shutdown)


def _seen(done: asyncio.Future[Any]) -> None:
    """Take note of a failure that its caller did not wait for."""
    if not done.cancelled():
        done.exception()
