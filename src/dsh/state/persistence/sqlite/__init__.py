"""The row ``session-persistence-sqlite``: all sessions in one database file."""

from dsh.state.persistence.sqlite.config import Config
from dsh.state.persistence.sqlite.provider import SqlitePersistence

__all__ = ["Config", "SqlitePersistence", "plugin"]

plugin = SqlitePersistence
