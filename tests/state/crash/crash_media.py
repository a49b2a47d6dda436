"""The stores as a crash leaves them: what is stored, byte for byte, and what may change of it."""

from __future__ import annotations

import secrets
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, TypeAlias

from dsh.state.persistence.artifact.layout import find_artifact
from dsh.state.persistence.service import SessionDamage
from dsh.testing.persistence.medium import Medium

_PATIENCE_S = 20.0

Rows: TypeAlias = Sequence[Any]
"""What is stored of a session: bytes of a file, or the rows of a table."""


class Media(ABC):
    """A store and a way to look at it from beside.

    Attributes:
        medium: How it is mounted.
    """

    medium: Medium

    @abstractmethod
    def stored(self, id: str) -> Rows:
        """Return all that is stored of the events of a session, as it is on the medium."""

    @abstractmethod
    def another(self) -> Media:
        """Return an empty store of the same kind."""

    def settle(self) -> None:  # noqa: B027 - on this machine a dead writer does nothing
        """Wait until nothing is done any more for a writer that was killed."""

    def committed(self, stored: Rows, damage: SessionDamage | None) -> Rows:
        """Return what of it a repair must not touch."""
        assert damage is None, "a commit of this store is a whole or nothing"
        return stored


class FileCrash(Media):
    """A file a session."""

    def __init__(self, root: Path, compression: str) -> None:
        self.root = root
        self.compression = compression
        config = {"root": str(root), "compression": compression}
        self.medium = Medium("dsh.state.persistence.jsonl:JsonlPersistence", config)

    def stored(self, id: str) -> Rows:
        path = find_artifact(self.root, id)
        return b"" if path is None else path.read_bytes()

    def another(self) -> Media:
        return FileCrash(self.root.with_name(secrets.token_hex(6)), self.compression)

    def committed(self, stored: Rows, damage: SessionDamage | None) -> Rows:
        return stored[: len(stored) - (0 if damage is None else damage.lost_bytes)]


class DatabaseCrash(Media):
    """A database for all of them."""

    def __init__(self, path: Path, journal_mode: str) -> None:
        self.path = path
        self.journal_mode = journal_mode
        config = {"path": str(path), "journalMode": journal_mode}
        self.medium = Medium("dsh.state.persistence.sqlite:SqlitePersistence", config)

    def another(self) -> Media:
        folder = self.path.parent.with_name(secrets.token_hex(6))
        return DatabaseCrash(folder / self.path.name, self.journal_mode)

    def stored(self, id: str) -> Rows:
        with closing(sqlite3.connect(self.path)) as db:
            db.text_factory = bytes
            query = "SELECT * FROM events WHERE session_id = CAST(? AS TEXT) ORDER BY seq"
            return db.execute(query, (id.encode(),)).fetchall()


class ServerCrash(Media):
    """A schema of a server."""

    def __init__(self, dsn: str, **more: Any) -> None:
        self._dsn = dsn
        self._schema = f"crash{secrets.token_hex(6)}"
        config = {"dsnEnv": "DSH_TEST_DSN", "schema": self._schema, **more}
        self.medium = Medium("dsh.state.persistence.postgres:PostgresPersistence", config)

    def another(self) -> Media:
        return ServerCrash(self._dsn)

    def settle(self) -> None:
        import psycopg

        # What the server got before its client died it may still be about to commit.
        others = (
            "SELECT count(*) FROM pg_stat_activity "
            "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )
        end = time.monotonic() + _PATIENCE_S
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            while connection.execute(others).fetchone() != (0,):
                assert time.monotonic() < end, "the server still works for a client that is dead"
                time.sleep(0.005)

    def stored(self, id: str) -> Rows:
        import psycopg

        query: Any = f"SELECT * FROM {self._schema}.events WHERE session_id = %s ORDER BY seq"
        with psycopg.connect(self._dsn) as connection:
            return connection.execute(query, (id,)).fetchall()
