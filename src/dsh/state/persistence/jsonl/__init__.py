"""The row ``session-persistence-jsonl``: sessions as files, one folder a session.

A file is JSON lines, plain or in zstandard frames; what is written is the config's choice, and
both are read.
"""

from dsh.state.persistence.jsonl.config import Config
from dsh.state.persistence.jsonl.provider import JsonlPersistence

__all__ = ["Config", "JsonlPersistence", "plugin"]

plugin = JsonlPersistence
