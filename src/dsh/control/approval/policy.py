"""Deciding approvals by policy and answerers: row ``approval``."""

from __future__ import annotations

import asyncio
import logging
import uuid
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from pydantic import BaseModel, ConfigDict, Field

from dsh.control.approval.events import (
    APPROVAL_ASKED,
    APPROVAL_DECIDED,
    APPROVAL_OUTCOMES,
    APPROVAL_POLICIES,
    APPROVAL_POLICY,
    APPROVAL_REQUEST,
    ApprovalAsked,
    ApprovalDecided,
    effective_approval_policy,
    set_approval_policy,
)
from dsh.control.approval.service import (
    ApprovalError,
    ApprovalOutcome,
    ApprovalPolicy,
    ApprovalRequest,
    ApprovalService,
)
from dsh.execution.prompt.service import AssembleContext, PromptContext, SystemPrompt
from dsh.kernel import Context, scope_target
from dsh.model.messages import create_user_message
from dsh.state.session.events import TURN_END, TURN_START
from dsh.state.session.service import SessionStore

if TYPE_CHECKING:
    from dsh.execution.agent.service import Agent
    from dsh.state.session.session import Session

_log = logging.getLogger("dsh.approval")

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
        self._config = config or ApprovalConfig()
        self._seen: WeakKeyDictionary[Session, _Standing] = WeakKeyDictionary()

    def start(self) -> None:
        """Declare the session events and tell agents the policy in force."""
        sessions = self.ctx.require(SessionStore)
        for event_type in (APPROVAL_ASKED, APPROVAL_DECIDED, APPROVAL_POLICY):
            sessions.declare(event_type)
        self.ctx.require(SystemPrompt).context(
            PromptContext("approval:policy", CONTEXT_ORDER, self._meaning)
        )

    async def request(self, request: ApprovalRequest) -> ApprovalOutcome:
        """See `ApprovalService.request`."""
        session = request.agent.session
        if not self._standing(session).turn_is_open:
            raise ApprovalError(
                f"approval for {request.tool_name!r} was asked outside of a turn of session "
                f"{session.id!r}; ask while the agent runs"
            )
        question = str(uuid.uuid4())
        session.append(APPROVAL_ASKED, _asked(question, request))
        outcome: ApprovalOutcome = "cancelled"
        try:
            outcome = await self._decide(request)
        finally:
            session.append(APPROVAL_DECIDED, ApprovalDecided(id=question, outcome=outcome))
        return outcome

    def set_policy(self, agent: Agent, policy: ApprovalPolicy) -> None:
        """See `ApprovalService.set_policy`."""
        before = self._in_force(agent.session)
        if policy == before and policy in APPROVAL_POLICIES:
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
        return self.override_of(session) or self._config.policy

    def _meaning(self, context: AssembleContext) -> str:
        return MEANING[self._in_force(context.agent.session)] if context.agent is not None else ""

    async def _decide(self, request: ApprovalRequest) -> ApprovalOutcome:
        signal = request.signal
        if signal is not None and signal.aborted:
            return "cancelled"
        if self._in_force(request.agent.session) == "never":
            return "rejected"
        question = self.ctx.spawn(
            self._answer(request), f"approval of {request.tool_name} {request.call_id or ''}"
        )
        settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def settle(_: object = None) -> None:
            if not settled.done():
                settled.set_result(None)

        question.add_done_callback(settle)
        remove = signal.add_listener(settle, now=True) if signal is not None else None
        try:
            await settled
        except asyncio.CancelledError:
            question.cancel()
            raise
        finally:
            if remove is not None:
                remove()
        aborted = signal is not None and signal.aborted
        if aborted or question.cancelled():
            self._let_go(question)
            return "cancelled"
        return question.result()

    def _let_go(self, question: asyncio.Task[ApprovalOutcome]) -> None:
        """Leave a withdrawn question to its answerer, for a while."""
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self._config.grace_ms / 1000, question.cancel)
        question.add_done_callback(lambda _: timer.cancel())

    async def _answer(self, request: ApprovalRequest) -> ApprovalOutcome:
        """Ask the answerers; whatever goes wrong with them is ``unavailable``."""
        try:
            outcome = await self.ctx.waterfall(
                APPROVAL_REQUEST,
                request,
                lambda: "unavailable",
                scope_target(None, request.agent),
            )
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            _log.warning("an answerer of approval for %r was cancelled", request.tool_name)
            return "unavailable"
        except Exception:
            late = request.signal is not None and request.signal.aborted
            level = logging.DEBUG if late else logging.ERROR
            _log.log(
                level, "an answerer of approval for %r failed", request.tool_name, exc_info=True
            )
            return "unavailable"
        if not isinstance(outcome, str) or outcome not in APPROVAL_OUTCOMES:
            _log.warning("an answerer gave the unknown approval outcome %r", outcome)
            return "unavailable"
        return outcome


plugin = PolicyApproval


def _asked(id: str, request: ApprovalRequest) -> ApprovalAsked:
    asked = ApprovalAsked(id=id, toolName=request.tool_name)
    if request.call_id is not None:
        asked["callId"] = request.call_id
    if request.reason is not None:
        asked["reason"] = request.reason
    return asked
