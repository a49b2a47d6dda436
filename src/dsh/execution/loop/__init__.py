"""The turn loop: drives agents in turns and steps and schedules their tool calls."""

from __future__ import annotations

from dsh.execution.loop.service import (
    CONFIGURED_AGENT_IDENTITIES,
    AgentIdentity,
    AgentLoop,
    CreationAborted,
    DisposalFromWithin,
    IdleFromWithin,
    LoopError,
    NoLoop,
    NoModel,
    NoPersistence,
)

__all__ = [
    "CONFIGURED_AGENT_IDENTITIES",
    "AgentIdentity",
    "AgentLoop",
    "CreationAborted",
    "DisposalFromWithin",
    "IdleFromWithin",
    "LoopError",
    "NoLoop",
    "NoModel",
    "NoPersistence",
]
