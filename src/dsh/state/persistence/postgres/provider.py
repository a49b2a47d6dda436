"""The service that keeps sessions on a PostgreSQL server."""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING, Any, ClassVar

from dsh.state.credentials.service import CredentialProvider
from dsh.state.persistence.postgres.config import Config as PostgresConfig
from dsh.state.persistence.postgres.errors import ServerUnusable
from dsh.state.persistence.provider import KeptSessions

if TYPE_CHECKING:
    from dsh.kernel import Context

_SHORTEST_SILENCE_S = 5.0


class PostgresPersistence(KeptSessions):
    """Sessions as rows of one PostgreSQL database that many hosts share.

    The server is reached when it is first needed.
    """

    Config: ClassVar[type[PostgresConfig]] = PostgresConfig

    def __init__(self, ctx: Context, config: PostgresConfig) -> None:
        from dsh.state.persistence.postgres.backend import PostgresBackend
        from dsh.state.persistence.postgres.pool import Connections

        if importlib.util.find_spec("psycopg_pool") is None:
            raise ServerUnusable("PostgreSQL needs a driver; run: pip install 'dsh[postgres]'")

        async def find_dsn() -> str:
            dsn = await _look_up(ctx, config.dsn_env)
            if not dsn:
                raise ServerUnusable(
                    f"no DSN for the session database; run: dsh credentials set {config.dsn_env}, "
                    "or set the variable of that name"
                )
            return dsn

        lease_s = config.lease_ms / 1000
        server = Connections(
            find_dsn,
            config.schema_name,
            config.pool_size,
            config.connect_timeout_ms / 1000,
            max(lease_s, _SHORTEST_SILENCE_S),
        )
        super().__init__(ctx, config, PostgresBackend(server, lease_s))


async def _look_up(ctx: Context, name: str) -> str | None:
    if (credentials := ctx.get(CredentialProvider)) is not None:
        found = await credentials.resolve(name)
        return None if found is None else found.value
    environment: Any = ctx.get("launch_environment")
    return os.environ.get(name) if environment is None else environment.value(name)
