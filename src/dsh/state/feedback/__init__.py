"""What users think of single replies, kept beside the sessions."""

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
