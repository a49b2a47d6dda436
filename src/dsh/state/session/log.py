"""A growing log, seen through windows that do not grow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, overload

if TYPE_CHECKING:
    from dsh.state.session.events import SessionEvent


class EventLog(Sequence["SessionEvent"]):
    """The first ``length`` events of a log, without a copy.

    Sound because a log only ever grows at its end: what a window shows never changes.
    """

    __slots__ = ("_length", "_log")

    def __init__(self, log: list[SessionEvent], length: int) -> None:
        self._log = log
        self._length = length

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> SessionEvent: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[SessionEvent, ...]: ...
    def __getitem__(self, index: int | slice) -> SessionEvent | tuple[SessionEvent, ...]:
        if isinstance(index, slice):
            start, stop, step = index.indices(self._length)
            if step == 1:
                return tuple(self._log[start:stop] if start < stop else ())
            return tuple(self._log[position] for position in range(start, stop, step))
        if not -self._length <= index < self._length:
            raise IndexError(f"event {index} of {self._length}")
        return self._log[index + self._length if index < 0 else index]

    def __iter__(self) -> Iterator[SessionEvent]:
        return islice(self._log, self._length)

    def __reversed__(self) -> Iterator[SessionEvent]:
        return (self._log[index] for index in range(self._length - 1, -1, -1))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (EventLog, tuple, list)):
            return NotImplemented
        return len(other) == self._length and all(
            mine is theirs or mine == theirs for mine, theirs in zip(self, other, strict=True)
        )

    __hash__ = None  # type: ignore[assignment] # compares by content, like the list it shows

    def __repr__(self) -> str:
        return f"<{self._length} events>"


def without_settled_chunks(events: EventLog, start: int) -> list[SessionEvent]:
    """Return the events from ``start`` on, without the chunks that became a message.

    For folds that run beside a live session: most of a log is chunks, and what a message was made
    of is in the message. Chunks of an attempt that no message came of are there.
    """
    log = events._log
    found: list[SessionEvent] = []
    index = len(events) - 1
    while index >= start:
        event = log[index]
        found.append(event)
        index -= 1
        if event["type"] == "assistant/message" and (seqs := event.get("sourceEventSeqs")):
            first, last = seqs[0], seqs[-1]
            # Other events may stand between the chunks; then they are passed one by one.
            if last == index and last - first == len(seqs) - 1:
                index = first - 1
    found.reverse()
    return found
