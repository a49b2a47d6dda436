"""The row ``session-query-sqlite``: reads of all sessions, and full-text search over them."""

from dsh.state.query.sqlite.config import Config
from dsh.state.query.sqlite.provider import SqliteSessionQuery

__all__ = ["Config", "SqliteSessionQuery", "plugin"]

plugin = SqliteSessionQuery
