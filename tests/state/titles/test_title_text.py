"""What may be made of a text, and what a log says of titles."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from state_logs import whole_turn
from title_support import write

from dsh.model.messages import create_user_message
from dsh.state.session.session import Session
from dsh.state.titles import (
    SESSION_TITLE,
    collect_session_title_messages,
    fallback_session_title,
    fold_session_title,
    latest_session_title,
    normalize_session_title,
    truncate_title_utf8,
)


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("  plain   text \n here ", "plain text here"),
        ("\x1b]0;window title\x07after", "after"),
        ("\x1b]0;window title\x1b\\after", "after"),
        ("\x9d0;title\x9cafter", "after"),
        ("before\x1b]8;;link without an end", "before"),
        ("\x1b]0;open\x1b[31mred", "red"),
        ("\x1b[1;31mred\x1b[0m text", "red text"),
        ("\x9b31mred", "red"),
        ("\x1b[31", ""),
        ("\x1bMup \x1b(Bplain \x1b7saved", "up plain saved"),
        ("ends with \x1b", "ends with"),
        ("a\0b\x08c\x7fd\x85e", "abcde"),
        ("tab\tand\x0bothers\x0c!", "tab and others !"),
        ("a\u200bb\u200e\u202ec\u2060\u2066\ufeffd", "abcd"),
        ("zero\u200dwidth\u200cjoiners", "zero\u200dwidth\u200cjoiners"),
        ("no\u00a0break\u3000wide\u2028line", "no break wide line"),
        ("lone \ud800 half", "lone \ufffd half"),
        (" \u200b\x1b[0m\n ", ""),
    ],
)
def test_a_title_is_one_visible_line(text: str, title: str) -> None:
    assert normalize_session_title(text, 100) == title


@pytest.mark.parametrize(
    ("text", "max_bytes", "title"),
    [
        ("abcdef", 6, "abcdef"),
        ("abcdef", 5, "abcde"),
        ("ab cdef", 3, "ab"),
        ("äöü", 5, "äö"),
        ("名前の", 7, "名前"),
        ("😀😀", 7, "😀"),
        ("😀", 3, ""),
        ("x", 0, ""),
    ],
)
def test_a_title_is_cut_between_characters(text: str, max_bytes: int, title: str) -> None:
    assert truncate_title_utf8(text, max_bytes) == title


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("one two three four five six seven", "one two three four five"),
        ("short", "short"),
        ("\x1b[1mone\x1b[0m\n\ntwo", "one two"),
        ("a" * 60, "a" * 40),
        ("名" * 30, "名" * 13),
        (" \u200b ", None),
    ],
)
def test_the_first_words_make_a_title(text: str, title: str | None) -> None:
    assert fallback_session_title(text, 5, 40) == title


def test_a_cap_below_the_first_character_makes_no_title() -> None:
    assert fallback_session_title("😀 hello", 5, 3) is None


@given(st.text(st.characters()), st.integers(0, 30))
def test_a_title_is_printable_and_fits_whatever_the_text(text: str, max_bytes: int) -> None:
    title = normalize_session_title(text, max_bytes)
    assert len(title.encode()) <= max_bytes
    assert title == title.strip()
    assert not any(ord(char) < 32 or 0x7F <= ord(char) <= 0x9F for char in title)
    assert normalize_session_title(title, max_bytes) == title


@given(st.text(st.sampled_from("\x1b]\x9d\x07[0m\\;ab \x9b"), max_size=30))
def test_no_remainder_of_an_escape_is_left(text: str) -> None:
    assert "\x1b" not in normalize_session_title(text, 1000)


ESCAPES = ("\x1b", "\x1b]0;x", "\x07", "\x1b\\", "\x1b[1;3", "\x1b  ", "\x9d", "\x9c", "\x9b", "(")


@given(
    st.integers(0, 1040),
    st.lists(st.sampled_from((*ESCAPES, "word ", "m", "\ud83d", "\ude00", "\u200b")), max_size=40),
    st.integers(0, 60),
)
def test_a_long_text_has_the_title_that_reading_all_of_it_gives(
    before: int, parts: list[str], max_bytes: int
) -> None:
    text = "\0" * before + "".join(parts) + "the end " * 300
    whole = normalize_session_title(text, 100_000)
    assert normalize_session_title(text, max_bytes) == truncate_title_utf8(whole, max_bytes)
    first = fallback_session_title(whole, 5, max_bytes)
    assert fallback_session_title(text, 5, max_bytes) == first


def test_only_what_the_user_wrote_makes_titles() -> None:
    session = Session.create("s")
    write(session, "synthetic", kind="plugin", plugin="compact")
    write(session, "relayed", kind="coordinator", form="relay")
    image: Any = {"type": "image", "attachment": {"attachmentId": "sha256:00"}}
    write(session, [image])
    write(session, " \u200b \n")
    write(session, [])
    first = write(
        session,
        [{"type": "text", "text": "look at"}, image, {"type": "text", "text": "this"}],
        rpcId="7",
    )
    whole_turn(session)
    found = collect_session_title_messages(session.events)
    assert [message.text for message in found] == ["look at\nthis", "question 1"]
    assert collect_session_title_messages(session.events, through_seq=first["seq"]) == found[:1]


def test_the_last_title_of_a_log_counts() -> None:
    session = Session.create("s", types=[SESSION_TITLE])
    assert fold_session_title(session.events) is None
    assert latest_session_title(session.events) is None
    for title in ("one", "two"):
        session.append(
            SESSION_TITLE, {"title": title, "messageSeqs": [], "source": {"kind": "user"}}
        )
    whole_turn(session)
    assert fold_session_title(session.events) == "two"
    assert fold_session_title(iter(session.events)) == "two"
    latest = latest_session_title(session.events)
    assert latest is not None
    assert latest["source"] == {"kind": "user"}


def test_titles_never_reach_the_model() -> None:
    session = Session.create("s", types=[SESSION_TITLE])
    session.append(SESSION_TITLE, {"title": "t", "messageSeqs": [], "source": {"kind": "user"}})
    assert session.derive_messages() == []


def test_a_message_with_a_block_of_another_kind_is_read() -> None:
    blocks: Any = [{"type": "hologram", "data": 1}, {"type": "text", "text": "hi"}]
    event: Any = {"type": "user/message", "seq": 0, "data": create_user_message(blocks)}
    assert collect_session_title_messages([event])[0].text == "hi"
