from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsh.base.names import camel, snake
from dsh.base.text import TextRetainer, cut_utf8, did_you_mean, nearest, replace_surrogates


@given(st.text(), st.integers(0, 40))
def test_a_cut_is_the_longest_prefix_that_fits(text: str, limit: int) -> None:
    cut = cut_utf8(text, limit)
    assert text.startswith(cut)
    assert len(cut.encode()) <= limit
    assert cut == text or len(text[: len(cut) + 1].encode()) > limit


@given(
    st.text(), st.integers(1, 7), st.integers(0, 60), st.sampled_from(["head", "tail", "head_tail"])
)
def test_retained_text_is_valid_whatever_the_chunks(
    text: str, size: int, limit: int, kind: str
) -> None:
    data = text.encode()
    retainer = TextRetainer(kind, limit)  # type: ignore[arg-type]
    for start in range(0, len(data), size):
        retainer.feed(data[start : start + size])

    kept = retainer.text()

    assert len(kept.encode()) + retainer.omitted_bytes == len(data)
    assert len(kept.encode()) <= limit
    assert retainer.total_bytes == len(data)
    if len(data) <= limit:
        assert kept == text
    assert "\ufffd" not in kept or "\ufffd" in text


def test_the_gap_stands_only_where_something_is_missing() -> None:
    retainer = TextRetainer("head_tail", 4)
    retainer.feed(b"abcd")
    assert retainer.text(gap="...") == "abcd"
    retainer.feed(b"ef")
    assert retainer.text(gap="...") == "ab...ef"
    assert retainer.omitted_bytes == 2


def test_undecodable_bytes_become_replacement_characters() -> None:
    retainer = TextRetainer("head", 10)
    retainer.feed(b"a\xffb")
    assert retainer.text() == "a\ufffdb"


def test_memory_stays_bounded_by_the_limit() -> None:
    retainer = TextRetainer("tail", 1000)
    for _ in range(1000):
        retainer.feed(b"x" * 10_000)
    assert retainer.kept_bytes == len(retainer.tail) == 1000
    assert retainer.omitted_bytes == 10_000_000 - 1000


def test_a_negative_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="must not be negative"):
        TextRetainer("head", -1)


@given(st.text(st.characters() | st.characters(categories=["Cs"])))
def test_text_without_surrogates_encodes(text: str) -> None:
    replace_surrogates(text).encode("utf-8")


def test_a_surrogate_pair_is_joined_and_a_lone_one_replaced() -> None:
    assert replace_surrogates("a\ud83d\ude00b") == "a\U0001f600b"
    assert replace_surrogates("a\ud83db") == "a\ufffdb"


def test_only_a_near_word_is_suggested() -> None:
    assert nearest("headles", ["web", "headless"]) == "headless"
    assert nearest("zzz", ["web", "headless"]) is None
    assert did_you_mean("wen", ["web"]) == " (did you mean 'web'?)"
    assert did_you_mean("zzz", ["web"]) == ""


@pytest.mark.parametrize(
    ("python", "wire"),
    [("system_prompt", "systemPrompt"), ("llm", "llm"), ("session_log_v2", "sessionLogV2")],
)
def test_service_keys_map_both_ways(python: str, wire: str) -> None:
    assert camel(python) == wire
    assert snake(wire) == python
