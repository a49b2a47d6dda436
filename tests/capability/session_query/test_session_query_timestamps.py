from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsh.capability.session_query.timestamps import parse_instant, show_instant


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1970-01-01T00:00Z", 0),
        ("1970-01-01T00:00:01Z", 1000),
        ("1970-01-01T00:00:00.5Z", 500),
        ("1970-01-01T00:00:00.123000Z", 123),
        ("1970-01-01T01:00+01:00", 0),
        ("1969-12-31T23:30-00:30", 0),
        ("1969-12-31T23:59:59.999Z", -1),
        ("2024-02-29T12:00Z", 1_709_208_000_000),
    ],
)
def test_a_timestamp_is_a_number_of_milliseconds(text: str, ms: int) -> None:
    assert parse_instant(text, "from") == parse_instant(text, "to") == ms


@pytest.mark.parametrize(
    "text",
    [
        "", "now", "2026-01-31", "2026-01-31T18:30", "2026-01-31 18:30Z", "2026-1-31T18:30Z",
        "2026-01-31T18:30z", "2026-01-31T18:30:5Z", "2026-01-31T18:30:05.Z", "2026-02-29T00:00Z",
        "2026-13-01T00:00Z", "2026-01-31T24:00Z", "2026-01-31T18:60Z", "2026-01-31T18:30:60Z",
        "0000-01-01T00:00Z", "2026-01-31T18:30+24:00", "2026-01-31T18:30+01:60",
        "2026-01-31T18:30+0100", "\uff12026-01-31T18:30Z", "2026-01-31T18:30Z\n",
    ],
)  # fmt: skip
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"no timestamp|calendar"):
        parse_instant(text, "from")


@given(st.integers(0, 2**42), st.integers(1, 10**9 - 1))
def test_digits_below_the_millisecond_decide_exactly(ms: int, rest: int) -> None:
    second, milli = divmod(ms, 1000)
    base = show_instant(second * 1000)[:-5]
    text = f"{base}.{milli:03}{rest:09}Z"
    low, high = parse_instant(text, "from"), parse_instant(text, "to")
    assert ms < low < ms + 1
    assert ms < high < ms + 1


@given(st.integers(-(2**45), 2**47))
def test_what_is_shown_can_be_read(ms: int) -> None:
    assert parse_instant(show_instant(ms), "from") == ms


def test_a_time_out_of_the_calendar_is_still_shown() -> None:
    assert "9007199254740991" in show_instant(2**53 - 1)
