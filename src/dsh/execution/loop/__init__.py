"""The turn loop: drives agents in turns and steps and schedules their tool calls."""

from __future__ import annotations

from dsh.execution.loop.service import (
    AgentLoop,
    CreationAborted,
    DisposalFromWithin,
    LoopError,
    NoLoop,
    NoModel,
    NoPersistence,
)

__all__ = [
    "AgentLoop",
    "CreationAborted",
    "DisposalFromWithin",
    "LoopError",
    "NoLoop",
    "NoModel",
    "NoPersistence",
]
