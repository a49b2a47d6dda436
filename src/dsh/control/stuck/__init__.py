"""Noticing that an agent goes round in circles. The plugin is `dsh.control.stuck.policy`."""

from __future__ import annotations

from dsh.control.stuck.events import STUCK_DETECTED, StuckDetected

__all__ = ["STUCK_DETECTED", "StuckDetected"]
