"""What the log keeps of an agent that goes round in circles."""

from typing import Final, Literal, TypeAlias, TypedDict

from dsh.state.session.events import EventType

__all__ = ["STUCK_DETECTED", "StuckCode", "StuckDetected"]

StuckCode: TypeAlias = Literal[
    "STUCK_REPEAT",
    "STUCK_ALTERNATION",
    "STUCK_CYCLE",
    "STUCK_ERROR",
    "STUCK_EMPTY",
    "STUCK_MONOLOGUE",
]
"""How it is stuck; also the ``code`` in the reason of a turn that was stopped for it."""


class StuckDetected(TypedDict):
    """An agent was told that it goes round in circles, or was stopped."""

    turn: int
    step: int
    """The step that was about to begin."""
    code: StuckCode
    action: Literal["nudge", "stop"]
    count: int
    """How often it happened in a row: equal calls, rounds, failures or replies."""
    limit: int
    """At how many the action is due."""
    subject: str
    """What was repeated, in short: the tools, or the words."""


STUCK_DETECTED: Final = EventType("stuck/detected", StuckDetected, ignorable=True)
"""Before the step that carries the nudge, or before the end of the turn."""
