"""The question as a bus event, and the session events that record it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypedDict, cast

from dsh.control.approval.service import ApprovalOutcome, ApprovalPolicy, ApprovalRequest
from dsh.kernel import Waterfall
from dsh.model.messages import CallId
from dsh.state.session.events import EventType

if TYPE_CHECKING:
    from dsh.state.session.session import Session

APPROVAL_OUTCOMES = frozenset({"allowed-once", "rejected", "cancelled", "unavailable"})
APPROVAL_POLICIES = frozenset({"ask", "never"})

APPROVAL_REQUEST = Waterfall[ApprovalRequest, ApprovalOutcome]("approval/request")
"""Answer by returning an outcome, or pass on with ``next()``. Scoped by the asking agent.

One answerer decides a deployment; the order of listeners is no priority.
"""


class ApprovalAsked(TypedDict):
    """A question was put."""

    id: str
    toolName: str
    callId: NotRequired[CallId]
    reason: NotRequired[str]


class ApprovalDecided(TypedDict):
    """The one decision of a question."""

    id: str
    outcome: ApprovalOutcome


class ApprovalPolicySet(TypedDict):
    """The session's policy from here on; the last one counts."""

    policy: ApprovalPolicy
    source: NotRequired[Literal["delegation"]]


APPROVAL_ASKED = EventType("approval/asked", ApprovalAsked)
APPROVAL_DECIDED = EventType("approval/decided", ApprovalDecided)
APPROVAL_POLICY = EventType("approval/policy", ApprovalPolicySet)


def set_approval_policy(
    session: Session, policy: ApprovalPolicy, *, source: Literal["delegation"] | None = None
) -> None:
    """Log a session's policy; everything that sets one goes through here.

    Raises:
        TypeError: ``policy`` is outside the vocabulary; nothing is logged.
    """
    if policy not in APPROVAL_POLICIES:
        raise TypeError(f"an approval policy is 'ask' or 'never', got {policy!r}")
    data = ApprovalPolicySet(policy=policy)
    if source is not None:
        data["source"] = source
    session.append(APPROVAL_POLICY, data)


def effective_approval_policy(events: Iterable[Any]) -> ApprovalPolicy | None:
    """The policy that the last such event of a log sets, if any."""
    policy = None
    for event in events:
        if event["type"] == APPROVAL_POLICY.name:
            policy = event["data"]["policy"]
    return cast("ApprovalPolicy | None", policy)
