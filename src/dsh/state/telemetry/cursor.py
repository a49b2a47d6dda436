"""How far each session has been handed over; this outlives the plugins that hand it over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from dsh.state.session.session import Session

__all__ = ["Progress", "progress_of"]


class Progress:
    """The next event of one session object, and the step whose first chunk has passed."""

    __slots__ = ("chunk", "next_seq")

    def __init__(self, next_seq: int, chunk: tuple[Any, Any] | None) -> None:
        self.next_seq = next_seq
        self.chunk = chunk


# Keyed by the object: an id is a place that one session after the other may take.
_PROGRESS: WeakKeyDictionary[Session, Progress] = WeakKeyDictionary()


def progress_of(session: Session) -> Progress:
    """Return how far a session is; one that is new here begins behind its seed."""
    if (found := _PROGRESS.get(session)) is None:
        start = session.first_live_seq
        found = _PROGRESS[session] = Progress(start, _chunk_before(session.events, start))
    return found


def _chunk_before(events: Sequence[Any], end: int) -> tuple[Any, Any] | None:
    """Return the step that streamed last before a place, if it may go on after it."""
    for seq in range(end - 1, -1, -1):
        event = events[seq]
        if event["type"] == "assistant/chunk":
            return event["data"]["turn"], event["data"]["step"]
        if event["type"] == "step/start":
            return None
    return None
