"""The config of the SQLite store."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dsh.state.persistence.config import StoreConfig


class Config(StoreConfig):
    """Where the database is, and how it is kept."""

    path: Annotated[str, Field(min_length=1)]
    """The database file, made when it is first needed; ``:memory:`` keeps nothing."""
    journal_mode: Annotated[
        Literal["wal", "delete", "truncate", "persist"], Field(alias="journalMode")
    ] = "wal"
    """How SQLite makes commits safe. With ``wal`` readers and the writer do not wait for each
    other."""
    busy_timeout_ms: Annotated[
        int, Field(alias="busyTimeoutMs", ge=0, le=2_147_483_647, strict=True)
    ] = 5000
    """How long to wait for another process that writes, in milliseconds."""
