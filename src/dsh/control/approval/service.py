"""The seam of approval: how running work asks whether it may do something."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Literal, TypeAlias

from dsh.base.errors import DshError
from dsh.base.signal import AbortSignal
from dsh.base.values import value
from dsh.kernel import Service
from dsh.model.messages import CallId

if TYPE_CHECKING:
    from dsh.execution.agent.service import Agent
    from dsh.state.session.session import Session

ApprovalOutcome: TypeAlias = Literal["allowed-once", "rejected", "cancelled", "unavailable"]
"""``unavailable``: nobody answered, so the work must not be done. The vocabulary is closed."""

ApprovalPolicy: TypeAlias = Literal["ask", "never"]
"""``ask``: put questions to answerers. ``never``: reject every question without asking."""


class ApprovalError(DshError, RuntimeError):
    """An approval cannot be asked for here."""

    code = "APPROVAL"


@value
class ApprovalRequest:
    """One question.

    It carries no arguments: `dsh.control.approval.events.call_of` finds what the model asked for.
    """

    agent: Agent
    tool_name: str
    call_id: CallId | None = None
    reason: str | None = None
    signal: AbortSignal | None = None
    """For askers: their own. For answerers: aborts when the question is withdrawn."""
    id: str | None = None
    """Of its ``approval/asked``; the service sets it before answerers see the request."""
    pending_since: int | None = None
    """Milliseconds of the wall clock at which it was first asked, if that was before the session
    was resumed; the service sets it."""

    @property
    def resumed(self) -> bool:
        """Whether the call that asked is gone, and a yes allows one more attempt at it."""
        return self.pending_since is not None


class ApprovalService(Service, ABC):
    """Decides questions by policy and answerers, and logs each with its outcome."""

    name = "approval"

    default_policy: ApprovalPolicy
    """The configured policy, in force where a session sets none."""

    @abstractmethod
    async def request(self, request: ApprovalRequest) -> ApprovalOutcome:
        """Ask, and log the question and its decision as a pair.

        An abort, or the end of the turn, ends the wait at once with ``cancelled``; a later answer
        is discarded. An answerer that raises or answers outside the vocabulary counts as
        ``unavailable``. A switch to ``never`` meanwhile rejects. When the plugin of an answerer
        unloads, those that are left are asked.

        Raises:
            ApprovalError: the agent has no open turn; nothing is logged.
        """

    @abstractmethod
    def set_policy(self, agent: Agent, policy: ApprovalPolicy) -> None:
        """Switch a session's policy and tell the model; nothing happens when it is in force.

        Questions of the session that are open are rejected by a switch to ``never``.

        Raises:
            TypeError: ``policy`` is outside the vocabulary; nothing is logged.
        """

    @abstractmethod
    def override_of(self, session: Session) -> ApprovalPolicy | None:
        """The policy that the session's log sets, if any; it beats the configured one."""
