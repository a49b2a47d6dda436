"""The row ``session-persistence-postgres``: the sessions of many hosts in one PostgreSQL."""

from dsh.state.persistence.postgres.config import Config
from dsh.state.persistence.postgres.provider import PostgresPersistence

__all__ = ["Config", "PostgresPersistence", "plugin"]

plugin = PostgresPersistence
