"""How wide file access is, and what confines commands to it."""

from dsh.capability.sandbox.service import (
    SANDBOX_MODES,
    Confinement,
    Enforcement,
    EscalationRefused,
    EscalationRequest,
    ResolvedPolicy,
    RunnerFailureRule,
    SandboxMode,
    SandboxPolicy,
    SandboxProvider,
    SandboxUnavailable,
    denial_lines,
    is_wider,
)

__all__ = [
    "SANDBOX_MODES",
    "Confinement",
    "Enforcement",
    "EscalationRefused",
    "EscalationRequest",
    "ResolvedPolicy",
    "RunnerFailureRule",
    "SandboxMode",
    "SandboxPolicy",
    "SandboxProvider",
    "SandboxUnavailable",
    "denial_lines",
    "is_wider",
]
