"""Approval: how running work asks whether it may, and how the answer is kept."""

from __future__ import annotations

from dsh.control.approval.service import (
    ApprovalError,
    ApprovalOutcome,
    ApprovalPolicy,
    ApprovalRequest,
    ApprovalService,
)

__all__ = [
    "ApprovalError",
    "ApprovalOutcome",
    "ApprovalPolicy",
    "ApprovalRequest",
    "ApprovalService",
]
