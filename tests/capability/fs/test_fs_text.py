from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsh.capability.fs.service import FsEdit, FsError
from dsh.capability.fs.text import apply_edit, comparable, decode_text, encode_text, lf


def edited(original: str, old: str, new: str, *, every: bool = False) -> str:
    return apply_edit(original, FsEdit(old, new, every), "f")


@pytest.mark.parametrize(
    ("original", "old", "new", "expected"),
    [
        ("a\r\nb\r\nc\r\n", "b\n", "x\ny\n", "a\r\nx\r\ny\r\nc\r\n"),
        ("a\rb\rc\r", "b\nc", "b2\nc", "a\rb2\rc\r"),
        ("a\r\nb\nc\rd\n", "b\nc\nd", "B\nc\nD", "a\r\nB\nc\rD\n"),
        ("a\nb", "b", "c\nd", "a\nc\nd"),
        ("one\r\ntwo", "two", "2\n3", "one\r\n2\r\n3"),
        ("x\n", "x\n", "", ""),
        ("tab\there\r\n", "tab\there", "tab\tthere", "tab\tthere\r\n"),
        ("a\r\nb\r\n", "a\r\nb", "a\r\nc", "a\r\nc\r\n"),
        ("漢字\r\n終", "終", "終わり", "漢字\r\n終わり"),
        ("no newline", "newline", "new\nline", "no new\nline"),
    ],
)
def test_an_edit_keeps_line_ends(original: str, old: str, new: str, expected: str) -> None:
    assert edited(original, old, new) == expected


def test_replacements_are_literal() -> None:
    assert edited("a.c abc", "a.c", r"\g<0>$1") == r"\g<0>$1 abc"


def test_replace_all_changes_every_occurrence_and_nothing_else() -> None:
    assert edited("a\r\nxa\ra", "a", "b\nb", every=True) == "b\r\nb\r\nxb\rb\rb\rb"


def test_overlapping_matches_are_ambiguous() -> None:
    with pytest.raises(FsError, match="2 times") as caught:
        edited("aaa", "aa", "b")
    assert caught.value.code == "FS_AMBIGUOUS_EDIT"


def test_an_ambiguous_edit_names_the_lines() -> None:
    with pytest.raises(FsError, match="lines 1, 3"):
        edited("x\ny\r\nx\n", "x", "z")


@pytest.mark.parametrize(("old", "new"), [("a\r\n", "a\n"), ("same", "same"), ("", "x")])
def test_a_no_op_is_refused_as_one(old: str, new: str) -> None:
    with pytest.raises(FsError, match="changes nothing") as caught:
        edited("a\r\nsame", old, new)
    assert caught.value.code == "FS_EDIT_NOT_FOUND"


def test_a_missing_text_is_not_found() -> None:
    with pytest.raises(FsError, match="does not occur") as caught:
        edited("abc", "abd", "x")
    assert caught.value.code == "FS_EDIT_NOT_FOUND"


_ENDS = st.sampled_from(["\n", "\r\n", "\r", ""])
_WORDS = st.text("ab \t漢", max_size=4)
_TEXTS = st.lists(st.tuples(_WORDS, _ENDS), max_size=6).map(
    lambda parts: "".join(word + end for word, end in parts)
)


@given(_TEXTS, _TEXTS, st.text("ab\n", max_size=6))
def test_bytes_outside_of_the_edit_never_change(head: str, tail: str, new: str) -> None:
    head, tail = head.removesuffix("\r"), tail.removeprefix("\n")
    result = edited(head + "<old>" + tail, "<old>", f"<{new}>")

    assert result.startswith(head + "<")
    assert result.endswith(">" + tail)
    assert lf(result) == lf(head) + f"<{new}>" + lf(tail)


@given(_TEXTS)
def test_an_edit_and_its_reverse_restore_the_file(original: str) -> None:
    text = original + "<old>"
    assert edited(edited(text, "<old>", "<new>"), "<new>", "<old>") == text


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xfeh\x00i\x00",
        "grüße".encode("latin-1"),
        "漢字".encode("gbk"),
        b"a\x00b",
        b"\xed\xa0\x80",
    ],
)
def test_what_is_not_utf8_text_is_refused(data: bytes) -> None:
    with pytest.raises(FsError) as caught:
        decode_text(data, "f")
    assert caught.value.code == "FS_NOT_TEXT"
    assert comparable(data) is None


def test_a_late_nul_counts_only_for_edits() -> None:
    data = b"x" * 9000 + b"\0"
    assert len(decode_text(data, "f")) == 9001
    with pytest.raises(FsError):
        decode_text(data, "f", whole=True)


def test_the_byte_order_mark_is_hidden_once() -> None:
    assert decode_text(b"\xef\xbb\xbf\xef\xbb\xbfa", "f") == "\ufeffa"


def test_a_lone_surrogate_cannot_be_written() -> None:
    with pytest.raises(FsError, match="lone surrogate at character 1") as caught:
        encode_text("a\ud800", "f")
    assert caught.value.code == "FS_NOT_TEXT"


def test_an_edit_with_countless_overlapping_matches_is_refused_at_once() -> None:
    with pytest.raises(FsError, match=r"lines 1, 1, 1, 1, 1, \.\.\."):
        apply_edit("a" * 3_000_000, FsEdit("a" * 20_000, "b"), "p")


def test_replacing_everything_in_a_huge_line_is_cheap() -> None:
    assert apply_edit("ab" * 5_000_000, FsEdit("a", "", replace_all=True), "p") == "b" * 5_000_000
