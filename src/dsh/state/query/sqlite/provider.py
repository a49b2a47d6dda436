"""The service with searches: an index that is brought up to date by each of them."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from dsh.base.errors import error_chain
from dsh.state.query.corpus import not_found
from dsh.state.query.filters import session_test
from dsh.state.query.reader import SessionReader
from dsh.state.query.service import (
    EventPage,
    EventRecord,
    EventSearchHit,
    SessionPage,
    SessionQueryError,
    SessionSearchHit,
)
from dsh.state.query.sqlite.config import Config as SqliteConfig
from dsh.state.query.text import snippet_around
from dsh.state.query.worker import Worker

if TYPE_CHECKING:
    from dsh.kernel import Context
    from dsh.state.query.service import EventSearch, SessionRecord, SessionSearch
    from dsh.state.query.sqlite.index import LiveLog, SearchIndex
    from dsh.state.query.sqlite.ranking import Found
    from dsh.state.query.sqlite.request import Requests
    from dsh.state.session.events import SessionHeader
    from dsh.state.session.session import Session

_log = logging.getLogger("dsh.session_query")
_ATTEMPTS = 2

T = TypeVar("T")


class SqliteSessionQuery(SessionReader):
    """Searches with an index that can be thrown away at any time.

    Only what is new is read: of a live session the events since the last search, of the stored ones
    those whose revision changed. All of that happens in a thread of its own.
    """

    Config: ClassVar[Any] = SqliteConfig

    def __init__(self, ctx: Context, config: SqliteConfig) -> None:
        self._index: SearchIndex | None = None
        self._thread = Worker("dsh-session-index")
        self._one_at_a_time = asyncio.Lock()
        self._damaged: dict[str, str] = {}
        self._checks: Requests | None = None
        super().__init__(
            ctx,
            config,
            window_max=config.read_window_max,
            concurrency=config.persisted_inspect_concurrency,
        )

    def start(self) -> AbstractAsyncContextManager[None]:
        """Serve until unloaded; begin to index when the config says so."""
        return self._indexing()

    @asynccontextmanager
    async def _indexing(self) -> AsyncIterator[None]:
        async with self.serving():
            if self.config.open_at == "startup":
                self.ctx.spawn(self._warm_up(), "session-query.index")
            try:
                yield
            finally:
                await self._close()

    @property
    def largest_page(self) -> int:
        """See `SessionQuery.largest_page`."""
        return int(self.config.max_limit)

    async def search_sessions(self, request: SessionSearch) -> SessionPage:
        """See `SessionQuery.search_sessions`."""
        requests = self._requests()
        search = requests.over_sessions(request)
        passes = session_test(search.session_filters)
        async with self._one_at_a_time:
            index = await self._opened()
            records = await self._reconciled(index)
            among = [record for record in records if passes(record)]
            lives = [_live_log(session) for session in self._corpus.sessions.all()]
            answer = await self._asked(index, index.search_sessions, lives, among, search)
        by_id = {record.id: record for record in among}
        hits = tuple(
            SessionSearchHit(by_id[found.session_id], self._hit(found, search.needle))
            for found in answer.hits
        )
        return SessionPage(
            hits, requests.cursor_after(search, answer.generation) if answer.more else None
        )

    async def search_events(self, request: EventSearch) -> EventPage:
        """See `SessionQuery.search_events`."""
        requests = self._requests()
        search = requests.within(request)
        async with self._one_at_a_time:
            index = await self._opened()
            header, live = await self._one_reconciled(index, request.session_id)
            answer = await self._asked(index, index.search_events, request.session_id, live, search)
        hits = tuple(self._hit(found, search.needle) for found in answer.hits)
        return EventPage(
            header, hits, requests.cursor_after(search, answer.generation) if answer.more else None
        )

    def _requests(self) -> Requests:
        """Return what checks requests; comes before all else, also before that check."""
        if self.config.open_at == "never":
            raise SessionQueryError(
                "SESSION_QUERY_SEARCH_DISABLED",
                "search is switched off; set openAt of the row session-query-sqlite to "
                "'first-search' to have it",
            )
        if self._checks is None:
            from dsh.state.query.sqlite.request import Requests

            limits = self.config.default_limit, self.config.max_limit
            self._checks = Requests(uuid.uuid4().hex, *limits)
        return self._checks

    async def _warm_up(self) -> None:
        """Index what there is, so that the first search finds it done."""
        try:
            async with self._one_at_a_time:
                index = await self._opened()
                await self._reconciled(index)
                for session in self._corpus.sessions.all():
                    await self._asked(index, index.follow, _live_log(session))
        except SessionQueryError as error:
            _log.warning("sessions are not indexed yet: %s", error_chain(error))

    async def _opened(self) -> SearchIndex:
        if self._index is None:
            await self._thread.run(self._open)
        assert self._index is not None
        return self._index

    def _open(self) -> None:
        # Set here and not by the caller, who may have been cancelled.
        if self._index is None:
            self._index = self._make_index()

    def _make_index(self) -> SearchIndex:
        import sqlite3

        from dsh.state.query.sqlite.index import SearchIndex
        from dsh.state.query.sqlite.schema import IN_MEMORY

        path = self.config.path
        try:
            return SearchIndex(path, self.config.journal_mode)
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):
                raise _index_failed(path, error) from error
            _log.warning("another process has the search index %r; indexing in memory", path)
            return SearchIndex(IN_MEMORY, self.config.journal_mode)
        except (sqlite3.Error, OSError) as error:
            raise _index_failed(path, error) from error

    async def _close(self) -> None:
        if self._index is not None:
            self._index.stop()
        await self._thread.close()
        if self._index is not None:
            await asyncio.to_thread(self._index.close)
            self._index = None

    async def _asked(self, index: SearchIndex, call: Callable[..., T], *args: Any) -> T:
        """Let the index do something; a caller that is cancelled makes it stop."""
        import sqlite3

        try:
            return await self._thread.run(call, *args)
        except asyncio.CancelledError:
            index.interrupt()
            raise
        except sqlite3.Error as error:
            raise _index_failed(self.config.path, error) from error

    async def _reconciled(self, index: SearchIndex) -> list[SessionRecord]:
        """Read what is new in storage, and return all sessions there are."""
        for attempt in range(1, _ATTEMPTS + 1):
            source = self._corpus.persistence
            live: set[str] = {session.id for session in self._corpus.sessions.all()}
            try:
                headers = await self._catch_up(index, live)
            except SessionQueryError:
                if attempt == _ATTEMPTS or self._corpus.persistence == source:
                    raise
                continue
            now = {session.id for session in self._corpus.sessions.all()}
            # A session that left meanwhile was read neither here nor there.
            if live <= now or attempt == _ATTEMPTS:
                return self._corpus.merged(headers)
        raise AssertionError("unreachable")

    async def _catch_up(self, index: SearchIndex, live: set[str]) -> list[SessionHeader]:
        complete = self._corpus.persistence is not None
        snapshots = await self._corpus.snapshots()
        stored = {each.header["id"]: each.revision for each in snapshots}
        outdated = await self._asked(index, lambda: index.outdated(stored, live, complete=complete))
        wanted = [name for name in outdated if self._damaged.get(name) != stored[name]]
        await self._each(wanted, lambda name: self._read(index, name, stored[name]))
        return [each.header for each in snapshots]

    async def _one_reconciled(
        self, index: SearchIndex, id: str
    ) -> tuple[SessionHeader, LiveLog | None]:
        """Bring one session up to date; the others are left as they are."""
        if (session := self._corpus.sessions.get(id)) is not None:
            return session.header, _live_log(session)
        snapshots = await self._corpus.snapshots()
        found = next((each for each in snapshots if each.header["id"] == id), None)
        if (session := self._corpus.sessions.get(id)) is not None:
            return session.header, _live_log(session)
        if found is None:
            raise not_found(id)
        if await self._asked(index, index.is_outdated, id, found.revision):
            header, events = await self._corpus.log(id)
            await self._asked(index, index.read, header, events, found.revision)
        return found.header, None

    async def _read(self, index: SearchIndex, id: str, revision: str) -> None:
        """Index one stored session; one that cannot be read is left out."""
        try:
            header, events = await self._corpus.log(id)
            if self._corpus.sessions.get(id) is None:
                await self._asked(index, index.read, header, events, revision)
            self._damaged.pop(id, None)
        except SessionQueryError as error:
            if error.code == "SESSION_QUERY_SESSION_NOT_FOUND":
                await self._asked(index, index.drop, id)
            elif error.code in _DAMAGE or isinstance(error.__cause__, OSError):
                self._damaged[id] = revision
                _log.warning("a session cannot be searched: %s", error_chain(error))
                await self._asked(index, index.drop, id)
            else:
                raise

    async def _each(self, ids: Sequence[str], work: Callable[[str], Awaitable[None]]) -> None:
        """Do something for each session, for some of them at once."""
        remaining = iter(ids)

        async def worker() -> None:
            for name in remaining:
                await work(name)

        count = min(self._concurrency, len(ids))
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(count):
                    group.create_task(worker(), name=f"session-query.index:{number}")
        except* SessionQueryError as errors:
            raise errors.exceptions[0] from None

    def _hit(self, found: Found, needle: str) -> EventSearchHit:
        event = EventRecord(found.session_id, found.seq, found.type, found.time, found.surface)
        snippet = snippet_around(found.text, found.at, len(needle), self.config.snippet_chars)
        return EventSearchHit(event, snippet)


_DAMAGE = ("SESSION_QUERY_CORRUPT_SESSION", "SESSION_QUERY_INVALID_SURFACE")


def _live_log(session: Session) -> LiveLog:
    from dsh.state.query.sqlite.index import LiveLog

    return LiveLog(session.header, session.events, session.surface.nodes)


def _index_failed(path: str, error: Exception) -> SessionQueryError:
    return SessionQueryError(
        "SESSION_QUERY_INDEX_FAILED",
        f"the search index {path!r} failed: {error}; it holds copies only: if this goes on, delete "
        "the file and search again",
    )
