"""What model calls used, by a log: of each attempt the last report counts, once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

__all__ = ["NO_ROUTE", "SETTLING", "AttemptUsage"]

NO_ROUTE: Final = "?/?"
"""Of a log that does not say where its requests went."""

SETTLING: Final = (
    "assistant/chunk",
    "assistant/message",
    "llm/retry",
    "request/header",
    "step/end",
)
"""The types of the events that `AttemptUsage.push` wants to see."""


class AttemptUsage:
    """Reads events in order.

    Chunks that became a message may be left out: what they report is in the message.

    Attributes:
        route: Where requests go now, as ``provider/model``.
    """

    __slots__ = ("_reported", "route")

    def __init__(self) -> None:
        self.route = NO_ROUTE
        self._reported: Mapping[str, Any] | None = None

    def push(self, event: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]] | None:
        """Return the route and the usage of the attempt that an event ends, if it ends one."""
        kind, data = event["type"], event["data"]
        if kind == "assistant/chunk":
            return self._chunk(data["chunk"])
        if kind == "assistant/message":
            usage, self._reported = data.get("usage", self._reported), None
            if usage is None:
                return None
            source = data["message"]["source"]
            return f"{source['provider']}/{source['model']}", usage
        settled = self.settle()
        if kind == "request/header":
            config = data["header"]["config"]
            self.route = f"{config['provider']}/{config['model']}"
        return settled

    def settle(self) -> tuple[str, Mapping[str, Any]] | None:
        """Return what an attempt reported that no message is going to come of."""
        usage, self._reported = self._reported, None
        return None if usage is None else (self.route, usage)

    def _chunk(self, chunk: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]] | None:
        if chunk["type"] == "usage":
            self._reported = chunk["usage"]
        elif chunk["type"] == "finish" and chunk["reason"]["kind"] in ("error", "aborted"):
            return self.settle()
        return None
