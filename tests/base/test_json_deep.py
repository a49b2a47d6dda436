from __future__ import annotations

import json as stdlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_json import values

from dsh.base import json
from dsh.base.json.deep import encode_deep, read_deep


@given(values, st.booleans())
def test_the_reader_without_recursion_agrees_with_the_common_one(value: object, wide: bool) -> None:
    text = stdlib.dumps(value, indent=1 if wide else None, ensure_ascii=wide)
    assert json.equal(read_deep(text, stdlib.loads), stdlib.loads(text))


@given(st.text(alphabet='[]{}:,"\\ \n01-.eEtruefalsn\x00u', max_size=12))
def test_the_reader_without_recursion_refuses_what_the_common_one_does(text: str) -> None:
    try:
        expected = stdlib.loads(text)
    except ValueError:
        with pytest.raises(ValueError, match=r"."):
            read_deep(text, stdlib.loads)
    else:
        assert json.equal(read_deep(text, stdlib.loads), expected)


@pytest.mark.parametrize(
    "text", ["", "[", "[1", "[1 2]", '{"a"}', '{"a":}', "{1:2}", "[1]x", "nul", "01", "[1,]", "٣"]
)
def test_the_reader_without_recursion_refuses_what_is_not_json(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_deep(text, stdlib.loads)


def test_a_long_text_is_read_in_one_piece() -> None:
    text = stdlib.dumps(["\\é" * 1_000_000])
    assert read_deep(text, stdlib.loads) == stdlib.loads(text)


@given(values)
def test_the_encoder_without_recursion_agrees_with_the_common_one(value: Any) -> None:
    for sort_keys in (False, True):
        encoder = stdlib.JSONEncoder(separators=(",", ":"), sort_keys=sort_keys)
        assert "".join(encode_deep(value, encoder)) == encoder.encode(value)


def test_text_that_is_deep_and_broken_raises_value_error() -> None:
    for text in ("[" * 100_000, '{"a":' * 100_000, "[" * 50_000 + "]" * 49_999):
        with pytest.raises(ValueError, match=r"."):
            json.loads(text)
