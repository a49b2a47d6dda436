"""The bus event of telemetry."""

from __future__ import annotations

from dsh.kernel import WaterfallSync
from dsh.state.telemetry.service import TelemetryRecord

__all__ = ["TELEMETRY_RECORD"]

TELEMETRY_RECORD = WaterfallSync[TelemetryRecord, TelemetryRecord]("session-telemetry/record")
"""Around each record that is about to leave. Return what ``next()`` gave, or another record.

A listener that does not call ``next`` replaces what all after it would do; one that raises keeps
this one record back. The log itself is out of reach: only what leaves changes.
"""
