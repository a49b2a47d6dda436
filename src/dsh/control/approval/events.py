"""The question as a bus event, and the session events that record it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypedDict

from dsh.base.json import canonical, loads
from dsh.base.values import value
from dsh.control.approval.service import ApprovalOutcome, ApprovalPolicy, ApprovalRequest
from dsh.kernel import Waterfall
from dsh.model.messages import CallId
from dsh.state.session.events import TOOL_CALL, EventType

if TYPE_CHECKING:
    from dsh.state.session.events import SessionEvent
    from dsh.state.session.session import Session

APPROVAL_OUTCOMES = frozenset({"allowed-once", "rejected", "cancelled", "unavailable"})
APPROVAL_POLICIES = frozenset({"ask", "never"})

_NESTED_CALL = "tool/code-dispatch-start"

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
    """The policy that the last such event of a log sets, if any; an unknown one is ``never``."""
    policy: ApprovalPolicy | None = None
    for event in events:
        if event["type"] == APPROVAL_POLICY.name:
            policy = "ask" if event["data"].get("policy") == "ask" else "never"
    return policy


@value
class RecordedCall:
    """A tool call as the log has it.

    Attributes:
        event: The ``tool/call``; of a call inside a program, its ``tool/code-dispatch-start``.
        name: The tool.
        arguments: Their text; as the model wrote it, or that of a program's values.
    """

    event: SessionEvent
    name: str
    arguments: str

    @property
    def canonical_arguments(self) -> str:
        """One text for all spellings of the same arguments; what is no JSON stays as it is."""
        try:
            return canonical(loads(self.arguments))
        except ValueError:
            return self.arguments


def call_of(
    session: Session, call_id: CallId | None, *, before: int | None = None
) -> RecordedCall | None:
    """Find the call that a question is about, with its arguments.

    Args:
        session: The asking agent's.
        call_id: As in the request. A model may use an id again, so the newest call counts.
        before: Look at the events before this ``seq`` only, such as that of the question.
    """
    if call_id is None:
        return None
    for event in reversed(session.events[:before]):
        data: Any = event["data"]
        if event["type"] == TOOL_CALL.name and data["callId"] == call_id:
            return RecordedCall(event, data["name"], data["arguments"])
        if event["type"] == _NESTED_CALL and data["subCallId"] == call_id:
            return RecordedCall(event, data["name"], canonical(data["arguments"]))
    return None
