"""What users think of single replies, kept beside the sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsh.state.feedback.service import (
        Deleted,
        DeleteFeedback,
        FeedbackFailure,
        FeedbackItem,
        FeedbackProblem,
        MessageFeedback,
        PutFeedback,
        Rating,
        Stored,
    )

__all__ = [
    "DeleteFeedback",
    "Deleted",
    "FeedbackFailure",
    "FeedbackItem",
    "FeedbackProblem",
    "MessageFeedback",
    "PutFeedback",
    "Rating",
    "Stored",
]


def __getattr__(attribute: str) -> Any:
    # Every profile has the command of this room; few have the seam, which is costly to define.
    if attribute in __all__:
        from dsh.state.feedback import service

        return getattr(service, attribute)
    message = f"module {__name__!r} has no attribute {attribute!r}"
    raise AttributeError(message)
