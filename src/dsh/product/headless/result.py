"""The outcome of one headless run, folded from the session's events."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, cast

from dsh.base.values import record
from dsh.control.budgets.usage import SETTLING, AttemptUsage
from dsh.model.messages import text_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dsh.control.budgets.service import Budgets
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
    model: str | None = None
    """Where the last request went, as ``provider/model``."""
    routes: dict[str, dict[str, int]] = field(default_factory=dict)
    """The tokens of every model call, failed attempts included, by ``provider/model``."""
    _attempts: AttemptUsage = field(default_factory=AttemptUsage)

    def push(self, event: SessionEvent) -> None:
        """Fold one event."""
        kind, data = event["type"], cast("Mapping[str, Any]", event["data"])
        handler = _HANDLERS.get(kind)
        if handler is not None:
            handler(self, data)
        if kind in SETTLING and (used := self._attempts.push(cast("Mapping[str, Any]", event))):
            self._count(*used)

    @property
    def usage(self) -> dict[str, int]:
        """The tokens of all routes together; a count that nobody reported is absent."""
        total: dict[str, int] = {}
        for counts in self.routes.values():
            _add(total, counts)
        return total

    @property
    def kind(self) -> str | None:
        """Kind of the last turn's end, or ``None`` when no turn ended."""
        return self.reason["kind"] if self.reason else None

    @property
    def failure(self) -> Mapping[str, Any] | None:
        """Why the last turn failed, or was ended by a guard, when it was."""
        if self.reason is None:
            return None
        if self.reason["kind"] == "error":
            return cast("Mapping[str, Any]", self.reason["error"])
        cause = self.reason.get("reason")
        if self.reason["kind"] != "aborted" or not cause or cause["kind"] != "hook":
            return None
        return {"code": cause.get("code", "HOOK"), "message": cause.get("reason", "a hook said so")}

    def cost(self, budgets: Budgets | None) -> dict[str, Any] | None:
        """Return the amount and currency of the run, when every route it used has a price."""
        if budgets is None or not self.routes:
            return None
        total = 0.0
        for route, usage in self.routes.items():
            provider, _, model = route.partition("/")
            cost = budgets.cost_of(provider, model, cast("Any", usage))
            if cost is None:
                return None
            total += cost
        return {"amount": total, "currency": budgets.currency}

    def to_json(
        self,
        *,
        session_id: str,
        duration_ms: int,
        cwd: str | None,
        cost: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Return the result object of the formats ``json`` and ``stream-json``."""
        result: dict[str, Any] = {
            "sessionId": session_id,
            "reason": self.kind or "none",
            "text": self.text,
        }
        if self.failure is not None:
            result["error"] = self.failure
        if cost is not None:
            result["cost"] = cost
        return result | {
            "usage": self.usage,
            "turns": self.turns,
            "steps": self.steps,
            "durationMs": duration_ms,
            "model": self.model,
            "cwd": cwd,
        }

    def _turn_start(self, data: Mapping[str, Any]) -> None:
        self.turns += 1

    def _turn_end(self, data: Mapping[str, Any]) -> None:
        self.reason = data["reason"]

    def _step_start(self, data: Mapping[str, Any]) -> None:
        self.steps += 1

    def _message(self, data: Mapping[str, Any]) -> None:
        self.text = text_of(data["message"]) or self.text

    def _header(self, data: Mapping[str, Any]) -> None:
        config = data["header"]["config"]
        self.model = f"{config['provider']}/{config['model']}"

    def _count(self, route: str, usage: Mapping[str, Any]) -> None:
        _add(self.routes.setdefault(route, {}), usage)


def _add(total: dict[str, int], usage: Mapping[str, Any]) -> None:
    for count in _COUNTS:
        if more := usage.get(count):
            total[count] = total.get(count, 0) + more


_HANDLERS = {
    "turn/start": RunFold._turn_start,
    "turn/end": RunFold._turn_end,
    "step/start": RunFold._step_start,
    "assistant/message": RunFold._message,
    "request/header": RunFold._header,
}
