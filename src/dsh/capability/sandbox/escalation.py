"""Asking for a wider mode for one call."""

from __future__ import annotations

from dsh.capability.sandbox.service import (
    SANDBOX_MODES,
    EscalationRefused,
    EscalationRequest,
    SandboxMode,
    is_wider,
)
from dsh.control.approval.service import ApprovalOutcome, ApprovalRequest, ApprovalService

_REFUSALS: dict[ApprovalOutcome, str] = {
    "rejected": (
        "the wider file access was rejected and the call was not run; do not ask for it again, "
        "work within the present mode or tell the user what is missing"
    ),
    "cancelled": "the question about wider file access was cancelled and the call was not run",
    "unavailable": (
        "nobody can be asked about wider file access here, so the call was not run; work within "
        "the present mode or tell the user what is missing"
    ),
}


async def escalate(
    request: EscalationRequest, approval: ApprovalService | None
) -> SandboxMode | None:
    """Return the mode just approved for one call; ``None`` when the call asks for none.

    Raises:
        EscalationRefused: the request makes no sense, or was not approved.
    """
    mode = _wanted(request)
    if mode is None:
        return None
    if approval is None or request.agent is None:
        raise _refused("unavailable")
    outcome = await approval.request(
        ApprovalRequest(
            agent=request.agent,
            tool_name=request.tool_name,
            call_id=request.call_id,
            reason=f"{mode} for this call: {(request.justification or '').strip()}",
            signal=request.signal,
        )
    )
    if outcome != "allowed-once":
        raise _refused(outcome)
    if request.signal is not None and request.signal.aborted:
        raise _refused("cancelled")
    return mode


def _wanted(request: EscalationRequest) -> SandboxMode | None:
    """Return the mode asked for, which is known to be wider than the one in force."""
    wanted, why = request.sandbox_permissions, request.justification
    if wanted is None and why is None:
        return None
    if not (wanted and wanted.strip() and why and why.strip()):
        raise _invalid("give sandbox_permissions and justification together, or neither")
    for mode in SANDBOX_MODES:
        if mode == wanted and is_wider(mode, request.policy.mode):
            return mode
    wider = [mode for mode in SANDBOX_MODES if is_wider(mode, request.policy.mode)]
    choice = f"it may be {' or '.join(wider)}" if wider else "nothing is wider, leave it out"
    raise _invalid(
        f"sandbox_permissions {wanted!r} is not wider than the mode in force, "
        f"{request.policy.mode}: {choice}"
    )


def _invalid(message: str) -> EscalationRefused:
    return EscalationRefused(message, outcome="invalid")


def _refused(outcome: ApprovalOutcome) -> EscalationRefused:
    assert outcome != "allowed-once"
    return EscalationRefused(_REFUSALS[outcome], outcome=outcome)
