"""The statements that find and rank.

A text is in an event when it is in its folded text, letter by letter; an index of all runs of three
letters only narrows down where to look. Queries are data everywhere, so that nothing in them is
syntax.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, assert_never

from dsh.base.text import replace_surrogates
from dsh.base.values import value
from dsh.state.query.filters import checked_text
from dsh.state.query.service import (
    EventFilter,
    SeqBetween,
    SessionQueryError,
    SurfaceClass,
    SurfaceIs,
    TextHas,
    TimeBetween,
    TypeIs,
)
from dsh.state.query.sqlite.schema import PADDING

if TYPE_CHECKING:
    from dsh.state.query.sqlite.request import Search

_MOST_GRAMS: Final = 64
"""Runs of a long query that are looked up; more narrow nothing down."""
_MOST_BEGINNINGS: Final = 200
"""Runs that a short query may begin; with more of them, all texts are looked at."""
_GRAM: Final = 3
_LAST: Final = "\U0010ffff"
_BIGGEST: Final = 2**63 - 1

# How many bytes are gone without the matches is how often they are in it, in a fixed unit.
_BYTES: Final = "length(CAST(d.folded AS BLOB))"
_REST: Final = "length(CAST(replace(d.folded, :needle, '') AS BLOB))"
_HITS: Final = f"{_BYTES} - {_REST} AS hits"
_ORDER: Final = "hits DESC, size, time DESC"


@value
class Found:
    """One hit.

    Attributes:
        session_id: The id of its session.
        text: The whole text, as it is shown.
        at: Where the first match in it is.
    """

    session_id: str
    seq: int
    type: str
    time: int
    surface: SurfaceClass
    text: str
    at: int


def rank_sessions(
    connection: sqlite3.Connection, has_grams: bool, search: Search, keys: Sequence[int] | None
) -> tuple[tuple[Found, ...], bool]:
    """Return the best event of each session of a page, and whether there are more.

    Args:
        connection: The index.
        has_grams: Runs of three are indexed.
        search: The search.
        keys: The sessions that count; all when absent.
    """
    conditions, values = _conditions(search)
    if keys is not None:
        conditions.append("d.session IN (SELECT value FROM json_each(:keys))")
        values["keys"] = json.dumps(keys)
    source = "docs AS d"
    if has_grams and (grams := _grams_of(connection, search.needle)) is not None:
        source = "grams JOIN docs AS d ON d.id = grams.rowid"
        conditions.insert(0, "grams MATCH :grams")
        values["grams"] = grams
    # Sorting is the dear part when a text is everywhere. So first the sessions are found that can
    # be on the page, by their highest count, and then only what has this count is sorted.
    statement = f"""
        WITH hit AS MATERIALIZED (
            SELECT d.id AS doc, d.session, d.seq, d.time, d.size, {_HITS}
            FROM {source} WHERE {" AND ".join(conditions)}
        ), top AS MATERIALIZED (
            SELECT session, max(hits) AS highest FROM hit GROUP BY session
        ), bar AS (
            SELECT min(highest) AS lowest
            FROM (SELECT highest FROM top ORDER BY highest DESC LIMIT :skip + :most)
        ), best AS (
            SELECT hit.*, row_number() OVER (
                PARTITION BY hit.session ORDER BY {_ORDER}, seq DESC
            ) AS place
            FROM hit JOIN top ON top.session = hit.session AND hits = highest
            WHERE highest >= (SELECT lowest FROM bar)
        )
        SELECT doc FROM best JOIN sessions ON sessions.key = best.session WHERE place = 1
        ORDER BY {_ORDER}, sessions.id, seq DESC LIMIT :most OFFSET :skip
    """
    return _page(connection, statement, values, search)


def rank_events(
    connection: sqlite3.Connection, search: Search, key: int
) -> tuple[tuple[Found, ...], bool]:
    """Return the events of a session on a page, and whether there are more."""
    conditions, values = _conditions(search)
    statement = f"""
        SELECT d.id AS doc, d.seq, d.time, d.size, {_HITS}
        FROM docs AS d WHERE d.session = :key AND {" AND ".join(conditions)}
        ORDER BY {_ORDER}, seq DESC LIMIT :most OFFSET :skip
    """
    return _page(connection, statement, values | {"key": key}, search)


def _page(
    connection: sqlite3.Connection, statement: str, values: dict[str, Any], search: Search
) -> tuple[tuple[Found, ...], bool]:
    offset = 0 if search.cursor is None else search.cursor.offset
    values |= {"most": search.limit + 1, "skip": min(offset, 2**31)}
    docs = [row[0] for row in connection.execute(statement, values)]
    found = tuple(_found(connection, doc, search.needle) for doc in docs[: search.limit])
    return found, len(docs) > search.limit


def _found(connection: sqlite3.Connection, doc: int, needle: str) -> Found:
    encoded, seq, kind, time, surface, folded, shown = connection.execute(
        "SELECT sessions.id, seq, type, time, surface, folded, shown"
        " FROM docs JOIN sessions ON sessions.key = docs.session WHERE docs.id = ?",
        (doc,),
    ).fetchone()
    session_id = encoded.decode("utf-8", "surrogatepass")
    text = folded if shown is None else shown
    return Found(session_id, seq, kind, time, surface, text, folded.find(needle))


def _conditions(search: Search) -> tuple[list[str], dict[str, Any]]:
    conditions = ["instr(d.folded, :needle)"]
    values: dict[str, Any] = {"needle": search.needle}
    for number, each in enumerate(search.event_filters):
        name = f"f{number}"
        condition, own = _condition(each, name)
        conditions.append(condition)
        values |= own
    return conditions, values


def _condition(filter: EventFilter, name: str) -> tuple[str, dict[str, Any]]:
    match filter:
        case SeqBetween(start, end):
            return _span("d.seq", start, end, name)
        case TimeBetween(start, end):
            return _span("d.time", start, end, name)
        case TypeIs(values):
            return _choice("d.type", [replace_surrogates(each) for each in values], name)
        case SurfaceIs(values):
            return _choice("d.surface", list(values), name)
        case TextHas(text):
            return f"instr(d.folded, :{name})", {name: checked_text(text, _never)}
        case _:
            assert_never(filter)


def _span(
    column: str, start: float | None, end: float | None, name: str
) -> tuple[str, dict[str, Any]]:
    low = -_BIGGEST if start is None else max(start, -_BIGGEST)
    high = _BIGGEST if end is None else min(end, _BIGGEST)
    condition = f"{column} BETWEEN :{name}_low AND :{name}_high"
    return condition, {f"{name}_low": low, f"{name}_high": high}


def _choice(column: str, values: list[str], name: str) -> tuple[str, dict[str, Any]]:
    condition = f"{column} IN (SELECT value FROM json_each(:{name}))"
    return condition, {name: json.dumps(values)}


def _grams_of(connection: sqlite3.Connection, needle: str) -> str | None:
    """Return what finds all texts that can have a text; ``None`` when they must all be read."""
    if len(needle) >= _GRAM:
        runs = dict.fromkeys(needle[at : at + _GRAM] for at in range(len(needle) - _GRAM + 1))
        return " AND ".join(map(_quoted, list(runs)[:_MOST_GRAMS]))
    if needle.isascii():
        return None
    # One or two letters of a large alphabet, which may be a word, begin few of the runs.
    rows = connection.execute(
        "SELECT term FROM gram_terms WHERE term >= ? AND term <= ? LIMIT ?",
        (needle, needle + _LAST * 2, _MOST_BEGINNINGS + 1),
    )
    terms = [term for (term,) in rows]
    if len(terms) > _MOST_BEGINNINGS:
        return None
    return " OR ".join(map(_quoted, terms or [(needle + PADDING)[:_GRAM]]))


def _quoted(run: str) -> str:
    return '"' + run.replace('"', '""') + '"'


def _never(problem: str) -> SessionQueryError:
    return SessionQueryError("SESSION_QUERY_INVALID_FILTER", problem)
