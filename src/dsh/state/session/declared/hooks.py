"""What the log keeps of the hook programs of a user."""

from __future__ import annotations

from typing import Final, Literal, NotRequired, TypedDict

from dsh.state.session.events import EventType


class HookInvoked(TypedDict):
    """A hook program was started."""

    turn: int
    point: str
    dialect: Literal["claude-code", "codex"]
    matcher: NotRequired[str]
    handlerId: str


class HookResult(TypedDict):
    """What it decided."""

    turn: int
    point: str
    handlerId: str
    decision: str
    exitCode: NotRequired[int]
    stderrSummary: NotRequired[str]
    durationMs: float


HOOK_INVOKED: Final = EventType("hook/invoked", HookInvoked)
"""Inside a turn, before the program runs."""
HOOK_RESULT: Final = EventType("hook/result", HookResult)
"""Paired with the start by ``handlerId``."""
