"""Deciding approvals by policy and answerers: row ``approval``."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from pydantic import BaseModel, ConfigDict, Field

from dsh.base.values import changed
from dsh.control.approval.events import (
    APPROVAL_ASKED,
    APPROVAL_DECIDED,
    APPROVAL_POLICY,
    ApprovalAsked,
    ApprovalDecided,
    effective_approval_policy,
    set_approval_policy,
)
from dsh.control.approval.grants import Grants
from dsh.control.approval.late import LateQuestions
from dsh.control.approval.question import OpenQuestions
from dsh.control.approval.service import (
    ApprovalError,
    ApprovalOutcome,
    ApprovalPolicy,
    ApprovalRequest,
    ApprovalService,
)
from dsh.execution.agent.events import AGENT_SESSION_START, AgentSessionStarted
from dsh.execution.agent.service import AgentRegistry
from dsh.execution.prompt.service import AssembleContext, PromptContext, SystemPrompt
from dsh.kernel import Context
from dsh.model.messages import create_user_message
from dsh.state.session.events import TURN_END, TURN_START
from dsh.state.session.service import SessionStore

if TYPE_CHECKING:
    from dsh.execution.agent.service import Agent
    from dsh.state.session.session import Session

CONTEXT_ORDER = 115.0

MEANING: dict[ApprovalPolicy, str] = {
    "ask": (
        "Approval policy: ask. What needs approval is put to whoever can answer here; when nobody "
        "can, it is refused."
    ),
    "never": (
        "Approval policy: never. Nobody is asked; what would need approval is rejected at once. Do "
        "not request wider sandbox permissions (sandbox_permissions)."
    ),
}


class ApprovalConfig(BaseModel):
    """Whether people are asked at all."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    policy: ApprovalPolicy = "ask"
    """``ask`` puts questions to answerers, ``never`` rejects each; a session may set its own."""
    grace_ms: float = Field(default=2000, ge=0, alias="graceMs", allow_inf_nan=False)
    """Milliseconds that an answerer may go on after its question was withdrawn, before it is
    cancelled."""


class _Standing:
    """What matters of a session's log, folded as far as it was read."""

    __slots__ = ("policy", "seq", "turn_is_open")

    def __init__(self) -> None:
        self.seq = 0
        self.policy: ApprovalPolicy | None = None
        self.turn_is_open = False

    def follow(self, session: Session) -> None:
        if self.seq == session.seq:
            return
        fresh = session.events[self.seq :]
        self.seq = session.seq
        self.policy = effective_approval_policy(fresh) or self.policy
        for event in reversed(fresh):
            if event["type"] in (TURN_START.name, TURN_END.name):
                self.turn_is_open = event["type"] == TURN_START.name
                return


class PolicyApproval(ApprovalService):
    """Decides by the session's policy, else by the row's, else by the answerers."""

    inject = (SessionStore, SystemPrompt)
    Config = ApprovalConfig

    def __init__(self, ctx: Context, config: ApprovalConfig | None = None) -> None:
        super().__init__(ctx, config)
        config = config or ApprovalConfig()
        self.default_policy = config.policy
        self._seen: WeakKeyDictionary[Session, _Standing] = WeakKeyDictionary()
        self._grants = Grants()
        self._questions = OpenQuestions(self.ctx, config.grace_ms / 1000, self._is_never)
        self._late = LateQuestions(self.ctx, self._questions, self._grants, self._is_never)

    def start(self) -> None:
        """Declare the session events, tell agents the policy, take up what was left undecided."""
        ctx = self.ctx
        sessions = ctx.require(SessionStore)
        for event_type in (APPROVAL_ASKED, APPROVAL_DECIDED, APPROVAL_POLICY):
            sessions.declare(event_type)
        ctx.require(SystemPrompt).context(
            PromptContext("approval:policy", CONTEXT_ORDER, self._meaning)
        )
        ctx.on(AGENT_SESSION_START, self._started)
        ctx.defer(self._late.close, "approval.late")
        agents = ctx.get(AgentRegistry)
        for agent in agents.all() if agents is not None else ():
            self._late.take_up(agent)

    async def request(self, request: ApprovalRequest) -> ApprovalOutcome:
        """See `ApprovalService.request`."""
        session = request.agent.session
        if not self._standing(session).turn_is_open:
            raise ApprovalError(
                f"approval for {request.tool_name!r} was asked outside of a turn of session "
                f"{session.id!r}; ask while the agent runs"
            )
        request = changed(request, id=str(uuid.uuid4()), pending_since=None)
        session.append(APPROVAL_ASKED, _asked(request))
        outcome: ApprovalOutcome = "cancelled"
        try:
            outcome = await self._decide(request)
        finally:
            decided = ApprovalDecided(id=request.id or "", outcome=outcome)
            session.append(APPROVAL_DECIDED, decided)
        if outcome in ("allowed-once", "rejected"):
            self._late.overtake(request, decided=True)
        return outcome

    def set_policy(self, agent: Agent, policy: ApprovalPolicy) -> None:
        """See `ApprovalService.set_policy`."""
        before = self._in_force(agent.session)
        if policy == before:
            return
        set_approval_policy(agent.session, policy)
        source = {
            "kind": "plugin",
            "plugin": "user-approval",
            "form": "notice",
            "summary": f"approval policy: {policy}",
        }
        notice = f"The approval policy changed from {before} to {policy}. {MEANING[policy]}"
        agent.inject(create_user_message(notice, source))

    def override_of(self, session: Session) -> ApprovalPolicy | None:
        """See `ApprovalService.override_of`."""
        return self._standing(session).policy

    def _standing(self, session: Session) -> _Standing:
        """What a session's log says now; reads only what came since the last time."""
        standing = self._seen.get(session)
        if standing is None:
            standing = self._seen[session] = _Standing()
        standing.follow(session)
        return standing

    def _in_force(self, session: Session) -> ApprovalPolicy:
        return self.override_of(session) or self.default_policy

    def _is_never(self, session: Session) -> bool:
        return self._in_force(session) == "never"

    def _meaning(self, context: AssembleContext) -> str:
        return MEANING[self._in_force(context.agent.session)] if context.agent is not None else ""

    def _started(self, started: AgentSessionStarted) -> None:
        if started.source == "resume":
            self._late.take_up(started.agent)

    async def _decide(self, request: ApprovalRequest) -> ApprovalOutcome:
        if request.signal is not None and request.signal.aborted:
            return "cancelled"
        if self._is_never(request.agent.session):
            return "rejected"
        if self._grants.take(request):
            return "allowed-once"
        self._late.overtake(request)
        return await self._questions.put(request)


plugin = PolicyApproval


def _asked(request: ApprovalRequest) -> ApprovalAsked:
    asked = ApprovalAsked(id=request.id or "", toolName=request.tool_name)
    if request.call_id is not None:
        asked["callId"] = request.call_id
    if request.reason is not None:
        asked["reason"] = request.reason
    return asked
