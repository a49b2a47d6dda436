"""The connections to one server, made when they are first needed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from dsh.state.persistence.lease import DEFAULT_LEASE_S
from dsh.state.persistence.postgres.errors import ServerFailed, ServerUnusable

if TYPE_CHECKING:
    from psycopg import AsyncConnection, AsyncCursor
    from psycopg_pool import AsyncConnectionPool

    Cursor: TypeAlias = AsyncCursor[tuple[Any, ...]]

VERSION: Final = 1
_SETUP_LOCK: Final = 0x44534850
_TABLES: Final = """
CREATE SCHEMA IF NOT EXISTS {schema};
CREATE TABLE {schema}.sessions(
    id text PRIMARY KEY, header text NOT NULL, cwd text NOT NULL, incarnation text NOT NULL,
    revision bigint NOT NULL, count bigint NOT NULL, last_write text NOT NULL,
    written_ms bigint NOT NULL);
CREATE INDEX sessions_cwd ON {schema}.sessions(cwd);
CREATE TABLE {schema}.events(
    session_id text NOT NULL REFERENCES {schema}.sessions(id) ON DELETE CASCADE,
    seq bigint NOT NULL, record text NOT NULL, PRIMARY KEY(session_id, seq));
CREATE TABLE {schema}.leases(session_id text PRIMARY KEY, record text NOT NULL);
CREATE TABLE {schema}.state(
    singleton integer PRIMARY KEY CHECK(singleton = 1), version integer NOT NULL,
    store_id text NOT NULL);
INSERT INTO {schema}.state VALUES (1, {version}, gen_random_uuid()::text);
"""


class Connections:
    """A pool that is opened at the first transaction, after the tables were looked at.

    Args:
        find_dsn: Returns the DSN; asked once.
        schema: The schema of the tables; a plain name.
        size: How many connections there are at most.
        timeout_s: How long to wait for one.
        silence_s: How long a host may say nothing inside a transaction, as one does that is
            stopped; then the server undoes the transaction, and others may go on.

    Attributes:
        schema: The schema of the tables.
        source: Names this store and no other, once it is open.
    """

    def __init__(
        self,
        find_dsn: Callable[[], Awaitable[str]],
        schema: str,
        size: int,
        timeout_s: float,
        silence_s: float = DEFAULT_LEASE_S,
    ) -> None:
        self.schema = schema
        self.source = ""
        self._find_dsn = find_dsn
        self._size = size
        self._timeout_s = timeout_s
        self._silence_ms = int(silence_s * 1000)
        self._pool: AsyncConnectionPool[Any] | None = None
        self._where = "an unknown address"
        self._opening = asyncio.Lock()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Cursor]:
        """Give a cursor in a transaction of its own, committed and durable on exit.

        Raises:
            ServerUnusable: the DSN or the tables are wrong.
            ServerFailed: the server is away, or refused; unless it was the commit that failed,
                nothing was done.
        """
        import psycopg

        try:
            async with (
                self._connection() as connection,
                connection.transaction(),
                connection.cursor() as cursor,
            ):
                yield cursor
        except psycopg.Error as error:
            problem = str(error).strip().partition("\n")[0] or type(error).__name__
            raise ServerFailed(self._where, problem) from error

    async def close(self) -> None:
        """Close all connections."""
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close()

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[AsyncConnection[Any]]:
        pool, connection = await self._usable()
        try:
            yield connection
        finally:
            is_broken = connection.broken
            await pool.putconn(connection)
            if is_broken:
                await self._retire(pool)

    async def _usable(self) -> tuple[AsyncConnectionPool[Any], AsyncConnection[Any]]:
        """Return a connection that answers, after one new beginning when one does not.

        The pool would go on trying by itself, in longer and longer pauses; a new one knows at
        once whether the server is back, and otherwise why not.
        """
        import psycopg

        pool = await self._opened()
        connection = await pool.getconn()
        try:
            await pool.check_connection(connection)
        except psycopg.OperationalError:
            await pool.putconn(connection)
            await self._retire(pool)
            pool = await self._opened()
            connection = await pool.getconn()
        return pool, connection

    async def _retire(self, pool: AsyncConnectionPool[Any]) -> None:
        async with self._opening:
            if self._pool is pool:
                self._pool = None
                await pool.close()

    async def _opened(self) -> AsyncConnectionPool[Any]:
        async with self._opening:
            if self._pool is None:
                pool = await self._open()
                try:
                    await self._look_at_tables(pool)
                except BaseException:
                    await pool.close()
                    raise
                self._pool = pool
            return self._pool

    async def _open(self) -> AsyncConnectionPool[Any]:
        from psycopg import AsyncConnection
        from psycopg_pool import AsyncConnectionPool

        dsn = await self._find_dsn()
        self._where = _address(dsn)
        # A first connection outside the pool, whose failure says why.
        probe = await AsyncConnection.connect(dsn, connect_timeout=max(1, int(self._timeout_s)))
        await probe.close()
        pool: AsyncConnectionPool[Any] = AsyncConnectionPool(
            dsn,
            min_size=1,
            max_size=self._size,
            timeout=self._timeout_s,
            configure=self._configure,
            name="dsh-sessions",
            open=False,
        )
        await pool.open()
        return pool

    async def _look_at_tables(self, pool: AsyncConnectionPool[Any]) -> None:
        schema = self.schema
        async with pool.connection() as connection, connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock(%s)", (_SETUP_LOCK,))
            found = await connection.execute(
                "SELECT to_regclass(%s) IS NOT NULL, to_regclass(%s) IS NOT NULL",
                (f"{schema}.state", f"{schema}.sessions"),
            )
            has_state, has_sessions = await found.fetchone() or (False, False)
            if not has_state and has_sessions:
                raise ServerUnusable(
                    f"the schema {schema!r} at {self._where} belongs to another program; "
                    "name another one in the config"
                )
            if not has_state:
                await connection.execute(_TABLES.format(schema=schema, version=VERSION))
            state = await connection.execute(f"SELECT version, store_id FROM {schema}.state")
            version, store_id = await state.fetchone() or (0, "")
            if version != VERSION:
                remedy = "upgrade this dsh" if version > VERSION else "there is no upgrade for it"
                raise ServerUnusable(
                    f"the schema {schema!r} at {self._where} has version {version}, this build "
                    f"uses {VERSION}: {remedy}"
                )
            self.source = f"postgres:store:{store_id}"

    async def _configure(self, connection: AsyncConnection[Any]) -> None:
        # Whatever the role's own settings say: an acknowledged event is on disk.
        await connection.execute("SET synchronous_commit TO on")
        silence = f"SET idle_in_transaction_session_timeout TO {self._silence_ms:d}"
        await connection.execute(silence.encode())
        await connection.commit()


def _address(dsn: str) -> str:
    """Return where a DSN leads, without its secrets.

    Raises:
        ServerUnusable: it is no DSN.
    """
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    try:
        parts = conninfo_to_dict(dsn)
    except psycopg.Error:
        # The text of the error may repeat the DSN.
        problem = "the DSN of the session database is not one: write postgresql://user@host/name"
        raise ServerUnusable(problem) from None
    place = f"{parts.get('host', 'the local socket')}:{parts.get('port', 5432)}"
    return f"{place}/{parts.get('dbname', '')}"
