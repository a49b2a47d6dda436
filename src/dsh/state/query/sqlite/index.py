"""The index: what is in each event, found by what is in it. Belongs to one thread."""

from __future__ import annotations

import hashlib
import itertools
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dsh.base.json import dumps
from dsh.base.text import replace_surrogates
from dsh.base.values import record, value
from dsh.state.query.service import SessionQueryError
from dsh.state.query.sqlite import schema
from dsh.state.query.sqlite.ranking import Found, rank_events, rank_sessions
from dsh.state.query.text import folded, plain, searchable_text
from dsh.state.query.traces import folded_surface, surface_class

if TYPE_CHECKING:
    from dsh.state.query.service import SessionRecord
    from dsh.state.query.sqlite.request import Search
    from dsh.state.session.events import SessionEvent, SessionHeader


@value
class LiveLog:
    """A live session at one moment."""

    header: SessionHeader
    events: Sequence[SessionEvent]
    nodes: Collection[int]


@value
class Answer:
    """A page of hits, whether there are more, and what they were searched in."""

    hits: tuple[Found, ...]
    more: bool
    generation: int


@record
class _Known:
    """What the index has of a session.

    Attributes:
        key: Its number in the index.
        identity: Tells it from another session of the same id.
        revision: Of the stored log that was read last; ``None`` while more is indexed than stored.
        events: How many events were read.
        tail: A digest of the last of them.
        generation: Changes with the documents.
    """

    key: int
    identity: str
    revision: str | None
    events: int
    tail: str
    generation: int


class SearchIndex:
    """Documents of sessions in a database.

    Args:
        path: The file, or ``:memory:``.
        journal_mode: As SQLite has them.

    Raises:
        SessionQueryError: ``INVALID_CONFIG``, when the file is something else.
        sqlite3.Error: it cannot be opened.
    """

    def __init__(self, path: str, journal_mode: str) -> None:
        self._connection, self._has_grams = schema.connect(path, journal_mode)
        self._stopped = False
        self._generations = itertools.count(1)
        self._known: dict[str, _Known] = {}
        try:
            self._load()
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()

    def interrupt(self) -> None:
        """Make the statement that runs fail; other threads may call this."""
        self._connection.interrupt()

    def stop(self) -> None:
        """Make the call that runs fail soon; other threads may call this."""
        self._stopped = True
        self._connection.interrupt()

    def outdated(
        self, stored: Mapping[str, str], live: Collection[str], *, complete: bool
    ) -> list[str]:
        """Forget the sessions that are gone, and return the stored ones that must be read.

        Args:
            stored: The revision of each stored session.
            live: Those that are live, and thus not read from storage.
            complete: ``stored`` is all there is; otherwise storage is away for the moment.
        """
        gone = [
            name
            for name, known in self._known.items()
            if name not in live and name not in stored and (complete or known.revision is None)
        ]
        self._forget(gone)
        return [
            name
            for name, revision in stored.items()
            if name not in live and self.is_outdated(name, revision)
        ]

    def is_outdated(self, id: str, revision: str) -> bool:
        """Whether a stored session must be read."""
        known = self._known.get(id)
        return known is None or known.revision != revision

    def read(self, header: SessionHeader, events: Sequence[SessionEvent], revision: str) -> None:
        """Bring the documents of a stored session up to date.

        Raises:
            SessionQueryError: ``INVALID_SURFACE``; nothing has changed.
        """
        self._update(header, events, frozenset(folded_surface(events).nodes), revision)

    def follow(self, live: LiveLog) -> None:
        """Bring the documents of a live session up to date."""
        known = self._known.get(live.header["id"])
        if known is not None and known.events == len(live.events) and self._goes_on(known, live):
            return
        self._update(live.header, live.events, frozenset(live.nodes), None)

    def drop(self, id: str) -> None:
        """Forget a session."""
        self._forget([id] if id in self._known else [])

    def search_sessions(
        self, lives: Iterable[LiveLog], among: Sequence[SessionRecord], search: Search
    ) -> Answer:
        """Search over some of the sessions; the live ones are brought up to date first."""
        for live in lives:
            self.follow(live)
        indexed = [(each, self._known[each.id]) for each in among if each.id in self._known]
        generation = hash(
            tuple((each.id, each.live, each.persisted, known.generation) for each, known in indexed)
        )
        _check_fresh(search, generation)
        everything = len(indexed) == len(self._known)
        keys = None if everything else [known.key for _, known in indexed]
        found, more = rank_sessions(self._connection, self._has_grams, search, keys)
        return Answer(found, more, generation)

    def search_events(self, id: str, live: LiveLog | None, search: Search) -> Answer:
        """Search within a session, which is brought up to date first when it is live."""
        if live is not None:
            self.follow(live)
        known = self._known.get(id)
        if known is None:
            return Answer((), False, 0)
        _check_fresh(search, known.generation)
        found, more = rank_events(self._connection, search, known.key)
        return Answer(found, more, known.generation)

    def _load(self) -> None:
        # What a process indexed ahead of storage may have died with it.
        lost = self._connection.execute("SELECT key FROM sessions WHERE revision IS NULL")
        with self._transaction():
            for (key,) in lost.fetchall():
                self._delete(key)
        rows = self._connection.execute(
            "SELECT key, id, identity, revision, events, tail FROM sessions"
        )
        for key, encoded, identity, revision, events, tail in rows:
            name = encoded.decode("utf-8", "surrogatepass")
            generation = next(self._generations)
            self._known[name] = _Known(key, identity, revision, events, tail, generation)

    def _update(
        self,
        header: SessionHeader,
        events: Sequence[SessionEvent],
        nodes: Collection[int],
        revision: str | None,
    ) -> None:
        name, identity, tail = header["id"], _identity(header), _tail(events, len(events))
        known = self._known.get(name)
        if known is not None and (
            known.identity != identity
            or known.events > len(events)
            or known.tail != _tail(events, known.events)
        ):
            self._forget([name])
            known = None
        with self._transaction() as connection:
            if known is None:
                encoded = name.encode("utf-8", "surrogatepass")
                made = connection.execute(
                    "INSERT INTO sessions(id, identity, revision, events, tail)"
                    " VALUES(?, ?, ?, ?, ?)",
                    (encoded, identity, revision, len(events), tail),
                )
                key, start = int(made.lastrowid or 0), 0
            else:
                key, start = known.key, known.events
                connection.execute(
                    "UPDATE sessions SET revision=?, events=?, tail=? WHERE key=?",
                    (revision, len(events), tail, key),
                )
            changed = self._extend(key, events, start, nodes)
        if known is not None and not changed:
            generation = known.generation
        else:
            generation = next(self._generations)
        self._known[name] = _Known(key, identity, revision, len(events), tail, generation)

    def _extend(
        self, key: int, events: Sequence[SessionEvent], start: int, nodes: Collection[int]
    ) -> bool:
        """Add the documents of the events from ``start`` on; say whether anything changed."""
        changed = False
        replaced = False
        for event in itertools.islice(events, start, None):
            if self._stopped:
                raise SessionQueryError("SESSION_QUERY_ABORTED", "the search index is closing")
            replaced = replaced or event.get("surfaceOp", "append") != "append"
            if (text := searchable_text(event)) is not None:
                changed = self._add(key, event, plain(text), nodes) or changed
        if replaced and start:
            changed = self._shadow(key, start, nodes) or changed
        return changed

    def _add(self, key: int, event: SessionEvent, shown: str, nodes: Collection[int]) -> bool:
        if not shown:
            return False
        compared = folded(shown)
        made = self._connection.execute(
            "INSERT INTO docs(session, seq, type, time, surface, size, folded, shown)"
            " VALUES(?, ?, ?, ?, ?, ?, ?, ?)",
            (
                key,
                event["seq"],
                replace_surrogates(event["type"]),
                event["time"],
                surface_class(event, nodes),
                len(compared),
                compared,
                None if shown == compared else shown,
            ),
        )
        if self._has_grams:
            self._connection.execute(
                "INSERT INTO grams(rowid, padded) VALUES(?, ?)",
                (made.lastrowid, compared + schema.PADDING),
            )
        return True

    def _shadow(self, key: int, before: int, nodes: Collection[int]) -> bool:
        rows = self._connection.execute(
            "SELECT id, seq FROM docs WHERE session=? AND seq<? AND surface='current'",
            (key, before),
        )
        gone = [(doc,) for doc, seq in rows if seq not in nodes]
        self._connection.executemany("UPDATE docs SET surface='shadowed' WHERE id=?", gone)
        return bool(gone)

    def _goes_on(self, known: _Known, live: LiveLog) -> bool:
        return known.identity == _identity(live.header) and known.tail == _tail(
            live.events, known.events
        )

    def _forget(self, ids: Iterable[str]) -> None:
        names = list(ids)
        if not names:
            return
        with self._transaction():
            for name in names:
                self._delete(self._known[name].key)
        for name in names:
            del self._known[name]

    def _delete(self, key: int) -> None:
        if self._has_grams:
            self._connection.execute(
                "INSERT INTO grams(grams, rowid, padded)"
                " SELECT 'delete', id, folded || ? FROM docs WHERE session=?",
                (schema.PADDING, key),
            )
        self._connection.execute("DELETE FROM docs WHERE session=?", (key,))
        self._connection.execute("DELETE FROM sessions WHERE key=?", (key,))

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        self._connection.execute("BEGIN")
        try:
            yield self._connection
        except BaseException:
            # An interrupt may have rolled it back already.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")


def _check_fresh(search: Search, generation: int) -> None:
    if search.cursor is not None and search.cursor.generation != generation:
        raise SessionQueryError(
            "SESSION_QUERY_STALE_CURSOR",
            "what is searched has changed since the page before; begin again without a cursor",
        )


def _identity(header: Mapping[str, Any]) -> str:
    return dumps([header["createdAt"], header.get("cwd"), header.get("parentSession")]).decode()


def _tail(events: Sequence[SessionEvent], count: int) -> str:
    """Return what tells the first ``count`` events of a log from those of another."""
    if not count:
        return ""
    return hashlib.sha256(dumps(events[count - 1])).hexdigest()
