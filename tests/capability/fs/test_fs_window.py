from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from dsh.capability.fs.window import LineWindow, WindowLimits, window_of


def limits(first: int = 1, lines: int = 100, chars: int = 100, size: int = 10_000) -> WindowLimits:
    return WindowLimits(first, lines, chars, size)


def texts(window: LineWindow) -> list[str]:
    return [line["text"] for line in window.lines]


def test_carriage_returns_at_line_ends_are_dropped() -> None:
    window = window_of("a\r\nb\rc\n", limits())
    assert texts(window) == ["a", "b\rc"]


def test_a_text_with_cr_alone_is_split_there() -> None:
    assert texts(window_of("a\rb\r", limits())) == ["a", "b"]


def test_the_total_is_exact_for_a_window() -> None:
    window = window_of("1\n2\n3\n4\n5", limits(first=2, lines=2))
    assert [line["number"] for line in window.lines] == [2, 3]
    assert window.total == 5


def test_a_long_line_is_cut_and_says_so() -> None:
    window = window_of("漢" * 11 + "\nshort", limits(chars=10))
    assert texts(window) == ["漢" * 10 + "... (line cut after 10 characters)", "short"]


def test_bytes_are_counted_with_their_line_ends() -> None:
    exact = window_of("ab\nä\nc\n", limits(size=6))
    assert texts(exact) == ["ab", "ä"]
    assert exact.total == 3
    assert texts(window_of("ab\nä\nc\n", limits(size=8))) == ["ab", "ä", "c"]


def test_one_line_always_fits() -> None:
    assert texts(window_of("abcdef\ng", limits(size=2))) == ["abcdef"]


@given(
    st.text("ab\r\n漢", max_size=60),
    st.lists(st.integers(0, 60), max_size=5),
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(1, 5),
)
def test_pieces_give_the_same_window_as_the_whole(
    text: str, cuts: list[int], first: int, lines: int, chars: int
) -> None:
    text = "\n" + text
    wanted = limits(first, lines, chars, 20)
    places = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    pieces = LineWindow(wanted)
    for start, end in pairwise(places):
        pieces.feed(text[start:end])
    pieces.close()
    whole = window_of(text, wanted)

    assert (pieces.lines, pieces.total) == (whole.lines, whole.total)
    assert whole.total == text.count("\n") + (not text.endswith("\n"))
