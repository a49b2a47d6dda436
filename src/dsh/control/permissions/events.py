"""What the log keeps of the choice of a permission preset."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypedDict, cast

from dsh.state.session.events import EventType

__all__ = ["PERMISSION_PRESET", "PermissionPresetSelected", "effective_permission_preset"]


class PermissionPresetSelected(TypedDict):
    """A preset was chosen; events of what it sets follow."""

    preset: str


PERMISSION_PRESET: Final = EventType("permission/preset", PermissionPresetSelected)
"""The last one is what the user of the session wants."""


def effective_permission_preset(events: Iterable[Mapping[str, Any]]) -> str | None:
    """Return the preset that the last such event of a log names, if any."""
    preset = None
    for event in events:
        if event["type"] == PERMISSION_PRESET.name:
            preset = event["data"]["preset"]
    return cast("str | None", preset)
