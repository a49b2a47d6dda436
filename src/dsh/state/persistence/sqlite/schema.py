"""The database of sessions: its tables, how it is opened, and when it is refused.

The tables are those of the public format, which knows no leases: these are in a file beside the
database, attached to it as ``lease``.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import time
import uuid
from pathlib import Path
from typing import Final

from dsh.base.files import fsync_dir
from dsh.base.values import value
from dsh.state.persistence.sqlite.errors import DatabaseFailed, UnusableDatabase

APPLICATION_ID: Final = 0x44534850
VERSION: Final = 17
_LEASE_APPLICATION_ID: Final = 0x4453484C
_LEASE_VERSION: Final = 1
_FOLDER_MODE = 0o700
_FILE_MODE = 0o600
_BUSY_PAUSE_S = 0.01
_MAGIC = b"SQLite format 3\0"
_HEAD = 108  # the header, and that of the table of tables

_TABLES = """
CREATE TABLE persistence_state(
    singleton INTEGER PRIMARY KEY CHECK(singleton = 1), store_id TEXT NOT NULL) STRICT;
CREATE TABLE sessions(
    id TEXT PRIMARY KEY, version INTEGER NOT NULL, created_at INTEGER NOT NULL, cwd TEXT,
    parent_session TEXT, seed_length INTEGER, origin TEXT, delegation_depth INTEGER,
    agent_preset TEXT, incarnation TEXT NOT NULL, revision INTEGER NOT NULL) STRICT;
CREATE TABLE events(
    session_id TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE, seq INTEGER NOT NULL,
    type TEXT NOT NULL, time INTEGER NOT NULL, data ANY NOT NULL, source_event_seqs ANY,
    surface_op TEXT, ignorable INTEGER CHECK(ignorable IS NULL OR ignorable IN (0, 1)),
    PRIMARY KEY(session_id, seq)) STRICT;
"""
_LEASE_TABLES = """
CREATE TABLE lease.leases(session_id TEXT PRIMARY KEY, record TEXT NOT NULL) STRICT;
"""
_COLUMNS: Final = {
    "persistence_state": "singleton INTEGER, store_id TEXT",
    "sessions": (
        "id TEXT, version INTEGER, created_at INTEGER, cwd TEXT, parent_session TEXT, "
        "seed_length INTEGER, origin TEXT, delegation_depth INTEGER, agent_preset TEXT, "
        "incarnation TEXT, revision INTEGER"
    ),
    "events": (
        "session_id TEXT, seq INTEGER, type TEXT, time INTEGER, data ANY, "
        "source_event_seqs ANY, surface_op TEXT, ignorable INTEGER"
    ),
}


@value
class Options:
    """How a database is opened.

    Attributes:
        path: The file; ``None`` for one in memory.
        journal_mode: How SQLite makes commits safe.
        busy_s: How long to wait for another writer.
    """

    path: Path | None
    journal_mode: str
    busy_s: float

    @property
    def shown(self) -> str:
        """The path for people."""
        return ":memory:" if self.path is None else str(self.path)


def check_path(path: Path) -> None:
    """Refuse a place that others could write to, or that holds something else.

    Raises:
        UnusableDatabase: says what is wrong with it.
    """
    folder = path.parent
    if folder.exists():
        found = os.stat(folder)
        if not stat.S_ISDIR(found.st_mode):
            raise UnusableDatabase(path, "is not in a folder")
        if found.st_uid != os.getuid():
            raise UnusableDatabase(path, "is in a folder of another user")
        if found.st_mode & 0o022:
            problem = f"is in a folder that others may write to; run chmod go-w {str(folder)!r}"
            raise UnusableDatabase(path, problem)
    for file in (path, lease_path(path)):
        _check_file(file)
    _check_content(path, APPLICATION_ID, VERSION)
    _check_content(lease_path(path), _LEASE_APPLICATION_ID, _LEASE_VERSION)


def lease_path(path: Path) -> Path:
    """Return the file of the leases of a database."""
    return path.with_name(path.name + ".leases")


def connect(options: Options) -> sqlite3.Connection:
    """Open the database for writing, after making it when it is missing.

    Raises:
        UnusableDatabase: the file is not one of ours, or not safe; it is untouched.
        DatabaseFailed: SQLite could not open it.
    """
    path = options.path
    if path is not None:
        check_path(path)
        _make(path)
        _make(lease_path(path))
    end = time.monotonic() + options.busy_s
    db = _open(options)
    try:
        # Nothing is set, not even the journal mode, before it is known to be ours.
        is_made = _check_main(db, Path(options.shown))
        lease = ":memory:" if path is None else lease_path(path).as_uri() + "?mode=rw"
        db.execute("ATTACH DATABASE ? AS lease", (lease,))
        for attached in ("main", "lease"):
            _set_journal(db, attached, options, end)
        for pragma, wanted in (("foreign_keys", 1), ("trusted_schema", 0)):
            _set(db, pragma, wanted, options)
        for attached, level in (("main", 2), ("lease", 1)):
            _set(db, f"{attached}.synchronous", level, options)
        if not is_made or _is_empty(db, "lease"):
            _initialise(db, options)
    except sqlite3.Error as error:
        db.close()
        raise DatabaseFailed(options.shown, str(error)) from error
    except BaseException:
        db.close()
        raise
    return db


def connect_reader(options: Options) -> sqlite3.Connection:
    """Open a database that exists a second time, for reading beside the writer.

    Raises:
        UnusableDatabase: the file is not one of ours, or not safe; it is untouched.
        DatabaseFailed: SQLite could not open it.
    """
    assert options.path is not None, "a database in memory has one connection"
    check_path(options.path)
    db = _open(options)
    try:
        if not _check_main(db, options.path):
            connect(options).close()  # its maker did not come to the end
        db.execute("PRAGMA query_only = ON")
    except sqlite3.Error as error:
        db.close()
        raise DatabaseFailed(options.shown, str(error)) from error
    except BaseException:
        db.close()
        raise
    return db


def _open(options: Options) -> sqlite3.Connection:
    path = options.path
    try:
        db = sqlite3.connect(
            ":memory:" if path is None else path.as_uri() + "?mode=rw",
            uri=path is not None,
            timeout=options.busy_s,
            isolation_level=None,
            check_same_thread=False,
        )
        # Texts may hold what UTF-8 cannot: they are decoded where they are used.
        db.text_factory = bytes
        db.execute("PRAGMA mmap_size = 0")
    except sqlite3.Error as error:
        raise DatabaseFailed(options.shown, str(error)) from error
    return db


def _make(path: Path) -> None:
    missing = [folder for folder in (path.parent, *path.parent.parents) if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(_FOLDER_MODE, exist_ok=True)
        fsync_dir(folder.parent)
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _FILE_MODE))
    except FileExistsError:
        return
    fsync_dir(path.parent)


def _check_file(path: Path) -> None:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISREG(found.st_mode):
        raise UnusableDatabase(path, "is not a regular file")
    if found.st_uid != os.getuid():
        raise UnusableDatabase(path, "belongs to another user")
    if found.st_mode & 0o077:
        problem = f"can be opened by others; run chmod 600 {str(path)!r}"
        raise UnusableDatabase(path, problem)


def _check_content(path: Path, application_id: int, version: int) -> None:
    """Look at the first bytes of a file, without SQLite, which would change what is beside it."""
    wal = path.with_name(path.name + "-wal")
    # The journal first: nobody begins one before the database has its first page.
    has_journal = wal.exists() and wal.stat().st_size > 0
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except FileNotFoundError:
        return
    if not head and has_journal:
        # SQLite would take the journal for an old one, and remove it.
        raise UnusableDatabase(path, f"is empty, but {str(wal)!r} is not: it was damaged")
    if not head or has_journal:
        return  # nothing there yet; or the truth is in the journal, and is asked for later
    if len(head) < _HEAD or not head.startswith(_MAGIC):
        raise UnusableDatabase(path, "is not an SQLite database; name another path")
    found_version = int.from_bytes(head[60:64], "big")
    if not any(head[68:72]) and not found_version and not any(head[103:105]):
        return  # it has no table yet: its maker did not come to the end
    _check_identity(
        path, int.from_bytes(head[68:72], "big"), found_version, application_id, version
    )


def _check_identity(path: Path, app: int, found: int, application_id: int, version: int) -> None:
    if app != application_id:
        raise UnusableDatabase(path, "belongs to another program; name another path")
    if found > version:
        raise UnusableDatabase(path, f"has version {found}, made by a newer dsh: upgrade this one")
    if found < version:
        raise UnusableDatabase(path, f"has version {found}, for which there is no upgrade")


def _initialise(db: sqlite3.Connection, options: Options) -> None:
    path = Path(options.shown)
    db.execute("BEGIN IMMEDIATE")
    try:
        if not _check_main(db, path):
            _run(db, _TABLES)
            db.execute("INSERT INTO persistence_state VALUES (1, ?)", (str(uuid.uuid4()),))
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            db.execute(f"PRAGMA user_version = {VERSION}")
        if _is_empty(db, "lease"):
            _run(db, _LEASE_TABLES)
            db.execute(f"PRAGMA lease.application_id = {_LEASE_APPLICATION_ID}")
            db.execute(f"PRAGMA lease.user_version = {_LEASE_VERSION}")
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


def _run(db: sqlite3.Connection, script: str) -> None:
    for statement in script.split(";"):
        if statement.strip():
            db.execute(statement)


def _is_empty(db: sqlite3.Connection, attached: str) -> bool:
    (count,) = db.execute(f"SELECT count(*) FROM {attached}.sqlite_schema").fetchone()
    return bool(count == 0) and _number(db, f"{attached}.application_id") == 0


def _check_main(db: sqlite3.Connection, path: Path) -> bool:
    """Tell whether the database is one of sessions; an empty one is not yet."""
    if _is_empty(db, "main"):
        return False
    app, version = _number(db, "application_id"), _number(db, "user_version")
    _check_identity(path, app, version, APPLICATION_ID, VERSION)
    _check_tables(db, path)
    return True


def _check_tables(db: sqlite3.Connection, path: Path) -> None:
    names = db.execute(
        "SELECT name FROM main.sqlite_schema WHERE name NOT LIKE 'sqlite_autoindex%'"
    )
    found = {name.decode() for (name,) in names}
    if found != set(_COLUMNS):
        raise UnusableDatabase(path, "does not have the tables of its version")
    for table, wanted in _COLUMNS.items():
        info = db.execute(f"PRAGMA main.table_xinfo({table})").fetchall()
        columns = ", ".join(f"{row[1].decode()} {row[2].decode()}" for row in info)
        strict = db.execute(f"PRAGMA main.table_list({table})").fetchone()[5]
        if columns != wanted or not strict:
            raise UnusableDatabase(path, f"has another table {table!r} than its version has")


def _set_journal(db: sqlite3.Connection, attached: str, options: Options, end: float) -> None:
    wanted = "memory" if options.path is None else options.journal_mode
    while True:
        try:
            (mode,) = db.execute(f"PRAGMA {attached}.journal_mode = {wanted}").fetchone()
        except sqlite3.OperationalError:
            # SQLite does not wait for others here, whatever its busy timeout.
            if time.monotonic() >= end:
                raise
            time.sleep(_BUSY_PAUSE_S)
            continue
        if mode.decode() != wanted:
            problem = f"cannot use the journal mode {wanted!r}, only {mode.decode()!r}"
            raise DatabaseFailed(options.shown, problem)
        return


def _set(db: sqlite3.Connection, pragma: str, wanted: int, options: Options) -> None:
    db.execute(f"PRAGMA {pragma} = {wanted}")
    if _number(db, pragma) != wanted:
        raise DatabaseFailed(options.shown, f"this SQLite ignores {pragma} = {wanted}")


def _number(db: sqlite3.Connection, pragma: str) -> int:
    (found,) = db.execute(f"PRAGMA {pragma}").fetchone()
    return int(found)
