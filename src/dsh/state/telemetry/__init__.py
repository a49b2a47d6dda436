"""Telemetry: what sessions do, told to a collector of the user's choice, and to nobody else."""

from __future__ import annotations

from dsh.state.telemetry.events import TELEMETRY_RECORD
from dsh.state.telemetry.service import (
    Channel,
    SessionTelemetryBackend,
    Severity,
    Sharing,
    TelemetryRecord,
)

__all__ = [
    "TELEMETRY_RECORD",
    "Channel",
    "SessionTelemetryBackend",
    "Severity",
    "Sharing",
    "TelemetryRecord",
]
