"""What the log records about sandbox modes."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

from dsh.state.session.events import EventType


class SandboxModeSet(TypedDict):
    """The mode of a session from here on; the last one wins."""

    mode: Literal["read-only", "workspace-write", "danger-full-access"]
    source: NotRequired[Literal["delegation"]]
    """``delegation`` marks a value that a parent agent seeded into a child."""


SANDBOX_MODE = EventType("sandbox/mode", SandboxModeSet)
"""One event each time the mode of a session is switched."""
