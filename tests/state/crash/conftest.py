"""The stores that crash here. The server is that of the tests of stores, the loop that of loops."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

_TESTS = Path(__file__).parents[2]
for _place in (_TESTS / "state" / "persistence", _TESTS / "execution" / "loop"):
    if str(_place) not in sys.path:
        sys.path.append(str(_place))

from crash_media import DatabaseCrash, FileCrash, Media, ServerCrash  # noqa: E402
from postgres_server import new_server  # noqa: E402

if TYPE_CHECKING:
    from postgres_server import PostgresServer


@pytest.fixture(scope="session")
def crash_server() -> Iterator[PostgresServer]:
    """A server that outlives the tests; its clients crash."""
    server = new_server()
    yield server
    server.stop()


@pytest.fixture
def killable_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[PostgresServer]:
    """A server that a test may kill."""
    server = new_server()
    monkeypatch.setenv("DSH_TEST_DSN", server.dsn)
    yield server
    server.stop()


@pytest.fixture(params=["zstd", "plain", "sqlite", "sqlite-rollback"])
def media(request: pytest.FixtureRequest, tmp_path: Path) -> Media:
    """Each store on this machine, empty."""
    match request.param:
        case "zstd":
            return FileCrash(tmp_path / "sessions", "zstd")
        case "plain":
            return FileCrash(tmp_path / "sessions", "none")
        case "sqlite":
            return DatabaseCrash(tmp_path / "store" / "sessions.db", "wal")
        case _:
            return DatabaseCrash(tmp_path / "store" / "sessions.db", "truncate")


@pytest.fixture
def server_media(crash_server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> Media:
    """The store on a server, empty."""
    monkeypatch.setenv("DSH_TEST_DSN", crash_server.dsn)
    return ServerCrash(crash_server.dsn)
