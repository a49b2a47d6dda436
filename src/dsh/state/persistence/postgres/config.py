"""The config of the PostgreSQL store."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dsh.state.persistence.config import StoreConfig


class Config(StoreConfig):
    """Which server, and how it is used. The DSN itself is a secret and stays out of here."""

    dsn_env: Annotated[str, Field(alias="dsnEnv", pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] = (
        "DSH_POSTGRES_DSN"
    )
    """Name of the credential or environment variable that holds the DSN."""
    schema_name: Annotated[str, Field(alias="schema", pattern=r"^[a-z_][a-z0-9_]{0,62}$")] = "dsh"
    """The schema that has the tables; made when it is missing."""
    pool_size: Annotated[int, Field(alias="poolSize", ge=1, le=100, strict=True)] = 4
    """How many connections there are at most."""
    connect_timeout_ms: Annotated[
        int, Field(alias="connectTimeoutMs", ge=100, le=2_147_483_647, strict=True)
    ] = 10_000
    """How long to wait for a connection, in milliseconds."""
