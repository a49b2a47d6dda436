"""The PostgreSQL store: its address, its tables, and servers that go away."""

from __future__ import annotations

import asyncio
import secrets
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
from postgres_server import PostgresServer
from state_logs import say, whole_turn
from test_contract_postgres import PLUGIN, server_medium

from dsh.kernel import Context
from dsh.kernel.errors import ValidationError
from dsh.state.persistence.errors import SessionConflict
from dsh.state.persistence.postgres import Config, PostgresPersistence
from dsh.state.persistence.postgres.backend import PostgresBackend
from dsh.state.persistence.postgres.errors import ServerFailed, ServerUnusable
from dsh.state.persistence.postgres.pool import Connections
from dsh.state.session.session import Session
from dsh.state.session.store import LocalSessionStore
from dsh.testing.persistence.medium import Host, Medium

SECRET = "hunter2-of-the-test"


@pytest.fixture
async def host(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Host]:
    host = await Host(server_medium(postgres, monkeypatch)).open()
    yield host
    await host.close()


def session_with_a_turn(host: Host, id: str = "s") -> Session:
    session = host.store.create(id)
    whole_turn(session)
    return session


@pytest.mark.timeout(120)
async def test_a_server_that_is_killed_while_it_writes_has_lost_nothing_it_acknowledged(
    own_postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    medium = server_medium(own_postgres, monkeypatch, connectTimeoutMs=1000)
    host, reader = await Host(medium).open(), await Host(medium).open()
    session = host.store.create("s")
    acknowledged, enough = 0, asyncio.Event()

    async def write() -> None:
        nonlocal acknowledged
        for turn in range(1, 10_000):
            whole_turn(session, turn)
            await host.flush(session)
            acknowledged = session.seq
            if turn == 20:
                enough.set()

    for _ in range(3):
        enough.clear()
        writing = asyncio.create_task(write())
        await enough.wait()
        await asyncio.to_thread(own_postgres.kill)
        with pytest.raises(ServerFailed):
            await writing
        await asyncio.to_thread(own_postgres.start)

        stored = await reader.stored("s")
        assert len(stored) >= acknowledged
        assert stored == list(session.events[: len(stored)])
        await host.flush(session)
        assert await reader.stored("s") == list(session.events)
    await host.close()
    await reader.close()


class Unheard(Connections):
    """Connections that fail around a commit, as a network does: before it, or with its answer."""

    fails = ""

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        async with super().transaction() as cursor:
            yield cursor
            self._fail_if("before")
        self._fail_if("after")

    def _fail_if(self, when: str) -> None:
        if self.fails == when:
            self.fails = ""
            raise ServerFailed("test", "the connection was lost")


@pytest.fixture
async def unheard(postgres: PostgresServer) -> AsyncIterator[Unheard]:
    async def dsn() -> str:
        return postgres.dsn

    connections = Unheard(dsn, f"t{secrets.token_hex(6)}", 2, 10)
    yield connections
    await connections.close()


@pytest.mark.parametrize("fails", ["before", "after"])
async def test_a_commit_whose_answer_was_lost_is_done_once(unheard: Unheard, fails: str) -> None:
    backend, session = PostgresBackend(unheard), Session.create("s")
    whole_turn(session)
    lease, position = await backend.create(session.header, session.events)
    say(session, "more")
    unheard.fails = fails
    with pytest.raises(ServerFailed):
        await backend.append("s", position, session.events[10:], lease)
    say(session, "meanwhile")
    later = await backend.append("s", position, session.events[10:], lease)
    say(session, "and on")
    await backend.append("s", later, session.events[12:], lease)
    log = await backend.load("s")
    assert log is not None
    assert log.events == list(session.events)
    for known in (position, later):
        with pytest.raises(SessionConflict, match="another process"):
            await backend.append("s", known, session.events[12:], lease)
    await backend.close()


async def test_a_commit_in_doubt_alone_is_not_written_again(unheard: Unheard) -> None:
    backend, session = PostgresBackend(unheard), Session.create("s")
    whole_turn(session)
    lease, position = await backend.create(session.header, session.events[:9])
    unheard.fails = "after"
    with pytest.raises(ServerFailed):
        await backend.append("s", position, session.events[9:], lease)
    grown = await backend.append("s", position, session.events[9:], lease)
    assert (grown.count, grown.number) == (10, 2)
    await backend.close()


async def test_a_host_that_falls_silent_in_a_transaction_blocks_no_other(
    postgres: PostgresServer,
) -> None:
    async def dsn() -> str:
        return postgres.dsn

    schema = f"t{secrets.token_hex(6)}"
    silent = Connections(dsn, schema, 1, 10, silence_s=0.2)
    other = PostgresBackend(Connections(dsn, schema, 1, 10), lease_s=0.1)
    session = Session.create("s")
    whole_turn(session)
    lease, _ = await other.create(session.header, session.events)
    await other.let_go(lease)

    async def write_and_fall_silent() -> None:
        async with silent.transaction() as db:
            await db.execute(f"UPDATE {schema}.sessions SET revision = 9")  # type: ignore[arg-type]
            async with asyncio.timeout(10):
                assert await other.hold("s") is not None

    with pytest.raises(ServerFailed, match="idle-in-transaction timeout"):
        await write_and_fall_silent()
    log = await other.load("s")
    assert log is not None
    assert log.position.number == 1
    await silent.close()
    await other.close()


async def test_a_server_that_is_away_fails_the_flush_and_not_the_session(
    host: Host, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = session_with_a_turn(host)
    monkeypatch.setenv("DSH_TEST_DSN", f"host=/nonexistent user=x password={SECRET}")
    for _ in range(2):
        with pytest.raises(ServerFailed, match="/nonexistent") as caught:
            await host.flush(session)
        assert SECRET not in repr(caught.value)
    monkeypatch.setenv("DSH_TEST_DSN", postgres.dsn)
    await host.flush(session)
    assert await host.stored("s") == list(session.events)


async def test_a_server_that_went_away_before_the_end_costs_only_time(
    host: Host, postgres: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    await host.flush(session_with_a_turn(host, "a"), session_with_a_turn(host, "b"))
    server = host.persistence._coordinator.backend._server  # type: ignore[attr-defined]
    await server.close()

    async def away() -> str:
        return "host=/nonexistent user=x dbname=y"

    server._find_dsn = away
    await host.unload()
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "sessions stay closed to others until their leases expire"
    ]


async def test_a_missing_dsn_names_its_variable_and_a_wrong_one_is_not_repeated(
    host: Host, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = session_with_a_turn(host)
    monkeypatch.delenv("DSH_TEST_DSN")
    with pytest.raises(ServerUnusable, match="dsh credentials set DSH_TEST_DSN"):
        await host.flush(session)
    monkeypatch.setenv("DSH_TEST_DSN", f"postgresql//{SECRET}")
    with pytest.raises(ServerUnusable, match="is not one") as caught:
        await host.flush(session)
    assert SECRET not in repr(caught.value)
    monkeypatch.setenv("DSH_TEST_DSN", postgres.dsn)
    await host.flush(session)


async def test_the_dsn_may_be_a_credential(
    root: Context, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dsh.state.credentials.service import CredentialProvider, ResolvedCredential

    asked: list[str] = []

    class Known(CredentialProvider):
        async def resolve(self, ref: str) -> ResolvedCredential | None:
            asked.append(ref)
            return ResolvedCredential(postgres.dsn, "store")

    Known.__abstractmethods__ = frozenset()
    await root.plugin(LocalSessionStore)
    await root.plugin(Known)
    schema = f"t{secrets.token_hex(6)}"
    await root.plugin(PostgresPersistence, {"dsnEnv": "MY_DSN", "schema": schema})
    assert await root.require(PostgresPersistence).all() == []
    assert asked == ["MY_DSN"]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ("UPDATE {s}.state SET version = 2", "has version 2, this build uses 1: upgrade"),
        ("UPDATE {s}.state SET version = 0", "no upgrade"),
        ("DROP TABLE {s}.state", "belongs to another program"),
    ],
)
async def test_tables_of_others_are_refused_untouched(
    host: Host, postgres: PostgresServer, change: str, match: str
) -> None:
    session = session_with_a_turn(host)
    await host.flush(session)
    schema: str = host._config["schema"]
    await host.unload()
    with psycopg.connect(postgres.dsn) as connection:
        query: Any = change.replace("{s}", schema)
        connection.execute(query)
    await host.mount()
    with pytest.raises(ServerUnusable, match=match):
        await host.persistence.all()
    with psycopg.connect(postgres.dsn) as connection:
        count: Any = f"SELECT count(*) FROM {schema}.events"
        assert connection.execute(count).fetchone() == (7,)
        drop: Any = f"DROP SCHEMA {schema} CASCADE"
        connection.execute(drop)


async def test_hosts_that_come_at_once_make_the_tables_once(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    medium = server_medium(postgres, monkeypatch)
    hosts = [await Host(medium).open() for _ in range(4)]
    sessions = [session_with_a_turn(host, f"s{number}") for number, host in enumerate(hosts)]
    await asyncio.gather(*map(Host.flush, hosts, sessions))
    assert len(await hosts[0].persistence.all()) == 4
    for host in hosts:
        await host.close()


async def test_a_session_with_a_bad_header_is_listed_as_damaged_beside_the_others(
    host: Host, postgres: PostgresServer
) -> None:
    await host.flush(session_with_a_turn(host, "good"), session_with_a_turn(host, "bad"))
    with psycopg.connect(postgres.dsn) as connection:
        schema = host._config["schema"]
        query: Any = f"UPDATE {schema}.sessions SET header = '[]' WHERE id = 'bad'"
        connection.execute(query)
    damage = [item.damage for item in await host.persistence.survey()]
    assert damage.count(None) == 1
    assert [header["id"] for header in await host.persistence.all()] == ["good"]


@pytest.mark.parametrize(
    "config",
    [
        {"dsnEnv": "not a name"},
        {"dsnEnv": "postgresql://user:secret@host/db"},
        {"schema": "x; drop table y"},
        {"schema": "Upper"},
        {"poolSize": 0},
        {"connectTimeoutMs": 1},
        {"dsn": "x"},
    ],
)
async def test_a_wrong_config_is_refused(root: Context, config: dict[str, Any]) -> None:
    await root.plugin(LocalSessionStore)
    with pytest.raises(ValidationError):
        await root.plugin(PostgresPersistence, config)


def test_the_config_has_the_names_of_the_others() -> None:
    assert Config().model_dump(by_alias=True) == {
        "dsnEnv": "DSH_POSTGRES_DSN",
        "schema": "dsh",
        "poolSize": 4,
        "connectTimeoutMs": 10_000,
        "preparedSessionCacheSize": 5,
        "writeBatchMaxDelayMs": 200,
        "leaseMs": 15_000,
    }


def test_the_module_of_the_row_imports_no_driver() -> None:
    code = f"import sys, {PLUGIN.partition(':')[0]}; assert 'psycopg' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


async def test_without_the_driver_the_row_says_what_to_install(
    root: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    await root.plugin(LocalSessionStore)
    with pytest.raises(ServerUnusable, match=r"pip install 'dsh\[postgres\]'"):
        await root.plugin(PostgresPersistence, {})


def test_a_medium_is_a_plain_description() -> None:
    assert Medium(PLUGIN, {}).load() is PostgresPersistence
