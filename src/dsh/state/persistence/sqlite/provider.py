"""The service that keeps sessions in a database file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from dsh.state.persistence.provider import KeptSessions
from dsh.state.persistence.sqlite.config import Config as SqliteConfig

if TYPE_CHECKING:
    from dsh.kernel import Context

_IN_MEMORY = ":memory:"


class SqlitePersistence(KeptSessions):
    """Sessions as rows of one SQLite database."""

    Config: ClassVar[type[SqliteConfig]] = SqliteConfig

    def __init__(self, ctx: Context, config: SqliteConfig) -> None:
        from dsh.state.persistence.sqlite.backend import SqliteBackend
        from dsh.state.persistence.sqlite.database import Database
        from dsh.state.persistence.sqlite.schema import Options, check_path
        from dsh.state.persistence.sqlite.store import SqliteStore

        path = None if config.path == _IN_MEMORY else Path(os.path.abspath(config.path))
        if path is not None:
            check_path(path)
        options = Options(path, config.journal_mode, config.busy_timeout_ms / 1000)
        lease_s = config.lease_ms / 1000
        super().__init__(
            ctx, config, SqliteBackend(SqliteStore(Database(options), lease_s), lease_s)
        )
