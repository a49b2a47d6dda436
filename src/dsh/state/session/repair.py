"""Closing a turn that a crash cut open, so that the history stays paired and can go on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final, cast

from dsh.base.json import freeze
from dsh.base.values import record

if TYPE_CHECKING:
    from dsh.state.session.events import SessionEvent

TOOL_NOT_STARTED: Final = "TOOL_NOT_STARTED"
"""The call was never recorded as started: nothing happened."""
TOOL_OUTCOME_UNKNOWN: Final = "TOOL_OUTCOME_UNKNOWN"
"""The call was recorded as started and its result was lost: it may have taken effect."""

_NOT_STARTED_TEXT = (
    "The session was interrupted before this call was recorded as started, so it did not run. "
    "Call the tool again if its result is still needed."
)
_UNKNOWN_TEXT = (
    "The session was interrupted after this call was recorded and before a result was stored, "
    "so whether it took effect is unknown. Only a read-only or idempotent call may simply be "
    "repeated. Otherwise look at the state it would have changed, or ask the user; do not "
    "repeat it blindly."
)


@record
class _Pending:
    """A call that the model asked for and that has no result yet."""

    step: int
    call_seq: int | None = None


@record
class _Scan:
    """What is open at some point of a log; ``pending`` counts while a turn is."""

    turn: int | None = None
    step: int | None = None
    pending: dict[str, _Pending] = field(default_factory=dict)

    def read(self, event: Mapping[str, Any]) -> None:
        data = event["data"]
        match event["type"]:
            case "turn/start":
                self.turn, self.step = data["turn"], None
                self.pending.clear()
            case "turn/end":
                self.turn = self.step = None
            case "step/start":
                self.step = data["step"]
            case "step/end":
                self.step = None
                self.pending.clear()
            case "assistant/message":
                self._register(data)
            case "tool/call":
                if (call := self.pending.get(data["callId"])) is not None:
                    call.call_seq = event["seq"]
            case "tool/result":
                self.pending.pop(data["message"]["source"]["callId"], None)
            case _:
                pass

    def _register(self, data: Mapping[str, Any]) -> None:
        for block in data["message"]["content"]:
            if block.get("type") == "tool-call":
                self.pending[block["id"]] = _Pending(data["step"])


def interrupted_turn_closers(events: Iterable[Mapping[str, Any]]) -> list[SessionEvent]:
    """Return the events that close what a log leaves open; none when it is balanced.

    Each pending call gets an error result that says whether it may have run, in the order in
    which the model asked; then the step and the turn end. The same log always gives the same
    events. Brackets of plugins are left to their owners.
    """
    scan = _Scan()
    last: Mapping[str, Any] | None = None
    for event in events:
        if event["type"] != "assistant/chunk":
            scan.read(event)
        last = event
    if scan.turn is None or last is None:
        return []
    closers = _Closers(scan.turn, last["seq"] + 1, last["time"])
    for call_id, call in scan.pending.items():
        closers.result(call_id, call)
    if scan.step is not None:
        closers.add("step/end", {"turn": scan.turn, "step": scan.step})
    closers.add("turn/end", {"turn": scan.turn, "reason": {"kind": "interrupted"}})
    return closers.events


class _Closers:
    """Builds contiguous events that share one time."""

    def __init__(self, turn: int, seq: int, time: int) -> None:
        self.events: list[SessionEvent] = []
        self._turn = turn
        self._seq = seq
        self._time = time

    def add(self, type: str, data: dict[str, Any], **envelope: object) -> None:
        event = {"type": type, "seq": self._seq, "time": self._time, "data": data, **envelope}
        self.events.append(cast("SessionEvent", freeze(event)))
        self._seq += 1

    def result(self, call_id: str, call: _Pending) -> None:
        started = call.call_seq is not None
        block = {
            "type": "tool-result",
            "toolCallId": call_id,
            "content": [{"type": "text", "text": _UNKNOWN_TEXT if started else _NOT_STARTED_TEXT}],
            "isError": True,
        }
        error = (
            {"name": "ToolOutcomeUnknownError", "code": TOOL_OUTCOME_UNKNOWN}
            if started
            else {"name": "ToolNotStartedError", "code": TOOL_NOT_STARTED}
        )
        message = {
            "id": f"interrupted-tool-result-{call_id}-{self._seq}",
            "role": "user",
            "content": [block],
            "source": {"kind": "tool", "callId": call_id},
        }
        data = {"turn": self._turn, "step": call.step, "message": message, "error": error}
        sources: dict[str, object] = {"sourceEventSeqs": [call.call_seq]} if started else {}
        self.add("tool/result", data, **sources, surfaceOp="append")
