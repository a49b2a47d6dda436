"""The outcome of one headless run, folded from the session's events."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, cast

from dsh.base.values import record
from dsh.model.messages import text_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dsh.state.session.events import SessionEvent

_COUNTS = ("inputTokens", "outputTokens", "cacheReadTokens", "cacheWriteTokens", "reasoningTokens")


@record
class RunFold:
    """Takes each event of a run in order; what came before the first turn does not count."""

    text: str = ""
    """Text of the last assistant message that has any, an interrupted one included."""
    reason: Mapping[str, Any] | None = None
    """Reason of the last finished turn."""
    turns: int = 0
    steps: int = 0
    usage: dict[str, int] = field(default_factory=dict)
    """Tokens of every model call of the run, failed attempts included."""
    provider: str | None = None
    model: str | None = None

    def push(self, event: SessionEvent) -> None:
        """Fold one event."""
        handler = _HANDLERS.get(event["type"])
        if handler is not None:
            handler(self, cast("Mapping[str, Any]", event["data"]))

    @property
    def kind(self) -> str | None:
        """Kind of the last turn's end, or ``None`` when no turn ended."""
        return self.reason["kind"] if self.reason else None

    @property
    def failure(self) -> Mapping[str, Any] | None:
        """Why the last turn failed, when it did."""
        return self.reason["error"] if self.reason and self.reason["kind"] == "error" else None

    def to_json(self, *, session_id: str, duration_ms: int, cwd: str | None) -> dict[str, Any]:
        """Return the result object of the formats ``json`` and ``stream-json``."""
        result: dict[str, Any] = {
            "sessionId": session_id,
            "reason": self.kind or "none",
            "text": self.text,
        }
        if self.failure is not None:
            result["error"] = self.failure
        model = f"{self.provider}/{self.model}" if self.provider else None
        return result | {
            "usage": self.usage,
            "turns": self.turns,
            "steps": self.steps,
            "durationMs": duration_ms,
            "model": model,
            "cwd": cwd,
        }

    def _turn_start(self, data: Mapping[str, Any]) -> None:
        self.turns += 1

    def _turn_end(self, data: Mapping[str, Any]) -> None:
        self.reason = data["reason"]

    def _step_start(self, data: Mapping[str, Any]) -> None:
        self.steps += 1

    def _chunk(self, data: Mapping[str, Any]) -> None:
        chunk = data["chunk"]
        if chunk["type"] == "usage":
            for count in _COUNTS:
                if value := chunk["usage"].get(count):
                    self.usage[count] = self.usage.get(count, 0) + value

    def _message(self, data: Mapping[str, Any]) -> None:
        self.text = text_of(data["message"]) or self.text

    def _header(self, data: Mapping[str, Any]) -> None:
        config = data["header"]["config"]
        self.provider, self.model = config["provider"], config["model"]


_HANDLERS = {
    "turn/start": RunFold._turn_start,
    "turn/end": RunFold._turn_end,
    "step/start": RunFold._step_start,
    "assistant/chunk": RunFold._chunk,
    "assistant/message": RunFold._message,
    "request/header": RunFold._header,
}
