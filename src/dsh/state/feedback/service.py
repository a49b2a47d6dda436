"""The definition of ``ctx.message_feedback``; its values have the shape of the wire.

On the wire the namespace is ``messageFeedback`` with the methods ``list``, ``put`` and ``delete``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Literal, NotRequired, TypeAlias, TypedDict

from dsh.base.errors import DshError
from dsh.kernel import Service

__all__ = [
    "DeleteFeedback",
    "Deleted",
    "FeedbackClosed",
    "FeedbackError",
    "FeedbackFailure",
    "FeedbackItem",
    "FeedbackProblem",
    "MessageFeedback",
    "NotDurable",
    "PutFeedback",
    "Rating",
    "Stored",
]

Rating: TypeAlias = Literal["positive", "negative"]
"""What a user thinks of a reply."""


class FeedbackError(DshError):
    """Feedback could not be taken, and not because of what was asked."""

    code = "MESSAGE_FEEDBACK"


class FeedbackClosed(FeedbackError, RuntimeError):
    """The plugin is unloading and takes no more feedback."""

    code = "MESSAGE_FEEDBACK_CLOSED"

    def __init__(self) -> None:
        super().__init__("message feedback is shutting down and takes no more changes")


class NotDurable(FeedbackError, RuntimeError):
    """A live session is kept by nobody, so that its messages will not be there later."""

    code = "MESSAGE_FEEDBACK_NOT_DURABLE"

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f'session "{session_id}" is kept by no storage, so feedback on it would have nothing '
            "to stand on; add a session-persistence row"
        )
        self.session_id = session_id


class FeedbackItem(TypedDict):
    """What a user thinks of one reply; ``version`` is new with every change."""

    messageId: str
    rating: Rating
    note: NotRequired[str]
    version: str
    createdAt: int
    updatedAt: int


class PutFeedback(TypedDict):
    """Say what to think of a reply; ``ifVersion`` is what the caller believes is there."""

    sessionId: str
    messageId: str
    rating: Rating
    note: NotRequired[str]
    ifVersion: str | None


class DeleteFeedback(TypedDict):
    """Take back what was said; ``ifVersion`` is what the caller believes is there."""

    sessionId: str
    messageId: str
    ifVersion: str | None


class FeedbackProblem(TypedDict):
    """Why a change was refused; the facts beside ``code`` belong to some codes only."""

    code: Literal[
        "session-not-found", "target-not-found", "version-conflict", "note-blank", "note-too-large"
    ]
    current: NotRequired[FeedbackItem | None]
    maxBytes: NotRequired[int]
    actualBytes: NotRequired[int]


class FeedbackFailure(TypedDict):
    """A change was refused and nothing has changed."""

    ok: Literal[False]
    error: FeedbackProblem


class Stored(TypedDict):
    """What is there now."""

    ok: Literal[True]
    value: FeedbackItem


class Absent(TypedDict):
    """Nothing is there now."""

    absent: Literal[True]


class Deleted(TypedDict):
    """What was asked to be taken back is not there."""

    ok: Literal[True]
    value: Absent


class MessageFeedback(Service, ABC):
    """Feedback on the replies of sessions, live or stored.

    Changes to one session happen one after the other. Feedback belongs to the one session that it
    was given on: another one of the same id does not have it.
    """

    name: ClassVar[str] = "message_feedback"

    @abstractmethod
    async def items(self, session_id: str) -> list[FeedbackItem]:
        """Return all feedback on a session; none for one that does not exist.

        Raises:
            FeedbackClosed: the plugin is unloading.
        """

    @abstractmethod
    async def put(self, request: PutFeedback) -> Stored | FeedbackFailure:
        """Store feedback on a reply that is in the stored log.

        Raises:
            FeedbackClosed: the plugin is unloading.
            NotDurable: the session is live and nobody stores it.
            Exception: what storage raised; nothing has changed.
        """

    @abstractmethod
    async def delete(self, request: DeleteFeedback) -> Deleted | FeedbackFailure:
        """Take feedback back; there being none is a success.

        Raises:
            FeedbackClosed: the plugin is unloading.
            Exception: what storage raised; nothing has changed.
        """
