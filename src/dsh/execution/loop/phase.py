"""What an agent is doing: nothing, maintenance, or a driver's turns."""

from __future__ import annotations

import asyncio
from dataclasses import field
from typing import TypeAlias

from dsh.base.signal import AbortController
from dsh.base.values import record


@record
class Idle:
    """Nothing runs."""

    last_turn: int


@record
class Maintenance:
    """A job holds the agent; turns wait."""

    last_turn: int
    abort: AbortController = field(default_factory=AbortController)
    wake_requested: bool = False


@record
class Running:
    """A driver lives; one controller spans one turn."""

    turn: int
    step: int = 0
    abort: AbortController = field(default_factory=AbortController)
    wake_requested: bool = False
    failed: bool = False
    """The driver takes nothing more, though it has not come to rest yet."""


Busy: TypeAlias = Maintenance | Running
Phase: TypeAlias = Idle | Busy


def is_outer_cancel(error: BaseException) -> bool:
    """Whether an error is the cancellation of the current task, asked for from outside.

    A ``CancelledError`` that a listener, tool or provider merely raised is a failure of theirs.
    """
    if not isinstance(error, asyncio.CancelledError):
        return False
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
