"""Addresses and mentions of sessions, and the budget of what is told of them. All pure."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsh.context.session_reference.recall import Entry, conversation, fitted
from dsh.context.session_reference.service import SessionReference, SessionReferenceError
from dsh.context.session_reference.uri import (
    decode_session_reference_uri,
    encode_session_reference_uri,
    format_session_reference_mention,
    parse_session_reference_text,
)

IDS = st.text(min_size=1, max_size=20)


@given(IDS)
def test_an_address_leads_back_to_its_session(id: str) -> None:
    assert decode_session_reference_uri(encode_session_reference_uri(id)) == id


@pytest.mark.parametrize("id", ["\ud800", "a/b ../c", "\0", "会话", '"\\'])
def test_any_id_has_an_address(id: str) -> None:
    uri = encode_session_reference_uri(id)
    assert uri.isascii()
    assert decode_session_reference_uri(uri) == id


def test_the_address_is_the_json_of_the_id_in_url_safe_base64() -> None:
    expected = base64.urlsafe_b64encode(json.dumps("session-1").encode()).decode().rstrip("=")
    assert encode_session_reference_uri("session-1") == f"dsh-session:{expected}"


def _encoded(text: str) -> str:
    return "dsh-session:" + base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


@pytest.mark.parametrize(
    "uri",
    [
        "dsh-session:",
        "dsh-session:???",
        "dsh-session:abc=",
        _encoded('"a" '),
        _encoded('"\\u0061"'),
        _encoded("3"),
        _encoded("a"),
        encode_session_reference_uri("a") + "=",
        encode_session_reference_uri("a").upper(),
    ],
)
def test_an_address_has_only_one_spelling(uri: str) -> None:
    with pytest.raises(SessionReferenceError) as error:
        decode_session_reference_uri(uri)
    assert error.value.code == "SESSION_REFERENCE_INVALID_REFERENCE"


@given(IDS, st.text(max_size=20).filter(lambda text: text.strip()))
def test_a_mention_is_found_with_its_label(id: str, label: str) -> None:
    text = f"see {format_session_reference_mention(id, label)}, please"
    shown = " ".join(label.split()) or id
    parsed = parse_session_reference_text(text)
    assert parsed.references == (SessionReference(id, shown),)
    assert parsed.text == f"see @{shown}, please"


@pytest.mark.parametrize("begun", ["@[", "@[\\", "@[x](dsh-session:", "@[a]", "\\@["])
def test_a_text_of_beginnings_of_links_is_read_once(begun: str) -> None:
    text = f"dsh-session: {begun * 100_000}"
    assert parse_session_reference_text(text) == (text, ())


def test_a_link_that_is_not_closed_hides_no_other_mention() -> None:
    uri = encode_session_reference_uri("s1")
    for text in (f"@[a] {uri}", f"@[a {uri}", f"@[a](x) @[b]({uri})", f"@[b]({uri}"):
        assert [each.session_id for each in parse_session_reference_text(text).references] == ["s1"]


@pytest.mark.parametrize("payload", ["[" * 100_000, '{"a":' * 50_000, "9" * 5_000, "NaN"])
def test_an_address_of_something_else_is_refused(payload: str) -> None:
    with pytest.raises(SessionReferenceError):
        decode_session_reference_uri(_encoded(payload))


def test_a_bare_address_is_a_mention_too() -> None:
    uri = encode_session_reference_uri("s1")
    parsed = parse_session_reference_text(f"look at {uri}. And again: ({uri})")
    assert parsed.text == "look at @s1. And again: (@s1)"
    assert [each.session_id for each in parsed.references] == ["s1", "s1"]


@pytest.mark.parametrize(
    "text", ["dsh-session:", "dsh-session:???", "dsh-session:abc", "x:dsh-session:ImEi", "@[a](b)"]
)
def test_what_only_looks_like_an_address_is_text(text: str) -> None:
    assert parse_session_reference_text(text) == (text, ())


def test_a_link_with_a_wrong_address_is_refused() -> None:
    with pytest.raises(SessionReferenceError) as error:
        parse_session_reference_text("see @[that](dsh-session:abc)")
    assert error.value.code == "SESSION_REFERENCE_INVALID_REFERENCE"


ENTRIES = st.lists(
    st.builds(
        Entry,
        st.sampled_from(["user", "assistant", "checkpoint"]),
        st.text("ab<\n\u4f1a", max_size=60),
    ),
    max_size=8,
).map(tuple)


@given(ENTRIES, st.integers(150, 900))
def test_a_conversation_is_made_to_fit(entries: tuple[Entry, ...], budget: int) -> None:
    try:
        kept, cut = fitted(entries, budget)
    except SessionReferenceError as error:
        assert error.code == "SESSION_REFERENCE_BUDGET_EXCEEDED"  # noqa: PT017  # it may fit
        return
    size = 2 + sum(each.encoded_bytes for each in kept)
    assert size <= budget
    whole = 2 + sum(each.encoded_bytes for each in entries)
    assert (kept == entries and not cut) is (whole <= budget)
    checkpoints = [each.role for each in entries if each.role == "checkpoint"]
    assert [each.role for each in kept if each.role == "checkpoint"] == checkpoints
    if entries:
        assert kept[-1].role == entries[-1].role


def test_the_oldest_messages_go_first_and_the_newest_stays() -> None:
    entries = (
        Entry("checkpoint", "c" * 50),
        Entry("user", "1" * 50),
        Entry("assistant", "2" * 50),
        Entry("user", "3" * 50),
    )
    size = 2 + sum(each.encoded_bytes for each in entries)
    kept, cut = fitted(entries, size - 1)
    assert [each.text[0] for each in kept] == ["c", "2", "3"]
    assert not cut


def test_then_the_longest_text_loses_its_middle() -> None:
    kept, cut = fitted((Entry("user", "h" * 500 + "m" * 500 + "t" * 500),), 400)
    assert cut
    assert kept[0].text.startswith("hhh")
    assert kept[0].text.endswith("ttt")
    assert "m" not in kept[0].text
    assert "left out" in kept[0].text


def test_what_cannot_be_made_to_fit_is_refused() -> None:
    with pytest.raises(SessionReferenceError, match="maxReferenceBytes") as error:
        fitted((Entry("user", "x" * 100),), 20)
    assert error.value.code == "SESSION_REFERENCE_BUDGET_EXCEEDED"


def test_an_odd_block_of_a_stored_message_has_nothing_to_tell() -> None:
    blocks = [{"x": 1}, {"type": "text", "text": 7}, {"type": "text", "text": "said"}]
    data = {"content": blocks, "source": {"kind": "user"}}
    assert conversation([{"type": "user/message", "data": data}]) == (Entry("user", "said"),)


def test_many_summaries_are_measured_once_each() -> None:
    with pytest.raises(SessionReferenceError) as error:
        fitted((Entry("checkpoint", "x" * 2_000),) * 10_000, 65_536)
    assert error.value.code == "SESSION_REFERENCE_BUDGET_EXCEEDED"
