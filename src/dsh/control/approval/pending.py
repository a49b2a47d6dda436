"""What earlier lives of a session left undecided, or decided without the model knowing."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, cast

from dsh.base.values import record, value
from dsh.control.approval.events import APPROVAL_ASKED, APPROVAL_DECIDED, RecordedCall, call_of
from dsh.control.approval.grants import Wish, wish_about
from dsh.model.messages import CallId, MessageId
from dsh.state.session.events import TURN_END, USER_MESSAGE

if TYPE_CHECKING:
    from dsh.control.approval.service import ApprovalOutcome
    from dsh.state.session.events import SessionEvent
    from dsh.state.session.session import Session

_NOTICE = "approval-"
_READ = frozenset({TURN_END.name, APPROVAL_ASKED.name, APPROVAL_DECIDED.name, USER_MESSAGE.name})


@value
class LeftAsk:
    """A question whose asker is gone: the turn it stood in was cut off.

    Attributes:
        id: Of the question.
        tool_name: As it was asked.
        call_id: As it was asked.
        reason: As it was asked.
        since: When it was asked, in milliseconds of the wall clock.
        call: What the model had called, as far as the log has it.
    """

    id: str
    tool_name: str
    call_id: CallId | None
    reason: str | None
    since: int
    call: RecordedCall | None

    @property
    def notice_id(self) -> MessageId:
        """The id of the message that tells the model how this was decided."""
        return MessageId(_NOTICE + self.id)

    @property
    def wish(self) -> Wish | None:
        """What it is about, as far as the log has the call."""
        return wish_about(self.call, self.tool_name, self.reason)


@record
class Leftovers:
    """The two kinds, each in the order of asking."""

    undecided: list[LeftAsk] = field(default_factory=list)
    untold: list[tuple[LeftAsk, ApprovalOutcome]] = field(default_factory=list)
    """Decided after their turn, and no step has had the notice."""


def leftovers(session: Session) -> Leftovers:
    """Read what the lives of a session before this one left.

    What a fork inherited belongs to its parent, and what this life asked has an asker, who
    decides it.
    """
    inherited = session.header.get("seedLength", 0)
    scan = _Scan()
    for event in session.events[inherited:]:
        if event["type"] in _READ:
            scan.read(event)
    left = Leftovers()
    for ask, (event, turn) in scan.asked.items():
        if event["seq"] >= session.first_live_seq:
            continue
        decision = scan.decided.get(ask)
        if decision is None:
            left.undecided.append(_left(session, event))
            continue
        decided, at = decision
        told = MessageId(_NOTICE + ask) in scan.told
        if at > turn and not told and decided["seq"] < session.first_live_seq:
            data: Any = decided["data"]
            left.untold.append((_left(session, event), data["outcome"]))
    return left


@record
class _Scan:
    """The questions and decisions of a log, each with how many turns had ended before it."""

    turns: int = 0
    asked: dict[str, tuple[SessionEvent, int]] = field(default_factory=dict)
    decided: dict[str, tuple[SessionEvent, int]] = field(default_factory=dict)
    told: set[str] = field(default_factory=set)

    def read(self, event: SessionEvent) -> None:
        data = cast("dict[str, Any]", event["data"])
        match event["type"]:
            case TURN_END.name:
                self.turns += 1
            case APPROVAL_ASKED.name:
                self.asked[data["id"]] = (event, self.turns)
            case APPROVAL_DECIDED.name:
                self.decided.setdefault(data["id"], (event, self.turns))
            case USER_MESSAGE.name:
                self.told.add(data["id"])
            case _:
                pass


def _left(session: Session, event: SessionEvent) -> LeftAsk:
    data: Any = event["data"]
    call_id = data.get("callId")
    return LeftAsk(
        id=data["id"],
        tool_name=data["toolName"],
        call_id=call_id,
        reason=data.get("reason"),
        since=event["time"],
        call=call_of(session, call_id, before=event["seq"]),
    )
