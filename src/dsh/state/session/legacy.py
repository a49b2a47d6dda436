"""Shapes that early writers of the format used, brought to today's on the way in.

Storage is not touched. Values of today's shape pass unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dsh.state.session.errors import RefusedEvent

if TYPE_CHECKING:
    from dsh.state.session.events import SessionEvent


_EARLY_TYPES = frozenset(
    {
        "turn/start",
        "turn/end",
        "steering/message",
        "user/message",
        "assistant/message",
        "tool/result",
    }
)


class LegacyUpgrade:
    """Upgrades the events of one log in order.

    Args:
        session_id: Part of the ids that messages without one get.
        events: The upgraded events so far; read, not changed.
    """

    def __init__(self, session_id: str, events: Sequence[SessionEvent]) -> None:
        self._session_id = session_id
        self._events = events

    def upgrade(self, event: dict[str, Any]) -> dict[str, Any]:
        """Return the event in today's shape.

        Raises:
            RefusedEvent: it is of an early shape and breaks it.
        """
        # Most events of a log are of other types, and every event comes through here.
        data = event.get("data") if event.get("type") in _EARLY_TYPES else None
        if not isinstance(data, dict):
            return event
        match event.get("type"):
            case "turn/start" if "trigger" in data:
                return {**event, "data": _without_trigger(data)}
            case "turn/end" if "reason" in data:
                return {**event, "data": {**data, "reason": _reason(data["reason"])}}
            case "steering/message":
                return {**event, "type": "user/message", "data": self._steering(event, data)}
            case "user/message" if "id" not in data and "role" not in data:
                return {**event, "data": self._message(event, "user", data, "source")}
            case "assistant/message" if "message" not in data and "content" in data:
                return {**event, "data": self._assistant(event, data)}
            case "tool/result" if "message" not in data and "callId" in data:
                return {**event, "data": self._result(event, data)}
            case _:
                return event

    def _steering(self, event: Mapping[str, Any], data: dict[str, Any]) -> Any:
        if isinstance(message := data.get("message"), dict):
            return message
        return self._message(event, "user", data, "source")

    def _message(
        self, event: Mapping[str, Any], role: str, data: Mapping[str, Any], source: str
    ) -> dict[str, Any]:
        if "content" not in data or source not in data:
            raise RefusedEvent(event["type"], f"it has no content or no {source}")
        return {
            "id": f"legacy-message:{self._session_id}:{event.get('seq')}",
            "role": role,
            "content": data["content"],
            "source": data[source],
        }

    def _assistant(self, event: Mapping[str, Any], data: dict[str, Any]) -> dict[str, Any]:
        message = self._message(event, "assistant", data, "provenance")
        if isinstance(message["source"], dict):
            message["source"] = {"kind": "model", **message["source"]}
        rest = {key: data[key] for key in data if key not in ("content", "provenance")}
        return {**rest, "message": message}

    def _result(self, event: Mapping[str, Any], data: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(data.get("content"), list):
            raise RefusedEvent(event["type"], "it has no content")
        block = {
            "type": "tool-result",
            "toolCallId": data["callId"],
            "content": data["content"],
        }
        if data.get("isError"):
            block["isError"] = True
        message = {
            "id": self._result_id(event),
            "role": "user",
            "content": [block],
            "source": {"kind": "tool", "callId": data["callId"]},
        }
        rest = {key: data[key] for key in data if key not in ("callId", "content", "isError")}
        return {**rest, "message": message}

    def _result_id(self, event: Mapping[str, Any]) -> str:
        """A rewritten result keeps the id of the one it replaces."""
        op = event.get("surfaceOp")
        start = op.get("start") if isinstance(op, dict) else None
        if type(start) is int and 0 <= start < len(self._events):
            target: Any = self._events[start]
            if target["type"] == "tool/result":
                return str(target["data"]["message"]["id"])
        return f"legacy-message:{self._session_id}:{event.get('seq')}"


def _without_trigger(data: dict[str, Any]) -> dict[str, Any]:
    trigger = data["trigger"]
    if data.keys() != {"turn", "trigger"} or not isinstance(trigger, dict) or "kind" not in trigger:
        raise RefusedEvent(
            "turn/start", "it has an early shape with other fields than turn, trigger"
        )
    return {"turn": data["turn"]}


def _reason(reason: Any) -> Any:
    if not isinstance(reason, dict):
        return reason
    match reason.get("kind"):
        case "aborted" if "reason" not in reason:
            return {"kind": "aborted", "reason": {"kind": "legacy"}}
        case "disposed":
            return {"kind": "aborted", "reason": {"kind": "disposed"}}
        case "error" if "failure" in reason:
            return {"kind": "error", "error": reason["failure"]}
        case "error" if "error" not in reason:
            if not isinstance(reason.get("message"), str):
                raise RefusedEvent("turn/end", "its error has no message")
            code = reason.get("code", "UNKNOWN")
            return {"kind": "error", "error": {"message": reason["message"], "code": code}}
        case _:
            return reason
