"""What a child's log says of itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NotRequired, TypeAlias, TypedDict

from dsh.state.session.events import EventType


class ToolFilter(TypedDict):
    """Which tools a child has; at least one of the lists is there."""

    allow: NotRequired[Sequence[str]]
    deny: NotRequired[Sequence[str]]


class OneShotDescriptor(TypedDict):
    """The child does one task."""

    version: Literal[2]
    mode: Literal["one-shot"]
    provider: str
    label: NotRequired[str]


class ContinuableDescriptor(TypedDict):
    """The child can be spoken to again."""

    version: Literal[2]
    mode: Literal["continuable"]
    provider: str
    label: str
    agentProvider: NotRequired[str]
    agentModel: NotRequired[str]
    persona: NotRequired[str]
    toolFilter: NotRequired[ToolFilter]


SubagentDescriptor: TypeAlias = "OneShotDescriptor | ContinuableDescriptor"
"""How a child came about."""

SUBAGENT_DESCRIPTOR: Final = EventType[SubagentDescriptor](
    "subagent/descriptor", OneShotDescriptor, ContinuableDescriptor
)
"""In the first turn of a child; the first one counts."""
