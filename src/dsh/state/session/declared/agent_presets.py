"""What the log keeps of the choice of an agent preset."""

from __future__ import annotations

from typing import Final, TypedDict

from dsh.state.session.events import EventType


class AgentPresetSelected(TypedDict):
    """A preset was chosen after the session was made, and before its first turn."""

    agentPreset: str


AGENT_PRESET_SELECTED: Final = EventType("agent-preset/selected", AgentPresetSelected)
"""The last one outranks the header's preset."""
