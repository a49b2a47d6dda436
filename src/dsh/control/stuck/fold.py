"""What a session's log says about being stuck, since somebody last spoke to its agent."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any, Final, cast

from dsh.control.stuck.detector import Detector
from dsh.execution.tools.service import ABORTED, ABORTED_BEFORE_DISPATCH
from dsh.model.messages import text_of
from dsh.state.session.log import without_settled_chunks
from dsh.state.session.repair import TOOL_NOT_STARTED, TOOL_OUTCOME_UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from dsh.base.json import JsonValue
    from dsh.control.stuck.detector import Thresholds
    from dsh.model.messages import UserMessage
    from dsh.state.session.session import Session

NOTICE_SOURCE: Final = "stuck-guard"
"""The plugin in the source of the messages that tell an agent that it is stuck."""
_OWN_DRIVE: Final = frozenset({"plugin", "goal", "schedule", "tool", "model"})
"""Kinds of messages with which a program keeps an agent going; all others bring news."""
_NO_OUTCOME: Final = frozenset(
    {ABORTED, ABORTED_BEFORE_DISPATCH, TOOL_NOT_STARTED, TOOL_OUTCOME_UNKNOWN}
)
"""Codes of calls that somebody cut short; they say nothing about the agent."""


def brings_news(messages: Iterable[UserMessage]) -> bool:
    """Whether the user, or another agent, speaks in one of the messages."""
    return any(message["source"]["kind"] not in _OWN_DRIVE for message in messages)


class StuckFold:
    """Feeds a detector from a log, as far as it was read.

    The first reading begins at the last message that brought news, so it finds after a resume
    what it would have known without.

    Args:
        session: Whose log.
        thresholds: When to act.
        polls: Whether a call only waits for something outside; the arguments are the text of a
            model, or the values of a program.
    """

    __slots__ = ("_next", "_open", "_polls", "_session", "_turn_ended", "_waiting", "detector")

    def __init__(
        self, session: Session, thresholds: Thresholds, polls: Callable[[str, JsonValue], bool]
    ) -> None:
        self.detector = Detector(thresholds, polls)
        self._session = session
        self._polls = polls
        self._open: dict[str, tuple[str, str, int]] = {}
        self._waiting: set[str] = set()
        """Open calls whose program has made a call that only waits."""
        self._turn_ended: int | None = None
        self._next = _beginning(session)

    def catch_up(self) -> None:
        """Read what the log has got since the last time."""
        session = self._session
        if self._next == session.seq:
            return
        event: Any
        for event in without_settled_chunks(session.events, self._next):
            handler = _HANDLERS.get(event["type"])
            if handler is not None:
                try:
                    handler(self, event["data"], event["time"])
                except (LookupError, TypeError, AttributeError):
                    pass  # a log from elsewhere; what is not shaped as declared says nothing
        self._next = session.seq

    def _turn_start(self, data: Mapping[str, Any], time: int) -> None:
        ended, self._turn_ended = self._turn_ended, None
        if ended is not None and time - ended >= self.detector.thresholds.patience_ms:
            self.detector.start_over()

    def _turn_end(self, data: Mapping[str, Any], time: int) -> None:
        self._turn_ended = time
        self._open.clear()
        self._waiting.clear()
        if data["reason"]["kind"] == "error":
            self.detector.replied("")

    def _user_message(self, data: Mapping[str, Any], time: int) -> None:
        source = data["source"]
        if source["kind"] not in _OWN_DRIVE:
            self.detector.start_over()
        elif source.get("plugin") == NOTICE_SOURCE:
            self.detector.told()

    def _reply(self, data: Mapping[str, Any], time: int) -> None:
        if data.get("interrupted"):
            return
        for block in data["message"]["content"]:
            if block["type"] == "tool-call":
                return
        self.detector.replied(text_of(data["message"]))

    def _call(self, data: Mapping[str, Any], time: int) -> None:
        self._open[data["callId"]] = (data["name"], data["arguments"], time)

    def _nested_result(self, data: Mapping[str, Any], time: int) -> None:
        root = data["rootCallId"]
        if data["isError"] or root in self._waiting:
            return
        if self._polls(data["name"], data["arguments"]):
            self._waiting.add(root)

    def _result(self, data: Mapping[str, Any], time: int) -> None:
        message = data["message"]
        call_id = message["source"]["callId"]
        started = self._open.pop(call_id, None)
        waited = call_id in self._waiting
        self._waiting.discard(call_id)
        if started is None or ("error" in data and data["error"]["code"] in _NO_OUTCOME):
            return
        block = message["content"][0]
        tool, arguments, at = started
        failed = bool(block.get("isError"))
        # A program that polls is a wait, however quick it is; one that fails is none.
        took_ms = inf if waited and not failed else time - at
        self.detector.called(tool, arguments, block["content"], failed=failed, took_ms=took_ms)


_HANDLERS: Final = {
    "turn/start": StuckFold._turn_start,
    "turn/end": StuckFold._turn_end,
    "user/message": StuckFold._user_message,
    "assistant/message": StuckFold._reply,
    "tool/call": StuckFold._call,
    "tool/code-dispatch": StuckFold._nested_result,
    "tool/result": StuckFold._result,
}


def _beginning(session: Session) -> int:
    """Return where to begin to read: what a fork inherited is not what its agent did."""
    inherited = session.header.get("seedLength", 0)
    events = session.events
    for event in reversed(events):
        if event["seq"] < inherited:
            break
        if event["type"] == "user/message":
            data = cast("Mapping[str, Any]", event["data"])
            if data.get("source", {}).get("kind") not in _OWN_DRIVE:
                return event["seq"]
    return min(inherited, len(events))
