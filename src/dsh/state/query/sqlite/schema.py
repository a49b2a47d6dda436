"""The index file: made, recognised, and made anew when it is of another version."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Final

from dsh.state.query.service import SessionQueryError

IN_MEMORY: Final = ":memory:"
APPLICATION_ID: Final = 0x44534851
"""Marks the files of this search, whatever their version."""
VERSION: Final = 1001
"""Of this layout; lower numbers are of other builds."""

_TABLES: Final = """
CREATE TABLE sessions(
    key INTEGER PRIMARY KEY,
    id BLOB NOT NULL UNIQUE,
    identity TEXT NOT NULL,
    revision TEXT,
    events INTEGER NOT NULL,
    tail TEXT NOT NULL
);
CREATE TABLE docs(
    id INTEGER PRIMARY KEY,
    session INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    type TEXT NOT NULL,
    time INTEGER NOT NULL,
    surface TEXT NOT NULL,
    size INTEGER NOT NULL,
    folded TEXT NOT NULL,
    shown TEXT
);
CREATE INDEX docs_of_session ON docs(session, seq);
"""
_GRAMS: Final = """
CREATE VIRTUAL TABLE grams USING fts5(
    padded, content='', detail=none,
    tokenize='trigram case_sensitive 1'
);
INSERT INTO grams(grams, rank) VALUES('hashsize', 16777216);
"""
_TERMS: Final = "CREATE VIRTUAL TABLE temp.gram_terms USING fts5vocab(main, grams, row)"
PADDING: Final = "\x01\x01"
"""Follows each text in the index, so that its last characters begin a run of three, too."""
_OURS: Final = frozenset({"sessions", "docs", "grams"})
_OF_OTHER_BUILDS: Final = frozenset(
    {"search_state", "persisted_sessions", "persisted_docs", "live_sessions", "live_docs"}
)
_SHADOWS: Final = ("_data", "_idx", "_content", "_docsize", "_config")


def connect(path: str, journal_mode: str) -> tuple[sqlite3.Connection, bool]:
    """Open the index, and make it when there is none that can be used.

    Returns:
        The connection, and whether substrings are indexed; old libraries cannot.

    Raises:
        SessionQueryError: ``INVALID_CONFIG``, when the file is something else;
            ``INDEX_FAILED``, when another process has it.
        sqlite3.Error: the file is damaged or cannot be opened.
    """
    if path != IN_MEMORY:
        _make_private(Path(path))
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=0)
    try:
        _prepare(connection, path, journal_mode)
        if has_grams := "grams" in _tables(connection):
            connection.execute(_TERMS)
        return connection, has_grams
    except BaseException:
        connection.close()
        raise


def _make_private(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # SQLite gives its other files the mode of this one: they hold what was said in sessions.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))


def _prepare(connection: sqlite3.Connection, path: str, journal_mode: str) -> None:
    connection.execute("PRAGMA trusted_schema=OFF")
    connection.execute("PRAGMA locking_mode=EXCLUSIVE")
    connection.execute("PRAGMA temp_store=MEMORY")
    connection.execute("PRAGMA cache_size=-65536")
    _check_ours(connection, path)
    if path != IN_MEMORY:
        connection.execute(f"PRAGMA journal_mode={journal_mode}")
        connection.execute("PRAGMA synchronous=NORMAL")
    # The first write takes the lock, and keeps it: what this process knows of the index holds.
    connection.execute("BEGIN EXCLUSIVE")
    if _number(connection, "user_version") != VERSION:
        for name in _tables(connection) - _shadow_names(_tables(connection)):
            connection.execute(f'DROP TABLE "{name}"')
        _create(connection)
    connection.execute("COMMIT")


def _create(connection: sqlite3.Connection) -> None:
    for statement in _TABLES.split(";"):
        connection.execute(statement)
    try:
        for statement in _GRAMS.split(";"):
            connection.execute(statement)
    except sqlite3.OperationalError as error:
        if "tokenize" not in str(error) and "fts5" not in str(error):
            raise
    connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version={VERSION}")


def _check_ours(connection: sqlite3.Connection, path: str) -> None:
    names = _tables(connection)
    if not names:
        if _number(connection, "application_id") not in (0, APPLICATION_ID):
            raise _foreign(path, "it is marked as another program's")
        return
    if _number(connection, "application_id") != APPLICATION_ID:
        raise _foreign(path, "it is another program's database")
    unknown = names - _OURS - _OF_OTHER_BUILDS - _shadow_names(names)
    if unknown:
        raise _foreign(path, f"it has the unknown table {min(unknown)!r}")


def _shadow_names(names: set[str]) -> set[str]:
    """Return the tables that belong to a full-text table and go with it."""
    return {f"{name}{suffix}" for name in names for suffix in _SHADOWS} & names


def _tables(connection: sqlite3.Connection) -> set[str]:
    rows = connection.execute("SELECT name FROM sqlite_schema WHERE type != 'index'")
    return {name for (name,) in rows}


def _number(connection: sqlite3.Connection, pragma: str) -> int:
    number: int = connection.execute(f"PRAGMA {pragma}").fetchone()[0]
    return number


def _foreign(path: str, problem: str) -> SessionQueryError:
    return SessionQueryError(
        "SESSION_QUERY_INVALID_CONFIG",
        f"{path!r} cannot be the search index, because {problem}; give another path",
    )
