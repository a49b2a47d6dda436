"""What a session's log may say of commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dsh.control.commands.events import COMMAND_DONE, COMMAND_RUN

__all__ = ["CommandLog", "names_a_cause"]


def names_a_cause(events: Sequence[Mapping[str, Any]], seq: object) -> bool:
    """Whether a result may point at ``seq``: an event of this log that is not a command's."""
    if isinstance(seq, bool) or not isinstance(seq, int) or not 0 <= seq < len(events):
        return False
    return events[seq]["type"] not in (COMMAND_RUN.name, COMMAND_DONE.name)


class CommandLog:
    """The uses of commands in a log, as far as it was read.

    A run that was never settled is no fault: the process may have ended under it, and a fork may
    begin between the two.
    """

    __slots__ = ("_events", "_open", "_seen")

    def __init__(self) -> None:
        self._events: list[Mapping[str, Any]] = []
        self._seen: set[str] = set()
        self._open: set[str] = set()

    @property
    def count(self) -> int:
        """How many events were read."""
        return len(self._events)

    @property
    def unsettled(self) -> frozenset[str]:
        """Ids of the runs that are not done."""
        return frozenset(self._open)

    def problem(self, event: Mapping[str, Any]) -> str | None:
        """Say why an event cannot be the next one; change nothing."""
        data = event["data"]
        if event["type"] == COMMAND_RUN.name:
            if data["commandId"] in self._seen:
                return f"the command id {data['commandId']!r} is taken in this log"
        elif event["type"] == COMMAND_DONE.name:
            return self._done(data)
        return None

    def read(self, event: Mapping[str, Any]) -> None:
        """Take an event as the next one."""
        self._events.append(event)
        if event["type"] == COMMAND_RUN.name:
            self._seen.add(event["data"]["commandId"])
            self._open.add(event["data"]["commandId"])
        elif event["type"] == COMMAND_DONE.name:
            self._open.discard(event["data"]["commandId"])

    def _done(self, data: Mapping[str, Any]) -> str | None:
        if data["commandId"] not in self._open:
            return f"no run of the command id {data['commandId']!r} is open"
        if "sourceEventSeq" not in data:
            return None
        if data["kind"] == "error":
            return "an error has no source event"
        if not names_a_cause(self._events, data["sourceEventSeq"]):
            return f"event {data['sourceEventSeq']!r} is no earlier event that a command can name"
        return None
