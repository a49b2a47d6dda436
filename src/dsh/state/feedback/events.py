"""What the log keeps of a person's remarks about a session."""

from __future__ import annotations

from typing import Final, TypedDict

from dsh.state.session.events import EventType

__all__ = ["FEEDBACK_RECORD", "FeedbackRecorded"]


class FeedbackRecorded(TypedDict):
    """A remark, without space around it and never empty."""

    text: str


FEEDBACK_RECORD: Final = EventType("feedback/record", FeedbackRecorded)
"""Each remark; none takes back another."""
