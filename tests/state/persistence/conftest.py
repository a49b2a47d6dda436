"""Real servers for the stores that need one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from postgres_server import PostgresServer, new_server


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """The server of this worker; tests use schemas of their own in it."""
    server = new_server()
    yield server
    server.stop()


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    """A server that a test may kill."""
    server = new_server()
    yield server
    server.stop()
