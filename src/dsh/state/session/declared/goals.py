"""What the log keeps of goals: each event holds the whole state after a change."""

from __future__ import annotations

from typing import Final, Literal, NotRequired, TypeAlias, TypedDict

from dsh.state.session.events import EventType


class BlockedReason(TypedDict):
    """Why a goal waits for somebody."""

    code: str
    message: str


class Goal(TypedDict):
    """A goal at one revision."""

    id: str
    revision: int
    objective: str
    phase: Literal["active", "paused", "blocked", "complete"]
    blockedReason: NotRequired[BlockedReason]
    maxGoalRounds: int


class GoalRevision(TypedDict):
    """Which goal, at which revision."""

    id: str
    revision: int


class GoalKept(TypedDict):
    """A goal after a change that leaves it in place."""

    kind: Literal["goal/change"]
    version: Literal[1]
    operation: Literal["create", "edit", "pause", "resume", "complete", "block"]
    goal: Goal
    roundsStarted: int
    createdAt: int
    updatedAt: int


class GoalCleared(TypedDict):
    """There is no goal any more."""

    kind: Literal["goal/change"]
    version: Literal[1]
    operation: Literal["clear"]
    cleared: GoalRevision
    clearedAt: int


GoalChange: TypeAlias = "GoalKept | GoalCleared"
"""One change of the goal."""

GOAL_CHANGE: Final = EventType[GoalChange]("goal/change", GoalKept, GoalCleared)
"""After each change; the last one is the state."""
