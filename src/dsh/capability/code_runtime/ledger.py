"""How much a program has said, to the byte."""

from __future__ import annotations

from dsh.base.json import JsonValue, dumps
from dsh.capability.code_runtime.child.values import MOST_VALUES, fitting, json_size
from dsh.capability.code_runtime.service import CodeError, CodeResult

TOO_LARGE = CodeError("output-limit", "the program printed and returned more than it may")

_BRACKETS = _QUOTES = 2


class Ledger:
    """The printed lines of a run, and the room that is left.

    Counted is the JSON of the list of logs and the JSON of the value, or of the failure's message.
    """

    def __init__(self, max_bytes: int) -> None:
        self.logs: list[str] = []
        self.overflowed = False
        self.left = max_bytes - _BRACKETS
        """Bytes that may still be used."""

    def add(self, text: str, *, truncated: bool = False) -> bool:
        """Keep a log, or the start of it that fits; say whether all of it did.

        Args:
            text: What was printed.
            truncated: Whether it is only the start of it, because the rest would not fit.
        """
        if self.overflowed:
            return False
        if len(self.logs) == MOST_VALUES:
            self.overflowed = True
            return False
        room = self.left - _QUOTES - (1 if self.logs else 0)
        size = json_size(text)
        self.overflowed = truncated or size > room
        if size > room:
            text = fitting(text, room)
            if not text:
                return False
            size = json_size(text)
        self.left = room - size
        self.logs.append(text)
        return not self.overflowed

    def close(self, value: JsonValue, error: CodeError | None = None) -> CodeResult:
        """Return the result of a run that ended so, if it fits beside the logs."""
        counted = value if error is None else error.message
        fits = counted is None or len(dumps(counted)) <= self.left
        if self.overflowed or not fits:
            return CodeResult(logs=tuple(self.logs), error=TOO_LARGE)
        return CodeResult(None if error else value, tuple(self.logs), error)
