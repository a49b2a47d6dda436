"""Projections: values that are folded from a session's log, live and from a cache."""

from dsh.state.projections.service import (
    Checkpoint,
    CheckpointRow,
    ProjectionCache,
    ProjectionRegistry,
    ProjectionSnapshot,
    ProjectionUnit,
    Restored,
    Schema,
)

__all__ = [
    "Checkpoint",
    "CheckpointRow",
    "ProjectionCache",
    "ProjectionRegistry",
    "ProjectionSnapshot",
    "ProjectionUnit",
    "Restored",
    "Schema",
]
