"""What the log keeps of the choice of a permission preset."""

from __future__ import annotations

from typing import Final, TypedDict

from dsh.state.session.events import EventType


class PermissionPresetSelected(TypedDict):
    """A preset was chosen; events of what it sets follow."""

    preset: str


PERMISSION_PRESET: Final = EventType("permission/preset", PermissionPresetSelected)
"""The last one is the preset of the session."""
