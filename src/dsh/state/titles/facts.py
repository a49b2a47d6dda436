"""What is known of the titles of a log, and the projection that readers get of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from dsh.state.projections.service import ProjectionUnit
from dsh.state.titles.events import SESSION_TITLE
from dsh.state.titles.text import TitleMessage, eligible_text

if TYPE_CHECKING:
    from dsh.state.session.events import SessionEvent
    from dsh.state.session.session import Session
    from dsh.state.titles.events import SessionTitleData


def _last_title(state: str | None, event: SessionEvent) -> str | None:
    if event["type"] != SESSION_TITLE.name:
        return state
    title = event["data"].get("title")
    return title if isinstance(title, str) else state


def _check_title(value: Any) -> None:
    if value is not None and not isinstance(value, str):
        raise ValueError("it is neither a text nor null")


TITLE: Final = ProjectionUnit[str | None](
    "title",
    state_version=1,
    state_schema=_check_title,
    init=lambda: None,
    apply=_last_title,
    view=lambda title: title,
    view_schema=_check_title,
)
"""The projection ``title``."""


class TitleFacts:
    """What titles need to know of a log, followed as it grows."""

    __slots__ = ("first", "messages", "next_seq", "title")

    def __init__(self) -> None:
        self.title: SessionTitleData | None = None
        self.first: TitleMessage | None = None
        self.messages = 0
        self.next_seq = 0

    def follow(self, session: Session) -> None:
        """Take in what the log has that is not known yet."""
        for event in session.events[self.next_seq :]:
            kind = event["type"]
            if kind == "user/message":
                if (text := eligible_text(event)) is not None:
                    self.messages += 1
                    self.first = self.first or TitleMessage(event["seq"], text)
            elif kind == "session/title":
                self.title = event["data"]  # type: ignore[assignment]  # the declared payload
        self.next_seq = session.seq

    @property
    def pinned(self) -> bool:
        """Whether the user gave the title."""
        return self.title is not None and self.title["source"]["kind"] == "user"
