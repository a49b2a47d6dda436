"""How a call that needs approval gets it, and what the model is told when it does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsh.control.approval.service import ApprovalRequest, ApprovalService
from dsh.execution.tools.results import aborted, failure
from dsh.execution.tools.service import ToolExecution, ToolFailure

if TYPE_CHECKING:
    from dsh.kernel import Context


async def approve(ctx: Context, execution: ToolExecution, reason: str | None) -> ToolFailure | None:
    """Put a call to the approval service; ``None`` when it was allowed.

    Raises:
        TypeError: the service answered outside its vocabulary.
    """
    name = execution.name
    if execution.agent is None:
        return failure(_refused(name, reason, "it was called without an agent to ask for"))
    service = ctx.get(ApprovalService)
    if service is None:
        return failure(_refused(name, reason, "this deployment has no approval service"))
    outcome = await service.request(
        ApprovalRequest(
            agent=execution.agent,
            tool_name=name,
            call_id=execution.call_id,
            reason=reason,
            signal=execution.signal,
        )
    )
    if outcome == "allowed-once":
        return None
    if outcome == "cancelled" and execution.signal.aborted:
        return aborted(invoked=False)
    if outcome not in _WHY:
        raise TypeError(f"the approval service gave the unknown outcome {outcome!r}")
    return failure(_refused(name, reason, _WHY[outcome]))


_WHY = {
    "rejected": "the user or the approval policy rejected it; do not try the same again",
    "cancelled": "the question was withdrawn before anybody answered",
    "unavailable": (
        "nobody can be asked here, so it was not done; do not retry it, "
        "find a way that needs no approval or report what is missing"
    ),
}


def _refused(tool: str, reason: str | None, why: str) -> str:
    need = reason.rstrip(". ") if reason else f"tool {tool!r} requires approval"
    return f"{need}: {why}"
