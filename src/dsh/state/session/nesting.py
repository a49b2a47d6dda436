"""How turns, steps and calls nest in a log, and what may stand where.

A log that its own loop writes keeps these rules; a reader need not insist on them. They are
checked in tests, and at run time by `state.session.invariants` when that is switched on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dsh.state.session.errors import SessionError
from dsh.state.session.repair import TOOL_NOT_STARTED


class BrokenInvariant(SessionError, AssertionError):
    """Something that dsh itself does breaks a rule of the log; a bug, not bad input."""

    code = "INVARIANT"

    def __init__(self, session: str, seq: int, type: str, problem: str) -> None:
        super().__init__(f"event {seq} ({type!r}) of session {session!r} breaks a rule: {problem}")
        self.session = session
        self.seq = seq
        self.type = type
        self.problem = problem


_IN_TURN: Final = frozenset({"todo/write", "request/header", "request/context"})
_IN_STEP: Final = frozenset({"assistant/chunk", "assistant/message", "tool/call"})


class Nesting:
    """What is open at the end of a log.

    Attributes:
        count: How many events were read.
        turn: The open turn.
        step: The open step.
    """

    __slots__ = ("_calls", "_last_step", "_last_turn", "count", "step", "turn")

    def __init__(self) -> None:
        self.count = 0
        self.turn: int | None = None
        self.step: int | None = None
        self._last_turn = 0
        self._last_step = 0
        self._calls: set[str] = set()

    def problem(self, event: Mapping[str, Any]) -> str | None:
        """Say why an event cannot be the next one; change nothing."""
        if event["seq"] != self.count:
            return f"its seq is not {self.count}"
        name, data = event["type"], event["data"]
        match name:
            case "turn/start":
                return self._turn_start(data)
            case "turn/end":
                return self._turn_end(data)
            case "step/start":
                return self._step_start(data)
            case "step/end":
                return self._in_step(data)
            case "tool/result":
                return self._result(event, data)
            case _ if name in _IN_STEP:
                return self._in_step(data)
            case _ if name in _IN_TURN and self.turn is None:
                return "no turn is open"
            case _:
                return None

    def read(self, event: Mapping[str, Any]) -> None:
        """Take an event that is in the log."""
        self.count += 1
        data = event["data"]
        match event["type"]:
            case "turn/start":
                self.turn = self._last_turn = data["turn"]
                self.step, self._last_step = None, 0
            case "turn/end":
                self.turn = self.step = None
            case "step/start":
                self.step = self._last_step = data["step"]
                self._calls.clear()
            case "step/end":
                self.step = None
            case "tool/call":
                self._calls.add(data["callId"])
            case _:
                pass

    def _turn_start(self, data: Mapping[str, Any]) -> str | None:
        if self.turn is not None:
            return f"turn {self.turn} is still open"
        if data["turn"] != self._last_turn + 1:
            return f"turn {self._last_turn + 1} comes next, not {data['turn']}"
        return None

    def _turn_end(self, data: Mapping[str, Any]) -> str | None:
        if self.step is not None:
            return f"step {self.step} is still open"
        return self._in_turn(data)

    def _step_start(self, data: Mapping[str, Any]) -> str | None:
        if self.step is not None:
            return f"step {self.step} is still open"
        if (problem := self._in_turn(data)) is not None:
            return problem
        if data["step"] != self._last_step + 1:
            return f"step {self._last_step + 1} comes next, not {data['step']}"
        return None

    def _in_turn(self, data: Mapping[str, Any]) -> str | None:
        if self.turn is None:
            return "no turn is open"
        if data["turn"] != self.turn:
            return f"turn {self.turn} is open, not {data['turn']}"
        return None

    def _in_step(self, data: Mapping[str, Any]) -> str | None:
        if (problem := self._in_turn(data)) is not None:
            return problem
        if self.step is None:
            return "no step is open"
        if data["step"] != self.step:
            return f"step {self.step} is open, not {data['step']}"
        return None

    def _result(self, event: Mapping[str, Any], data: Mapping[str, Any]) -> str | None:
        if event["surfaceOp"] != "append":
            return "no turn is open" if self.turn is None else None
        if (problem := self._in_step(data)) is not None:
            return problem
        call = data["message"]["source"]["callId"]
        if call in self._calls or data.get("error", {}).get("code") == TOOL_NOT_STARTED:
            return None
        return f"call {call!r} was not recorded in this step"
