"""The PostgreSQL store passes what every store must."""

from __future__ import annotations

import secrets
from typing import Any

import pytest
from postgres_server import PostgresServer

from dsh.testing.persistence.contract import Medium, PersistenceContract

PLUGIN = "dsh.state.persistence.postgres:PostgresPersistence"


def server_medium(server: PostgresServer, patch: pytest.MonkeyPatch, **config: Any) -> Medium:
    """Return the store in a new schema."""
    schema = f"t{secrets.token_hex(6)}"
    patch.setenv("DSH_TEST_DSN", server.dsn)

    def change(statement: str, id: str) -> None:
        import psycopg

        with psycopg.connect(server.dsn) as connection:
            query: Any = statement.replace("{s}", schema)
            connection.execute(query, {"id": id})

    def tear(id: str) -> None:
        row = '%(id)s, max(seq) + 1, \'{"type":"turn/st\''
        change(f"INSERT INTO {{s}}.events SELECT {row} FROM {{s}}.events", id)

    def spoil(id: str) -> None:
        change("DELETE FROM {s}.events WHERE session_id = %(id)s AND seq = 2", id)

    settings = {"dsnEnv": "DSH_TEST_DSN", "schema": schema, **config}
    return Medium(PLUGIN, settings, tear, spoil)


class TestServer(PersistenceContract):
    @pytest.fixture
    def medium(self, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> Medium:
        return server_medium(postgres, monkeypatch)
