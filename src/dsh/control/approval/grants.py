"""What people allowed after the call that asked for it was gone: one repetition of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from dsh.base.values import value
from dsh.control.approval.events import call_of
from dsh.state.session.events import TURN_END, USER_MESSAGE

if TYPE_CHECKING:
    from dsh.control.approval.events import RecordedCall
    from dsh.control.approval.service import ApprovalRequest
    from dsh.execution.agent.service import Agent
    from dsh.model.messages import MessageId
    from dsh.state.session.session import Session


@value
class Wish:
    """What a question is about; two questions are the same one if this is equal."""

    tool_name: str
    arguments: str
    """In canonical spelling."""
    reason: str | None


def wish_of(request: ApprovalRequest) -> Wish | None:
    """Return what a question is about; ``None`` when the log does not have the call."""
    call = call_of(request.agent.session, request.call_id)
    return wish_about(call, request.tool_name, request.reason)


def wish_about(call: RecordedCall | None, tool_name: str, reason: str | None) -> Wish | None:
    """Return what a question is about whose call the log may have, under its own name."""
    if call is None or call.name != tool_name:
        return None
    return Wish(tool_name, call.canonical_arguments, reason)


@value
class _Grant:
    wish: Wish
    notice: MessageId
    """The message that tells the model of it."""
    seq: int
    """How long the log was when it was given."""


class Grants:
    """Grants of this process; each serves once, and ends with the turn that was told of it."""

    def __init__(self) -> None:
        self._of: WeakKeyDictionary[Session, list[_Grant]] = WeakKeyDictionary()

    def add(self, session: Session, wish: Wish, notice: MessageId) -> None:
        """Allow one call of a session's agent, of which ``notice`` is about to tell the model."""
        self._of.setdefault(session, []).append(_Grant(wish, notice, session.seq))

    def take(self, request: ApprovalRequest) -> bool:
        """Use up a grant of exactly this; say whether there was one."""
        grants = self._of.get(request.agent.session)
        if not grants:
            return False
        grants[:] = [grant for grant in grants if _holds(grant, request.agent)]
        wish = wish_of(request)
        for grant in grants:
            if grant.wish == wish:
                grants.remove(grant)
                return True
        return False


def _holds(grant: _Grant, agent: Agent) -> bool:
    """Whether the turn that was told of a grant goes on, or the notice still waits for one."""
    told = False
    for event in agent.session.events[grant.seq :]:
        data: Any = event["data"]
        if event["type"] == USER_MESSAGE.name and data["id"] == grant.notice:
            told = True
        elif told and event["type"] == TURN_END.name:
            return False
    waiting = (*agent.inbox.next_step, *agent.inbox.next_turn)
    return told or any(message["id"] == grant.notice for message in waiting)
