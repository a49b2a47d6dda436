"""Durable copies of sessions: the definition that other plugins depend on."""

from dsh.state.persistence.errors import (
    IncompleteArtifact,
    PersistenceError,
    SessionConflict,
    SessionFormatUnsupportedError,
    SessionHeld,
    SessionLeaseLost,
    SessionNotFound,
    SessionPersistenceCorruptionError,
    UnreadableLog,
)
from dsh.state.persistence.service import (
    SessionDamage,
    SessionInspection,
    SessionLocation,
    SessionPersistence,
    SessionPreparation,
    SessionSnapshot,
    StoredSession,
)

__all__ = [
    "IncompleteArtifact",
    "PersistenceError",
    "SessionConflict",
    "SessionDamage",
    "SessionFormatUnsupportedError",
    "SessionHeld",
    "SessionInspection",
    "SessionLeaseLost",
    "SessionLocation",
    "SessionNotFound",
    "SessionPersistence",
    "SessionPersistenceCorruptionError",
    "SessionPreparation",
    "SessionSnapshot",
    "StoredSession",
    "UnreadableLog",
]
