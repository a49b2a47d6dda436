"""How records are made of events, failures and ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsh.base.errors import message_of
from dsh.base.json import thaw
from dsh.state.telemetry.service import Severity, TelemetryRecord

if TYPE_CHECKING:
    from dsh.execution.agent.events import AgentErrorRaised
    from dsh.state.session.events import SessionEvent
    from dsh.state.session.session import Session

__all__ = ["agent_error_record", "ledger_record", "shutdown_record"]

_FROM_HEADER = {
    "cwd": "session.cwd",
    "parentSession": "session.parent_id",
    "seedLength": "session.seed_length",
}


def ledger_record(session: Session, event: SessionEvent) -> TelemetryRecord:
    """Return the record of an event, with a copy of its data."""
    header: Any = session.header
    attributes: dict[str, str | int] = {
        "session.id": session.id,
        "event.type": event["type"],
        "event.seq": event["seq"],
    }
    attributes |= {ours: header[key] for key, ours in _FROM_HEADER.items() if key in header}
    severity = _severity(event["type"], event["data"])
    return TelemetryRecord("ledger", event["time"], severity, attributes, thaw(event["data"]))


def agent_error_record(event: AgentErrorRaised, now_ms: int) -> TelemetryRecord:
    """Return the record of a driver that failed."""
    error = type(event.error).__name__
    attributes: dict[str, str | int] = {
        "telemetry.op": "agent-error",
        "session.id": event.agent.session.id,
        "agent.id": event.agent.id,
        "error.name": error,
        "turn": event.turn,
        "step": event.step,
    }
    body = {"name": error, "message": message_of(event.error)}
    return TelemetryRecord("ops", now_ms, "error", attributes, body)


def shutdown_record(session: Session, now_ms: int) -> TelemetryRecord:
    """Return the record that no more comes of a session."""
    attributes: dict[str, str | int] = {"telemetry.op": "shutdown", "session.id": session.id}
    return TelemetryRecord("ops", now_ms, "info", attributes, {"op": "shutdown"})


def _severity(type: str, data: Any) -> Severity:
    if type == "turn/end":
        failed = data["reason"].get("kind") == "error"
    elif type == "tool/result":
        blocks = data["message"]["content"]
        failed = "error" in data or any(block.get("isError") for block in blocks)
    else:
        failed = False
    return "error" if failed else "info"
