"""What the log keeps of plan mode."""

from __future__ import annotations

from typing import Final, TypedDict

from dsh.state.session.events import EventType


class PlanModeSet(TypedDict):
    """Plan mode was switched."""

    active: bool


PLAN_MODE: Final = EventType("plan/mode", PlanModeSet)
"""The last one counts; a log without one is not in plan mode."""
