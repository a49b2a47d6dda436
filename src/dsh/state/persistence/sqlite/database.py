"""One database: its connections, its transactions, and what it says when it fails."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from dsh.state.persistence.errors import SessionPersistenceCorruptionError, UnreadableLog
from dsh.state.persistence.sqlite.errors import DatabaseFailed
from dsh.state.persistence.sqlite.schema import Options, connect, connect_reader, lease_path

Work: TypeAlias = Callable[[sqlite3.Connection], Any]
"""What one job of a transaction does."""


class Database:
    """The file, opened when it is first used. Every method blocks.

    One thread may write while another reads if `has_reader`; otherwise one thread does both.

    Args:
        options: Where it is and how it is opened.

    Attributes:
        options: Where it is and how it is opened.
        has_reader: Whether reading has a connection of its own.
        source: Names this database and no other, once it is open.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.has_reader = options.path is not None and options.journal_mode == "wal"
        self.source = ""
        self._writer: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        self._identities: dict[Path, os.stat_result] = {}

    def transact(self, jobs: Sequence[Callable[[], Work]]) -> list[Any]:
        """Do several jobs in one transaction, each as a whole or not at all.

        Returns:
            What each returned, or the exception it raised, once all that was done is durable.

        Raises:
            DatabaseFailed: nothing was done.
        """
        ready = [_attempt(job) for job in jobs]
        db = self._writing()
        with _told(self.options):
            db.execute("BEGIN IMMEDIATE")
            try:
                self._check_in_place()
                outcomes = [_in_savepoint(db, self.options, work) for work in ready]
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise
        return outcomes

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection | None]:
        """Give a connection that sees one moment of the database; ``None`` when there is none."""
        path = self.options.path
        try:
            db = self._open_reader()
            if db is not None:
                db.execute("BEGIN")
            try:
                yield db
            finally:
                if db is not None and db.in_transaction:
                    db.execute("ROLLBACK")
        except UnreadableLog as error:
            if path is None or error.path is not None:
                raise
            raise error.at(path) from error
        except sqlite3.OperationalError as error:
            raise _failure(self.options, error) from error
        except sqlite3.Error as error:
            problem = f"SQLite cannot read it: {error}"
            raise SessionPersistenceCorruptionError(problem, path=path) from error

    def close(self) -> None:
        """Close the database."""
        for db in (self._reader, self._writer):
            if db is not None:
                db.close()
        self._reader = self._writer = None

    def _open_reader(self) -> sqlite3.Connection | None:
        if not self.has_reader:
            path = self.options.path
            return None if path is not None and not path.exists() else self._writing()
        if self._reader is None:
            assert self.options.path is not None
            if not self.options.path.exists():
                return None
            self._reader = connect_reader(self.options)
            self._recognise(self._reader)
        return self._reader

    def _writing(self) -> sqlite3.Connection:
        if self._writer is None:
            self._writer = connect(self.options)
            self._recognise(self._writer)
            if (path := self.options.path) is not None:
                paths = (path, lease_path(path))
                self._identities = {each: os.stat(each) for each in paths}
        return self._writer

    def _recognise(self, db: sqlite3.Connection) -> None:
        (store,) = db.execute("SELECT store_id FROM persistence_state").fetchone()
        if self.options.path is None:
            self.source = f"memory:store:{store.decode()}"
            return
        found = os.stat(self.options.path)
        self.source = f"file:{found.st_dev}:{found.st_ino}:store:{store.decode()}"

    def _check_in_place(self) -> None:
        """Refuse to write to files that nobody will find again."""
        for path, known in self._identities.items():
            try:
                found = os.lstat(path)
            except FileNotFoundError:
                problem = "it was removed; restart to begin a new one"
                raise DatabaseFailed(path, problem) from None
            if not os.path.samestat(found, known):
                raise DatabaseFailed(path, "it was replaced; restart to use the new one")


def _attempt(job: Callable[[], Work]) -> Work:
    try:
        return job()
    except Exception as error:
        failure = error

        def fail(_: sqlite3.Connection) -> None:
            raise failure

        return fail


def _in_savepoint(db: sqlite3.Connection, options: Options, work: Work) -> Any:
    """Do one job of several; what it raises is its outcome, unless all are lost with it."""
    db.execute("SAVEPOINT job")
    try:
        outcome = work(db)
    except Exception as error:
        if not db.in_transaction:
            raise
        db.execute("ROLLBACK TO job")
        outcome = error
        if isinstance(error, sqlite3.Error):
            outcome = _failure(options, error)
            outcome.__cause__ = error
    db.execute("RELEASE job")
    return outcome


@contextmanager
def _told(options: Options) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise _failure(options, error) from error


def _failure(options: Options, error: sqlite3.Error) -> DatabaseFailed:
    problem = str(error)
    if "locked" in problem:
        problem = f"another process kept it locked for {options.busy_s:g} s; try again later"
    return DatabaseFailed(options.shown, problem)
