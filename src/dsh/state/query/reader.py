"""The questions that need no index: exact reads of the logs themselves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from dsh.state.query.corpus import Corpus, not_found
from dsh.state.query.filters import (
    checked_event_filters,
    checked_session_filters,
    event_test,
    session_test,
)
from dsh.state.query.lineage import trace_lineage
from dsh.state.query.service import (
    EventRecord,
    EventTrace,
    EventWindow,
    SessionLineageTrace,
    SessionLog,
    SessionQuery,
    SessionQueryError,
    SurfaceView,
    TitleOutcome,
    TitleSnapshot,
)
from dsh.state.query.traces import event_at, folded_surface, records_of, trace_of, window_of
from dsh.state.query.worker import Worker
from dsh.state.session.service import SessionStore
from dsh.state.titles.text import fold_session_title

if TYPE_CHECKING:
    from dsh.kernel import Context
    from dsh.state.query.service import EventFilter, SessionFilter, SessionRecord

T = TypeVar("T")

_SMALL_LOG = 1000
"""Events that are looked through faster than another thread can be asked to."""


class SessionReader(SessionQuery):
    """Everything of `SessionQuery` but the searches, which a provider adds.

    Args:
        ctx: The plugin's context.
        config: The provider's config.
        window_max: The most neighbours that `read_event` gives on a side.
        concurrency: How many stored logs are read at once.
    """

    inject = (SessionStore,)

    def __init__(self, ctx: Context, config: Any, *, window_max: int, concurrency: int) -> None:
        self._corpus = Corpus(ctx)
        self._window_max = window_max
        self._concurrency = concurrency
        self._analysis = Worker("dsh-session-query")
        super().__init__(ctx, config)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Hold what the reads need; ended when the plugin unloads."""
        try:
            yield
        finally:
            await self._analysis.close()

    async def list_sessions(self) -> list[SessionRecord]:
        """See `SessionQuery.list_sessions`."""
        return await self._corpus.records()

    async def filter_sessions(self, filters: Sequence[SessionFilter]) -> list[SessionRecord]:
        """See `SessionQuery.filter_sessions`."""
        passes = session_test(checked_session_filters(filters))
        return [record for record in await self._corpus.records() if passes(record)]

    async def filter_events(self, id: str, filters: Sequence[EventFilter]) -> list[EventRecord]:
        """See `SessionQuery.filter_events`."""
        passes = event_test(checked_event_filters(filters))
        _, events = await self._corpus.log(id)
        return await self._analyse(events, partial(records_of, id, events, passes))

    async def list_events(self, id: str) -> list[EventRecord]:
        """See `SessionQuery.list_events`."""
        _, events = await self._corpus.log(id)
        return await self._analyse(events, partial(records_of, id, events))

    async def read_session(self, id: str) -> SessionLog:
        """See `SessionQuery.read_session`."""
        header, events = await self._corpus.log(id)
        await self._analyse(events, partial(folded_surface, events))
        return SessionLog(header, events)

    async def read_title(self, id: str) -> str | None:
        """See `SessionQuery.read_title`."""
        return (await self.read_title_snapshot(id)).title

    async def read_title_snapshot(self, id: str) -> TitleSnapshot:
        """See `SessionQuery.read_title_snapshot`."""
        header, events = await self._corpus.log(id)
        return TitleSnapshot(header, fold_session_title(events))

    async def read_title_snapshots(self, ids: Sequence[str]) -> list[TitleOutcome]:
        """See `SessionQuery.read_title_snapshots`."""
        wanted = list(dict.fromkeys(ids))
        stored = {record.id for record in await self._corpus.records()} if wanted else set()
        gate = asyncio.Semaphore(self._concurrency)

        async def look_up(id: str) -> TitleOutcome:
            if id not in stored and self._corpus.sessions.get(id) is None:
                return TitleOutcome(id, None, not_found(id))
            async with gate:
                try:
                    return TitleOutcome(id, await self.read_title_snapshot(id))
                except SessionQueryError as error:
                    return TitleOutcome(id, None, error)

        # Cancelling a group waits until the reads that began have ended.
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(look_up(each), name=f"session-title:{each}") for each in wanted
            ]
        return [task.result() for task in tasks]

    async def read_surface(self, id: str) -> SurfaceView:
        """See `SessionQuery.read_surface`."""
        header, events = await self._corpus.log(id)
        surface = await self._analyse(events, partial(folded_surface, events))
        last = events[-1]["seq"] if events else None
        return SurfaceView(header, last, tuple(events[seq] for seq in surface.nodes))

    async def trace_session(self, id: str) -> SessionLineageTrace:
        """See `SessionQuery.trace_session`."""
        return trace_lineage(id, await self._corpus.records())

    async def trace_event(self, id: str, seq: int) -> EventTrace:
        """See `SessionQuery.trace_event`."""
        header, events = await self._corpus.log(id)
        event_at(id, events, seq)
        return await self._analyse(events, partial(trace_of, header, events, seq))

    async def read_event(
        self, id: str, seq: int, *, before: int = 0, after: int = 0
    ) -> EventWindow:
        """See `SessionQuery.read_event`."""
        for side in (before, after):
            if type(side) is not int or not 0 <= side <= self._window_max:
                raise SessionQueryError(
                    "SESSION_QUERY_INVALID_WINDOW",
                    f"a window has from 0 to {self._window_max} events on a side, not {side!r}",
                )
        header, events = await self._corpus.log(id)
        return window_of(header, events, seq, before, after)

    async def _analyse(self, events: Sequence[object], analysis: Callable[[], T]) -> T:
        if len(events) <= _SMALL_LOG:
            return analysis()
        return await self._analysis.run(analysis)
