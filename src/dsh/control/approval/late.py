"""Questions that outlived their process: put again after a resume, and decided once.

The call that asked was closed when the log was repaired, so a yes cannot let it go on. It allows
one repetition instead, of which the model is told.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from dsh.base.json import snapshot
from dsh.base.signal import AbortController
from dsh.control.approval.events import APPROVAL_DECIDED, ApprovalDecided
from dsh.control.approval.grants import wish_of
from dsh.control.approval.pending import leftovers
from dsh.control.approval.service import ApprovalRequest
from dsh.model.messages import create_user_message

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from dsh.control.approval.grants import Grants
    from dsh.control.approval.pending import LeftAsk
    from dsh.control.approval.question import OpenQuestions
    from dsh.control.approval.service import ApprovalOutcome
    from dsh.execution.agent.service import Agent
    from dsh.kernel import Context
    from dsh.model.messages import UserMessage
    from dsh.state.session.session import Session

_SHOWN_ARGUMENTS = 500
"""How many characters of the arguments the model is shown again."""


class LateQuestions:
    """The questions that agents of this process were resumed with.

    Args:
        ctx: The service's.
        questions: Puts them.
        grants: Takes what is allowed.
        is_never: Whether a session's policy is ``never`` now.
    """

    def __init__(
        self,
        ctx: Context,
        questions: OpenQuestions,
        grants: Grants,
        is_never: Callable[[Session], bool],
    ) -> None:
        self._ctx = ctx
        self._questions = questions
        self._grants = grants
        self._is_never = is_never
        self._open: dict[_Late, None] = {}

    def take_up(self, agent: Agent) -> None:
        """Put what an agent's session left undecided, and tell what the model was not told."""
        left = leftovers(agent.session)
        waiting = {message["id"] for message in agent.inbox.next_step}
        for ask, outcome in left.untold:
            if ask.notice_id not in waiting and outcome != "cancelled":
                agent.inject(_notice(ask, outcome))
        for ask in left.undecided:
            if self._is_never(agent.session):
                _log_decision(agent.session, ask, "rejected")
                self._tell(agent, ask, "rejected")
            else:
                self._put(agent, ask)

    def overtake(self, request: ApprovalRequest, *, decided: bool = False) -> None:
        """Let a question take the place of late ones about the same, which end ``cancelled``.

        Args:
            request: The question that the agent's present turn asks.
            decided: It was answered with a yes or a no. Before that, only those make way that
                somebody would see beside it.
        """
        session = request.agent.session
        wish = wish_of(request) if self._open else None
        for late in list(self._open):
            same = late.agent.session is session and wish is not None and late.ask.wish == wish
            if same and (decided or late.shown):
                self._log(late, "cancelled")

    def close(self) -> None:
        """Let go of the agents: another service may take their questions up."""
        for late in list(self._open):
            late.leave()

    def _put(self, agent: Agent, ask: LeftAsk) -> None:
        late, label = _Late(agent, ask), f"late approval {ask.id}"

        def end() -> Awaitable[object] | None:
            self._open.pop(late, None)
            late.withdraw.abort()
            return None if task.done() else asyncio.wait([task])

        # With the agent goes the question, and stays in the log for its next life. That comes
        # first: an agent that is unloading by now must not be asked for.
        late.leave = agent.ctx.defer(end, label).dispose
        self._open[late] = None
        task = self._ctx.spawn(self._ask(late), label)

    async def _ask(self, late: _Late) -> None:
        ask = late.ask
        request = ApprovalRequest(
            agent=late.agent,
            tool_name=ask.tool_name,
            call_id=ask.call_id,
            reason=ask.reason,
            signal=late.withdraw.signal,
            id=ask.id,
            pending_since=ask.since,
        )
        outcome = await self._questions.put(request)
        late.shown = False
        # Only a yes or a no decides: who comes next may still be able to answer.
        if outcome in ("allowed-once", "rejected") and late in self._open:
            self._log(late, outcome)
            self._tell(late.agent, ask, outcome)

    def _log(self, late: _Late, outcome: ApprovalOutcome) -> None:
        late.leave()
        _log_decision(late.agent.session, late.ask, outcome)

    def _tell(self, agent: Agent, ask: LeftAsk, outcome: ApprovalOutcome) -> None:
        """Let a decision that is logged have its effect."""
        if outcome == "allowed-once" and ask.wish is not None:
            self._grants.add(agent.session, ask.wish, ask.notice_id)
        agent.inject(_notice(ask, outcome))


class _Late:
    """A late question that is undecided.

    Attributes:
        shown: Whether an answerer may have it now.
        leave: Lets go of the agent, which owns the question with the service.
    """

    leave: Callable[[], object]

    def __init__(self, agent: Agent, ask: LeftAsk) -> None:
        self.agent = agent
        self.ask = ask
        self.withdraw = AbortController()
        self.shown = True


def _log_decision(session: Session, ask: LeftAsk, outcome: ApprovalOutcome) -> None:
    session.append(APPROVAL_DECIDED, ApprovalDecided(id=ask.id, outcome=outcome))


# Nothing here depends on the grant: it may be gone when the model reads of it.
_ALLOWED = (
    "It was allowed. If it is still needed, make the same call once more, with exactly the same "
    "arguments and before your turn ends; any other call needs approval of its own."
)
_REJECTED = (
    "It was rejected, by the user or the approval policy. Do not try the same again; find "
    "another way or tell the user what is missing."
)


def _notice(ask: LeftAsk, outcome: ApprovalOutcome) -> UserMessage:
    what = f"a call of the tool {ask.tool_name!r}"
    if ask.call is not None:
        arguments = ask.call.arguments
        shown = arguments[:_SHOWN_ARGUMENTS] + ("..." if arguments[_SHOWN_ARGUMENTS:] else "")
        what += f" with the arguments {shown}"
    reason = f" (asked for: {ask.reason})" if ask.reason else ""
    allowed = outcome == "allowed-once"
    text = (
        f"When the session was interrupted, {what} waited for approval{reason}; it was not done. "
        f"The question has been answered since. {_ALLOWED if allowed else _REJECTED}"
    )
    source: dict[str, Any] = {
        "kind": "plugin",
        "plugin": "user-approval",
        "form": "notice",
        "summary": f"approval after an interruption: {'allowed' if allowed else 'rejected'}",
    }
    message = create_user_message(text, source)
    return cast("UserMessage", snapshot({**message, "id": ask.notice_id}))
