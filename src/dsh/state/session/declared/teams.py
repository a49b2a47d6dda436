"""What the lead's log keeps of a team."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NotRequired, TypedDict

from dsh.model.messages import ContentBlock
from dsh.state.session.events import EventType


class Member(TypedDict):
    """A member at some moment."""

    id: str
    name: str
    description: str
    provider: str
    context: Literal["fresh", "fork"]
    phase: Literal["provisioning", "active", "failed"]
    error: NotRequired[object]


class TeamMember(TypedDict):
    """A member as it is from here on."""

    version: Literal[1]
    teamId: str
    member: Member


class Task(TypedDict):
    """A task at one revision."""

    id: str
    revision: int
    subject: str
    description: str
    status: Literal["pending", "in_progress", "completed", "deleted"]
    ownerId: NotRequired[str]
    blockedBy: Sequence[str]
    writeScopes: Sequence[str]


class TeamTask(TypedDict):
    """A task as it is from here on."""

    version: Literal[1]
    teamId: str
    task: Task


class QueuedMessage(TypedDict):
    """A message between members."""

    id: str
    senderId: str
    senderName: str
    targetId: str
    delivery: Literal["quiet", "wakeup"]
    content: Sequence[ContentBlock]


class TeamMessageQueued(TypedDict):
    """A message waits for its target."""

    version: Literal[1]
    teamId: str
    message: QueuedMessage


class TeamMessageDelivered(TypedDict):
    """It arrived."""

    version: Literal[1]
    teamId: str
    messageId: str
    targetId: str


TEAM_MEMBER: Final = EventType("team/member", TeamMember)
"""Each time a member changes."""
TEAM_TASK: Final = EventType("team/task", TeamTask)
"""Each time a task changes."""
TEAM_MESSAGE_QUEUED: Final = EventType("team/message/queued", TeamMessageQueued)
"""Before anybody hears of the message."""
TEAM_MESSAGE_DELIVERED: Final = EventType("team/message/delivered", TeamMessageDelivered)
"""Once for each message that arrived."""
