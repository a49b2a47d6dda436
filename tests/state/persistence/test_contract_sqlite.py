"""The SQLite store passes what every store must."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from dsh.testing.persistence.contract import Medium, PersistenceContract

PLUGIN = "dsh.state.persistence.sqlite:SqlitePersistence"


def database_medium(path: Path, **config: Any) -> Medium:
    def change(statement: str, id: str) -> None:
        db = sqlite3.connect(path)
        with db:
            db.execute(statement, (id,))
        db.close()

    def tear(id: str) -> None:
        row = "'step/start', 1, '{\"turn\":2', NULL, NULL, NULL"
        change(f"INSERT INTO events SELECT ?, max(seq) + 1, {row} FROM events", id)

    def spoil(id: str) -> None:
        change("DELETE FROM events WHERE session_id = ? AND seq = 2", id)

    return Medium(PLUGIN, {"path": str(path), **config}, tear, spoil)


class TestDatabase(PersistenceContract):
    @pytest.fixture
    def medium(self, tmp_path: Path) -> Medium:
        return database_medium(tmp_path / "store" / "sessions.db")


class TestDatabaseWithRollbackJournal(PersistenceContract):
    @pytest.fixture
    def medium(self, tmp_path: Path) -> Medium:
        return database_medium(tmp_path / "store" / "sessions.db", journalMode="truncate")
