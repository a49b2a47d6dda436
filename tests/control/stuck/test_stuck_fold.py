from __future__ import annotations

from typing import Any

import pytest

from dsh.control.stuck.detector import Thresholds
from dsh.control.stuck.fold import StuckFold
from dsh.execution.tools.service import ABORTED
from dsh.state.session.log import EventLog


class Log:
    """What a fold reads of a session."""

    def __init__(self) -> None:
        self.header: dict[str, Any] = {}
        self._all: list[Any] = []

    @property
    def seq(self) -> int:
        return len(self._all)

    @property
    def events(self) -> EventLog:
        return EventLog(self._all, self.seq)

    def append(self, kind: str, data: dict[str, Any]) -> None:
        self._all.append({"type": kind, "seq": self.seq, "time": self.seq, "data": data})


class Story:
    """A log of turns, and what a guard makes of it."""

    def __init__(self) -> None:
        self._log: Any = Log()
        self.fold = StuckFold(self._log, Thresholds(4, 8, 5000), lambda tool, arguments: False)

    def log(self, kind: str, **data: Any) -> None:
        self._log.append(kind, data)

    def code(self) -> str | None:
        self.fold.catch_up()
        finding = self.fold.detector.finding()
        return None if finding is None else finding.code

    def call(self, id: str) -> None:
        self.log("tool/call", callId=id, name="look", arguments="{}")

    def result(self, id: str, **more: Any) -> None:
        block = {"type": "tool-result", "content": [{"type": "text", "text": "same"}]}
        self.log("tool/result", message={"source": {"callId": id}, "content": [block]}, **more)

    def reply(self, **more: Any) -> None:
        self.log("assistant/message", message={"content": [{"type": "text", "text": "x"}]}, **more)


@pytest.mark.parametrize("code", [None, ABORTED])
def test_calls_that_somebody_cut_short_say_nothing(code: str | None) -> None:
    story = Story()
    for n in range(4):
        story.call(f"c{n}")
        story.result(f"c{n}", **({} if code is None else {"error": {"code": code}}))
    assert story.code() == ("STUCK_REPEAT" if code is None else None)


@pytest.mark.parametrize("interrupted", [False, True])
def test_replies_that_somebody_cut_short_say_nothing(interrupted: bool) -> None:
    story = Story()
    for _ in range(4):
        story.reply(interrupted=interrupted)
    assert story.code() == (None if interrupted else "STUCK_MONOLOGUE")


def test_calls_without_a_result_are_held_no_longer_than_their_turn() -> None:
    story = Story()
    for n in range(10):
        story.call(f"c{n}")
        story.log("turn/end", reason={"kind": "aborted"})
    story.fold.catch_up()
    assert story.fold._open == {}


def test_what_is_not_shaped_as_declared_says_nothing() -> None:
    story = Story()
    for kind in ("user/message", "turn/end", "assistant/message", "tool/call", "tool/result"):
        story.log(kind)
    assert story.code() is None


def test_an_agent_owes_a_reply_after_a_call_and_not_after_a_reply() -> None:
    story = Story()
    story.call("c")
    story.result("c")
    story.fold.catch_up()
    assert story.fold.detector.owes_reply
    story.reply()
    story.fold.catch_up()
    assert not story.fold.detector.owes_reply
