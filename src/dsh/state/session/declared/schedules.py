"""What the log keeps of scheduled prompts; instants are RFC 3339 in UTC."""

from __future__ import annotations

from typing import Final, Literal, NotRequired, TypeAlias, TypedDict

from dsh.state.session.events import EventType


class AfterSchedule(TypedDict):
    """Once, some time after it was made."""

    id: str
    kind: Literal["after"]
    prompt: str
    afterSeconds: float
    scheduledAt: str


class AtSchedule(TypedDict):
    """Once, at an instant."""

    id: str
    kind: Literal["at"]
    prompt: str
    scheduledAt: str


class EverySchedule(TypedDict):
    """Again and again; ``scheduledAt`` is the first time."""

    id: str
    kind: Literal["every"]
    prompt: str
    everySeconds: float
    scheduledAt: str


class ScheduleCreated(TypedDict):
    """A prompt is to come."""

    version: Literal[1]
    operation: Literal["create"]
    schedule: AfterSchedule | AtSchedule | EverySchedule


class ScheduleDeleted(TypedDict):
    """It is to come no more."""

    version: Literal[1]
    operation: Literal["delete"]
    id: str


class ScheduleDispatched(TypedDict):
    """It came; ``acceptedAt`` is there only when it comes again."""

    version: Literal[1]
    operation: Literal["dispatch"]
    id: str
    acceptedAt: NotRequired[str]


ScheduleChange: TypeAlias = "ScheduleCreated | ScheduleDeleted | ScheduleDispatched"
"""One change of the schedules."""

SCHEDULE_CHANGE: Final = EventType[ScheduleChange](
    "schedule/change", ScheduleCreated, ScheduleDeleted, ScheduleDispatched
)
"""After each change; the schedules are the fold of all."""
