"""Events as rows: runs share rows within bounds, large data is compressed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsh.base.json import FrozenDict, freeze, loads
from dsh.model.chunks import text_delta
from dsh.state.persistence.artifact.frames import decompress
from dsh.state.persistence.scan import RowScanner
from dsh.state.persistence.sqlite.rows import (
    decode_seqs,
    encode_rows,
    encode_seqs,
    take_row,
)

HEADER: Any = freeze({"version": 0, "id": "s", "createdAt": 1})


def chunks(texts: list[str]) -> list[Any]:
    return [
        freeze(
            {
                "type": "assistant/chunk",
                "seq": seq,
                "time": 1000 + seq * 7 % 13,
                "data": {"turn": 1, "step": 1, "chunk": text_delta(0, text)},
            }
        )
        for seq, text in enumerate(texts)
    ]


def note(text: str, **more: Any) -> Any:
    return freeze({"type": "acme/note", "seq": 0, "time": 1, "data": {"text": text}, **more})


def read(rows: list[Any]) -> list[Any]:
    scanner = RowScanner(HEADER)
    for row in rows:
        stored = tuple(column.encode() if isinstance(column, str) else column for column in row)
        assert take_row(scanner, stored) is None
    return scanner.events


@pytest.mark.parametrize(("count", "sizes"), [(2, [1, 1]), (3, [3]), (1024, [1024])])
def test_a_run_of_three_to_a_thousand_chunks_is_one_row(count: int, sizes: list[int]) -> None:
    rows = encode_rows(chunks(["x"] * count))
    assert [1 if row[6] is None else len(content(row)["texts"]) for row in rows] == sizes
    assert read(rows) == chunks(["x"] * count)


def test_a_longer_run_is_cut() -> None:
    count = 2500
    rows = encode_rows(chunks(["x"] * count))
    assert [len(content(row)["texts"]) for row in rows] == [1024, 1024, 452]
    assert read(rows) == chunks(["x"] * count)


def test_the_rest_of_a_cut_run_may_be_too_short_for_a_row() -> None:
    rows = encode_rows(chunks(["x"] * 1026))
    assert [row[6] for row in rows] == [0, None, None]
    assert read(rows) == chunks(["x"] * 1026)


def test_no_row_of_a_run_holds_more_than_a_megabyte() -> None:
    events = chunks([f"{number}" + "\x01" * 50_000 for number in range(40)] + ["y" * 3_000_000])
    rows = encode_rows(events)
    assert all(len(plain(row)) <= 2**20 for row in rows if row[6] == 0)
    assert len([row for row in rows if row[6] == 0]) > 10
    assert read(rows) == events


@given(st.lists(st.integers(0, 3000), max_size=60))
def test_a_run_of_any_sizes_comes_back(sizes: list[int]) -> None:
    events = chunks(["\u00e9" * size for size in sizes])
    assert read(encode_rows(events)) == events


def test_only_an_integer_zero_marks_a_run() -> None:
    (row,) = encode_rows([note("x", ignorable=True)])
    assert row[6] == 1
    assert read([row]) == [note("x", ignorable=True)]
    (plain_row,) = encode_rows([note("x")])
    assert plain_row[6] is None


def test_large_data_is_compressed_when_that_helps() -> None:
    (small,) = encode_rows([note("a" * 4000)])
    (large,) = encode_rows([note("a" * 5000)])
    assert isinstance(small[3], str)
    assert isinstance(large[3], bytes)
    assert len(large[3]) < 200
    assert read([large]) == [note("a" * 5000)]


def test_what_a_row_cannot_be_is_told() -> None:
    (good,) = encode_rows([note("x")])
    stored = (0, b"acme/note", 1, b'{"text":"x"}', None, None, None)
    assert take_row(RowScanner(HEADER), stored) is None
    for at, bad in ((3, b"{"), (3, 5), (3, b"\x28\xb5\x2f\xfd"), (4, b"\x80"), (5, b"{")):
        row = (*stored[:at], bad, *stored[at + 1 :])
        assert take_row(RowScanner(HEADER), row) is not None
    assert good[0] == 0


@given(st.lists(st.integers(0, 2**53 - 1)))
def test_event_numbers_come_back_as_they_were(seqs: list[int]) -> None:
    assert decode_seqs(encode_seqs(seqs)) == seqs


@pytest.mark.parametrize("data", [b"\x80", b"\x80\x00", b"\x01\x80\x80\x00"])
def test_event_numbers_have_one_spelling(data: bytes) -> None:
    with pytest.raises(ValueError, match="event number"):
        decode_seqs(data)


def test_consecutive_numbers_take_a_byte_each() -> None:
    assert len(encode_seqs(range(1000, 2000))) == 2 + 999


def plain(row: Any) -> bytes:
    return row[3].encode() if isinstance(row[3], str) else decompress(row[3])


def content(row: Any) -> Any:
    return FrozenDict(loads(plain(row)))
