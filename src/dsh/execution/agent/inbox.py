"""The inbox: two queues that are a fold of the session log.

A mutation is appended to the log first. If that fails nothing changed; once it succeeded, the live
queues follow and listeners are told.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

from dsh.execution.agent.events import INBOX_SPLICED, InboxSpliced
from dsh.execution.agent.service import AgentError, DuplicateMessage, Inbox, InboxTarget

if TYPE_CHECKING:
    from dsh.model.messages import MessageId, UserMessage
    from dsh.state.session.events import SessionEvent
    from dsh.state.session.session import Session

TARGETS: tuple[InboxTarget, InboxTarget] = ("next-step", "next-turn")
"""Both queues in the order in which a turn takes them."""


class InvalidSplice(AgentError, ValueError):
    """A logged inbox mutation does not fit the queue that the log before it builds."""

    code = "INVALID_SPLICE"

    def __init__(self, seq: int, problem: str) -> None:
        super().__init__(f"event {seq} ({INBOX_SPLICED.name}) cannot be replayed: {problem}")
        self.seq = seq


class InboxListener(Protocol):
    """Who hears of committed mutations; must not raise."""

    def inserted(self, message: UserMessage) -> None:
        """A message began to wait."""

    def discarded(self, message: UserMessage) -> None:
        """A message was withdrawn."""

    def claimed(self, message: UserMessage, turn: int) -> None:
        """A turn took a message."""


def fold_inbox(events: Iterable[SessionEvent]) -> dict[InboxTarget, list[UserMessage]]:
    """Rebuild both queues from the events that an agent owns.

    Args:
        events: The log from the session's ``seedLength`` on: a fork does not take over what
            waited for its parent.

    Raises:
        InvalidSplice: an event removes what is not there, or adds what waits already.
    """
    queues: dict[InboxTarget, list[UserMessage]] = {"next-step": [], "next-turn": []}
    for event in events:
        if event["type"] == INBOX_SPLICED.name:
            _replay(queues, cast("Mapping[str, Any]", event["data"]), event["seq"])
    return queues


def _replay(
    queues: Mapping[InboxTarget, list[UserMessage]], data: Mapping[str, Any], seq: int
) -> None:
    queue = queues.get(data.get("target", ""))
    if queue is None:
        raise InvalidSplice(seq, f"unknown target {data.get('target')!r}")
    start, removed = data.get("start"), data.get("removedCount", 0)
    inserted = data.get("inserted", ())
    if not _is_index(start) or not _is_index(removed) or start + removed > len(queue):
        raise InvalidSplice(
            seq, f"start {start!r} and removedCount {removed!r} exceed {len(queue)} messages"
        )
    leaving = {message["id"] for message in queue[start : start + removed]}
    waiting = {message["id"] for one in queues.values() for message in one} - leaving
    for message in inserted:
        if message["id"] in waiting:
            raise InvalidSplice(seq, f"message {message['id']!r} waits already")
        waiting.add(message["id"])
    queue[start : start + removed] = inserted


def _is_index(value: object) -> bool:
    return type(value) is int and value >= 0


class SessionInbox(Inbox):
    """The inbox of one live agent over its session."""

    def __init__(self, session: Session, listener: InboxListener) -> None:
        self._session = session
        self._listener = listener
        inherited = session.header.get("seedLength", 0)
        self._queues = fold_inbox(session.events[inherited:])
        self._next_step = self._queues["next-step"]
        self._next_turn = self._queues["next-turn"]
        self._waiting = {message["id"] for queue in self._queues.values() for message in queue}

    @property
    def next_turn(self) -> tuple[UserMessage, ...]:
        """See `Inbox.next_turn`."""
        return tuple(self._next_turn)

    @property
    def next_step(self) -> tuple[UserMessage, ...]:
        """See `Inbox.next_step`."""
        return tuple(self._next_step)

    @property
    def has_pending(self) -> bool:
        """See `Inbox.has_pending`."""
        return bool(self._next_step or self._next_turn)

    @property
    def has_next_step(self) -> bool:
        """Whether a message waits for the next step."""
        return bool(self._next_step)

    def append(self, target: InboxTarget, message: UserMessage) -> None:
        """See `Inbox.append`."""
        self._splice(target, len(self._queues[target]), 0, (message,))

    def prepend(self, target: InboxTarget, message: UserMessage) -> None:
        """See `Inbox.prepend`."""
        self._splice(target, 0, 0, (message,))

    def replace(self, id: MessageId, message: UserMessage) -> bool:
        """See `Inbox.replace`."""
        place = self._find(id)
        if place is None:
            return False
        self._splice(*place, 1, (message,))
        return True

    def remove(self, id: MessageId) -> bool:
        """See `Inbox.remove`."""
        place = self._find(id)
        if place is None:
            return False
        self._splice(*place, 1, ())
        return True

    def clear(self) -> None:
        """See `Inbox.clear`."""
        for target in TARGETS:
            self._splice(target, 0, len(self._queues[target]), ())

    def splice(
        self,
        target: InboxTarget,
        start: int,
        delete_count: int,
        inserted: Sequence[UserMessage] = (),
    ) -> list[UserMessage]:
        """See `Inbox.splice`."""
        length = len(self._queues[target])
        begin = max(length + start, 0) if start < 0 else min(start, length)
        count = min(max(delete_count, 0), length - begin)
        return self._splice(target, begin, count, inserted)

    def claim(self, target: InboxTarget, turn: int) -> tuple[UserMessage, ...]:
        """Take the batch of a step: everything for this step and, for a turn, its own message.

        Only the loop claims. Claimed messages do not come back, whatever becomes of the step.
        """
        batch = self._cut("next-step", len(self._next_step))
        if target == "next-turn":
            batch += self._cut("next-turn", min(1, len(self._next_turn)))
        for message in batch:
            self._listener.claimed(message, turn)
        return tuple(batch)

    def _find(self, id: MessageId) -> tuple[InboxTarget, int] | None:
        for target in TARGETS:
            for index, message in enumerate(self._queues[target]):
                if message["id"] == id:
                    return target, index
        return None

    def _splice(
        self, target: InboxTarget, start: int, count: int, inserted: Sequence[UserMessage]
    ) -> list[UserMessage]:
        if count == 0 and not inserted:
            return []
        queue = self._queues[target]
        self._refuse_duplicates(inserted, leaving=queue[start : start + count])
        data: InboxSpliced = {"target": target, "start": start, "inserted": list(inserted)}
        if count:
            data["removedCount"] = count
            data["outcome"] = "canceled"
        arrived = self._log(data)["inserted"]
        removed = queue[start : start + count]
        queue[start : start + count] = arrived
        self._waiting.difference_update(message["id"] for message in removed)
        self._waiting.update(message["id"] for message in arrived)
        for message in removed:
            self._listener.discarded(message)
        for message in arrived:
            self._listener.inserted(message)
        return removed

    def _cut(self, target: InboxTarget, count: int) -> list[UserMessage]:
        if count == 0:
            return []
        self._log({"target": target, "start": 0, "removedCount": count, "inserted": []})
        queue = self._queues[target]
        batch, queue[:count] = queue[:count], []
        self._waiting.difference_update(message["id"] for message in batch)
        return batch

    def _log(self, data: InboxSpliced) -> Mapping[str, Any]:
        event = self._session.append(INBOX_SPLICED, data)
        return cast("Mapping[str, Any]", event["data"])

    def _refuse_duplicates(
        self, inserted: Sequence[UserMessage], leaving: Sequence[UserMessage]
    ) -> None:
        gone = {message["id"] for message in leaving}
        new = set[str]()
        for message in inserted:
            own = message["id"]
            if own in new or (own in self._waiting and own not in gone):
                raise DuplicateMessage(own)
            new.add(own)
