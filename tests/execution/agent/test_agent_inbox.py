from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsh.execution.agent.events import INBOX_SPLICED
from dsh.execution.agent.inbox import InvalidSplice, SessionInbox, fold_inbox
from dsh.execution.agent.service import DuplicateMessage, InboxTarget
from dsh.model.messages import UserMessage, create_user_message, text_of
from dsh.state.session.session import Session


class Heard:
    def __init__(self) -> None:
        self.log: list[tuple[str, str]] = []

    def inserted(self, message: UserMessage) -> None:
        self.log.append(("inserted", text_of(message)))

    def discarded(self, message: UserMessage) -> None:
        self.log.append(("discarded", text_of(message)))

    def claimed(self, message: UserMessage, turn: int) -> None:
        self.log.append(("claimed", text_of(message)))


@pytest.fixture
def session() -> Session:
    return Session.create("s", types=[INBOX_SPLICED])


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def inbox(session: Session, heard: Heard) -> SessionInbox:
    return SessionInbox(session, heard)


def say(text: str) -> UserMessage:
    return create_user_message(text)


def words(messages: Sequence[UserMessage]) -> list[str]:
    return [text_of(message) for message in messages]


def last(session: Session) -> Any:
    return session.events[-1]["data"]


def test_append_and_prepend_keep_the_order(inbox: SessionInbox) -> None:
    inbox.append("next-turn", say("b"))
    inbox.append("next-turn", say("c"))
    inbox.prepend("next-turn", say("a"))
    assert words(inbox.next_turn) == ["a", "b", "c"]
    assert inbox.next_step == ()
    assert inbox.has_pending


@pytest.mark.parametrize("target", ["next-turn", "next-step"])
def test_a_waiting_id_is_refused_in_both_queues_before_anything_is_logged(
    inbox: SessionInbox, session: Session, target: InboxTarget
) -> None:
    message = say("a")
    inbox.append("next-turn", message)
    before = session.seq
    with pytest.raises(DuplicateMessage):
        inbox.append(target, message)
    with pytest.raises(DuplicateMessage):
        inbox.splice(target, 0, 0, [twice := say("b"), twice])
    assert session.seq == before


def test_replace_finds_either_queue_and_may_change_the_id(
    inbox: SessionInbox, session: Session, heard: Heard
) -> None:
    old, new = say("old"), say("new")
    inbox.append("next-step", old)
    heard.log.clear()

    assert inbox.replace(old["id"], new)  # type: ignore[arg-type]

    assert words(inbox.next_step) == ["new"]
    assert heard.log == [("discarded", "old"), ("inserted", "new")]
    assert last(session)["outcome"] == "canceled"
    assert not inbox.replace(old["id"], new)  # type: ignore[arg-type]


def test_a_replacement_may_keep_its_id(inbox: SessionInbox) -> None:
    old = say("old")
    inbox.append("next-turn", old)
    assert inbox.replace(old["id"], {**say("new"), "id": old["id"]})  # type: ignore[arg-type]
    assert words(inbox.next_turn) == ["new"]


def test_remove_says_whether_it_was_there(inbox: SessionInbox, session: Session) -> None:
    message = say("a")
    inbox.append("next-turn", message)
    assert inbox.remove(message["id"])  # type: ignore[arg-type]
    assert last(session) == {
        "target": "next-turn",
        "start": 0,
        "removedCount": 1,
        "inserted": [],
        "outcome": "canceled",
    }
    assert not inbox.remove(message["id"])  # type: ignore[arg-type]


def test_clear_takes_the_next_step_first(
    inbox: SessionInbox, session: Session, heard: Heard
) -> None:
    inbox.append("next-turn", say("turn"))
    inbox.append("next-step", say("step"))
    heard.log.clear()
    inbox.clear()
    assert heard.log == [("discarded", "step"), ("discarded", "turn")]
    before = session.seq
    inbox.clear()
    assert session.seq == before


@pytest.mark.parametrize(
    ("start", "count", "left", "logged"),
    [
        (0, 2, "cd", (0, 2)),
        (-1, 5, "abc", (3, 1)),
        (-9, 1, "bcd", (0, 1)),
        (9, 1, "abcd", None),
        (1, -3, "abcd", None),
        (2, 99, "ab", (2, 2)),
    ],
)
def test_splices_are_clamped_and_logged_as_they_were_done(
    inbox: SessionInbox,
    session: Session,
    start: int,
    count: int,
    left: str,
    logged: tuple[int, int] | None,
) -> None:
    for letter in "abcd":
        inbox.append("next-turn", say(letter))
    before = session.seq
    inbox.splice("next-turn", start, count)
    assert "".join(words(inbox.next_turn)) == left
    if logged is None:
        assert session.seq == before
    else:
        assert (last(session)["start"], last(session)["removedCount"]) == logged


def test_a_pure_insertion_logs_no_removal(inbox: SessionInbox, session: Session) -> None:
    inbox.append("next-step", say("a"))
    assert last(session).keys() == {"target", "start", "inserted"}


def test_claiming_a_turn_takes_the_step_messages_and_one_turn_message(
    inbox: SessionInbox, session: Session, heard: Heard
) -> None:
    for text in ("s1", "s2"):
        inbox.append("next-step", say(text))
    for text in ("t1", "t2"):
        inbox.append("next-turn", say(text))
    before = session.seq
    heard.log.clear()

    assert words(inbox.claim("next-turn", 1)) == ["s1", "s2", "t1"]

    assert words(inbox.next_turn) == ["t2"]
    assert heard.log == [("claimed", "s1"), ("claimed", "s2"), ("claimed", "t1")]
    spliced = [event["data"] for event in session.events[before:]]
    assert spliced == [
        {"target": "next-step", "start": 0, "removedCount": 2, "inserted": []},
        {"target": "next-turn", "start": 0, "removedCount": 1, "inserted": []},
    ]


def test_claiming_a_step_leaves_the_turns(inbox: SessionInbox) -> None:
    inbox.append("next-turn", say("t"))
    inbox.append("next-step", say("s"))
    assert words(inbox.claim("next-step", 1)) == ["s"]
    assert words(inbox.next_turn) == ["t"]


def test_a_refused_append_leaves_the_queues_alone(inbox: SessionInbox) -> None:
    with pytest.raises(Exception, match="not lossless"):
        inbox.append("next-turn", {**say("a"), "content": [{"type": "x", "at": float("nan")}]})  # type: ignore[typeddict-item]
    assert inbox.next_turn == ()


def test_what_a_fork_inherits_does_not_wait_for_it(session: Session, heard: Heard) -> None:
    SessionInbox(session, heard).append("next-turn", say("parent's"))
    header: Any = {"version": 0, "id": "child", "createdAt": 0, "seedLength": session.seq}
    child = Session.create("child", session.events, header, types=[INBOX_SPLICED])
    assert not SessionInbox(child, heard).has_pending


@pytest.mark.parametrize(
    "data",
    [
        {"target": "elsewhere", "start": 0, "inserted": []},
        {"target": "next-turn", "start": 1, "inserted": []},
        {"target": "next-turn", "start": 0, "removedCount": 1, "inserted": []},
        {"target": "next-turn", "start": -1, "inserted": []},
        {"target": "next-turn", "start": True, "inserted": []},
    ],
)
def test_an_impossible_splice_names_its_event(data: dict[str, Any]) -> None:
    event: Any = {"type": INBOX_SPLICED.name, "seq": 7, "time": 0, "data": data}
    with pytest.raises(InvalidSplice, match="event 7"):
        fold_inbox([event])


def test_an_insertion_of_a_waiting_message_cannot_be_replayed() -> None:
    message = say("a")
    data = {"target": "next-turn", "start": 0, "inserted": [message]}
    events: Any = [
        {"type": INBOX_SPLICED.name, "seq": seq, "time": 0, "data": data} for seq in (0, 1)
    ]
    with pytest.raises(InvalidSplice, match="event 1"):
        fold_inbox(events)


moves = st.lists(
    st.tuples(
        st.sampled_from(["append", "prepend", "splice", "remove", "replace", "clear", "claim"]),
        st.sampled_from(["next-turn", "next-step"]),
        st.integers(-4, 4),
        st.integers(-1, 4),
        st.integers(0, 2),
    ),
    max_size=30,
)


@settings(deadline=None)
@given(moves)
def test_the_queues_are_always_a_fold_of_the_log(
    plan: list[tuple[str, Any, int, int, int]],
) -> None:
    session = Session.create("s", types=[INBOX_SPLICED])
    inbox = SessionInbox(session, Heard())
    for turn, (move, target, start, count, new) in enumerate(plan):
        waiting = (*inbox.next_step, *inbox.next_turn)
        known: Any = waiting[start % len(waiting)]["id"] if waiting else "none"
        if move == "splice":
            inbox.splice(target, start, count, [say(str(n)) for n in range(new)])
        elif move == "remove":
            inbox.remove(known)
        elif move == "replace":
            inbox.replace(known, say("new"))
        elif move == "clear":
            inbox.clear()
        elif move == "claim":
            inbox.claim(target, turn)
        else:
            getattr(inbox, move)(target, say("x"))
        folded = fold_inbox(session.events)
        assert tuple(folded["next-step"]) == inbox.next_step
        assert tuple(folded["next-turn"]) == inbox.next_turn
    again = SessionInbox(session, Heard())
    assert (again.next_step, again.next_turn) == (inbox.next_step, inbox.next_turn)
