from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsh.execution.tools.arguments import excerpt, unusable_arguments
from dsh.execution.tools.service import parse_call

PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "limit": {"type": "integer", "minimum": 1}},
    "required": ["path"],
}


def told(raw: str) -> str:
    error = unusable_arguments("read", parse_call(raw), PARAMETERS)
    assert error is not None
    return error.message


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [
        ('{"path": }', "not valid JSON at line 1, column 10: a value was expected here"),
        ('{"path": "a"\n "limit": 2}', "line 2, column 2: a comma or a closing bracket"),
        ("{path: 1}", "line 1, column 2: a key in double quotes"),
        ('{"path": "a\\d"}', "a backslash in a string starts no valid escape"),
        ('{"path": "a', "cut off: the string that starts at line 1, column 10 never ends"),
        ('{"path": "a", "limit"', "cut off at line 1, column 22"),
        ('{"path": "a"', "cut off at line 1, column 13"),
        ('```json\n{"path": "a"}\n```', "wrapped in a Markdown code fence"),
        ('{"path": "a"} and more', "more text follows the JSON at line 1, column 15"),
        ('["a"]', "they are a JSON array, not an object"),
        ("null", "they are a JSON null, not an object"),
        ("12", "they are a JSON integer, not an object"),
        ('"hello"', "they are a JSON string, not an object"),
        ('"{\\"path\\": \\"a\\"}"', "the object is encoded twice"),
        ('{"limit": NaN}', "NaN is not a JSON value"),
        ('{"limit": ' + "9" * 5_000 + "}", "a number with too many digits"),
        ('\ufeff{"path": "a"}', "a byte order mark is not part of JSON"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_each_malformation_has_its_own_sentence(raw: str, sentence: str) -> None:
    message = told(raw)
    assert message.startswith("tool 'read' was not run: its arguments are invalid")
    assert sentence in message
    assert "path (string, required), limit (integer >= 1)" in message


def test_an_object_is_usable() -> None:
    assert unusable_arguments("read", parse_call('{"path": "a"}'), PARAMETERS) is None


@pytest.mark.parametrize("raw", ["", " \n"])
def test_no_text_means_no_arguments(raw: str) -> None:
    assert parse_call(raw) == {}


def test_parsed_arguments_are_frozen() -> None:
    with pytest.raises(TypeError):
        parse_call('{"a": 1}')["b"] = 2  # type: ignore[index, call-overload]


@pytest.mark.parametrize(
    "raw", ["[" * 1_000_000, '{"a":' * 200_000 + "1" + "}" * 200_000, '[{"a":[' * 150_000]
)
def test_a_megabyte_of_brackets_is_not_read_at_all(raw: str) -> None:
    assert parse_call(raw) is raw
    assert "nested too deeply" in told(raw)


def test_many_brackets_that_are_not_deep_are_read() -> None:
    rows = '{"rows": [' + ",".join(['{"a": [1]}'] * 2_000) + "]}"
    assert len(parse_call(rows)["rows"]) == 2_000  # type: ignore[index, call-overload, arg-type]


@pytest.mark.parametrize("garbage", ["x" * 1_000_000, '{"a": "' + "\n" * 1_000_000])
def test_a_megabyte_of_garbage_is_echoed_in_part(garbage: str) -> None:
    message = told(garbage)
    echo = message.partition("received: ")[2]
    assert 0 < len(echo) <= 206
    assert len(message) < 700


def test_the_echo_shows_the_place_of_the_mistake() -> None:
    raw = '{"path": "' + "a" * 500 + '", oops}'
    assert "oops" in told(raw).partition("received: ")[2]


def test_the_echo_is_one_line_of_encodable_text() -> None:
    shown = excerpt('a\ud800b\x00\nc\u2028"')
    assert shown == 'a\ufffdb  c "'
    shown.encode()


def test_a_long_list_of_parameters_is_bounded() -> None:
    many = {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(100)}}
    error = unusable_arguments("t", "{", many)
    assert error is not None
    assert "and 80 more" in error.message


def test_a_deep_schema_is_described_in_a_few_words() -> None:
    node: dict[str, Any] = {"type": "string"}
    for _ in range(10_000):
        node = {"type": "array", "items": {"oneOf": [node, node]}}
    error = unusable_arguments("t", "{", {"type": "object", "properties": {"a": node}})
    assert error is not None
    assert "a (array of array of JSON value)" in error.message


@given(st.text())
def test_diagnosis_is_total(raw: str) -> None:
    arguments = parse_call(raw)
    error = unusable_arguments("t", arguments, PARAMETERS)
    assert (error is None) == isinstance(arguments, dict)
    if error is not None:
        error.message.encode()


@pytest.mark.parametrize(
    ("raw", "parsed"),
    [
        ('{"a": [1, null]}', {"a": [1, None]}),
        ("[1]", [1]),
        ("{", "{"),
        ('"x"', '"x"'),
        ("NaN", "NaN"),
        ("```json\n{}\n```", "```json\n{}\n```"),
    ],
)
def test_json_is_parsed_and_only_what_cannot_be_read_stays_text(raw: str, parsed: object) -> None:
    assert parse_call(raw) == parsed


MEGABYTE = 1_000_000


@pytest.mark.parametrize(
    "raw",
    [
        '{"a": [' + "[]," * (MEGABYTE // 3) + "1]}",
        '{"a": [' + '{"b": [1]},' * (MEGABYTE // 10),
        "{" + ",".join(f'"k{n}": 1' for n in range(80_000)) + "}",
        "[" + "1," * (MEGABYTE // 2),
    ],
)
def test_arguments_with_more_parts_than_a_model_means_are_not_read(raw: str) -> None:
    assert parse_call(raw) is raw
    assert "too many parts to be read: more than 20000 values" in told(raw)


@pytest.mark.parametrize("written", ["{[," * 100_000, '\\"{[,' * 100_000, "\\\\{}" * 100_000])
def test_what_stands_in_a_string_is_no_part(written: str) -> None:
    raw = f'{{"content": "{written}", "path": "a"}}'
    assert parse_call(raw) == json.loads(raw)


@pytest.mark.parametrize(
    "garbage",
    [
        '{"a": [,' + "," * 600 + "]" * MEGABYTE,
        "{" + "," * 600 + '"\\"' * (MEGABYTE // 3),
        "{" + "," * 600 + "\\" * MEGABYTE,
        "{" + "," * 600 + "x" * MEGABYTE,
        '{"a":' * (MEGABYTE // 5),
        "{}" + "[]," * (MEGABYTE // 3),
        '"' * MEGABYTE,
        "[" * (MEGABYTE // 2) + "]" * (MEGABYTE // 2),
        '{"a": [' + "[]," * (MEGABYTE // 3) + "1]}",
    ],
)
def test_a_megabyte_of_garbage_holds_nobody_up(garbage: str) -> None:
    def seconds() -> float:
        start = time.process_time()
        unusable_arguments("read", parse_call(garbage), PARAMETERS)
        return time.process_time() - start

    assert min(seconds() for _ in range(3)) < 0.1
