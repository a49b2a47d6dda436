"""The row ``approval-invariants``: refuses records of approvals that nobody may write.

For tests, and to find a plugin that breaks a log; off unless ``DSH_SESSION_INVARIANTS=1``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from dsh.control.approval.events import APPROVAL_OUTCOMES, APPROVAL_POLICIES
from dsh.kernel import INTERNAL_DISPATCH
from dsh.state.session.events import SESSION_EVENT
from dsh.state.session.nesting import BrokenInvariant

if TYPE_CHECKING:
    from dsh.kernel import Context, Dispatching
    from dsh.state.session.session import Session

name = "approval-invariants"


def apply(ctx: Context) -> None:
    """Check each event before it is committed; what a session brought along is not judged."""
    asks: WeakKeyDictionary[Session, Asks] = WeakKeyDictionary()

    def dispatching(event: Dispatching) -> None:
        if event.name != SESSION_EVENT.name:
            return
        session, appended = event.payload.session, event.payload.event
        if not appended["type"].startswith("approval/"):
            return
        seen = asks.setdefault(session, Asks(session.header.get("seedLength", 0)))
        for earlier in session.events[seen.count :]:
            seen.read(earlier)
        if (problem := seen.problem(appended)) is not None:
            raise BrokenInvariant(session.id, appended["seq"], appended["type"], problem)

    ctx.on(INTERNAL_DISPATCH, dispatching)


class Asks:
    """The questions of a log that are open.

    Args:
        inherited: How many events are another session's: their questions are not this one's.

    Attributes:
        count: How many events were read.
    """

    def __init__(self, inherited: int = 0) -> None:
        self.count = 0
        self._inherited = inherited
        self._in_turn = False
        self._open: dict[str, bool] = {}
        """Ids, with whether the turn that asked goes on."""

    def problem(self, event: Mapping[str, Any]) -> str | None:
        """Say why an event cannot be the next one; change nothing."""
        data = event["data"]
        match event["type"]:
            case "approval/asked":
                return self._asked_problem(data)
            case "approval/decided" if data["id"] not in self._open:
                return f"no question {data['id']!r} is open"
            case "approval/decided" if data["outcome"] not in APPROVAL_OUTCOMES:
                return f"the outcome {data['outcome']!r} does not exist"
            case "approval/decided" if self._open[data["id"]] and not self._in_turn:
                return "no turn is open"
            case "approval/policy" if data["policy"] not in APPROVAL_POLICIES:
                return f"the policy {data['policy']!r} does not exist"
            case _:
                return None

    def read(self, event: Mapping[str, Any]) -> None:
        """Take an event that is in the log."""
        self.count += 1
        data = event["data"]
        match event["type"]:
            case "turn/start":
                self._in_turn = True
            case "turn/end":
                self._in_turn = False
                self._open = dict.fromkeys(self._open, False)
            case "approval/asked" if event["seq"] >= self._inherited:
                self._open[data["id"]] = True
            case "approval/decided":
                self._open.pop(data["id"], None)
            case _:
                pass

    def _asked_problem(self, data: Mapping[str, Any]) -> str | None:
        if not self._in_turn:
            return "no turn is open"
        if not data["toolName"]:
            return "its toolName is empty"
        if data["id"] in self._open:
            return f"question {data['id']!r} is open already"
        return None
