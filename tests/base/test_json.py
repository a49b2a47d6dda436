from __future__ import annotations

import copy
import json as stdlib
import math
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsh.base import json

surrogates = st.text(st.characters(codec="utf-8") | st.characters(categories=["Cs"]), max_size=8)
scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
)
values = st.recursive(
    scalars | surrogates,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(surrogates, inner, max_size=4),
    max_leaves=20,
)


def nested(depth: int) -> list[Any]:
    top: list[Any] = []
    current = top
    for _ in range(depth):
        current.append({"in": (inner := [])})
        current = inner
    return top


@given(values)
def test_every_json_value_survives_snapshot_dumps_and_loads(value: object) -> None:
    assert json.equal(json.loads(json.dumps(json.snapshot(value))), value)


@given(values)
def test_dumps_is_utf8_that_any_json_reader_takes(value: object) -> None:
    assert json.equal(stdlib.loads(json.dumps(value).decode("utf-8")), value)


def test_a_lone_surrogate_is_written_as_its_escape() -> None:
    assert json.dumps({"a": "x\ud83d"}) == b'{"a":"x\\ud83d"}'


def test_a_snapshot_is_detached_and_read_only() -> None:
    source: dict[str, Any] = {"list": [1, {"deep": True}]}

    taken = json.snapshot(source)
    source["list"].append(2)

    assert taken == {"list": [1, {"deep": True}]}
    for change in (
        lambda: taken.update(a=1),
        lambda: taken["list"].append(1),
        lambda: taken["list"][1].pop("deep"),
    ):
        with pytest.raises(TypeError, match="read-only"):
            change()


def test_a_shared_part_is_copied_and_a_cycle_is_refused() -> None:
    shared = {"a": 1}
    cycle: list[Any] = [shared, shared]
    assert json.snapshot(cycle) == [{"a": 1}, {"a": 1}]

    cycle.append(cycle)
    with pytest.raises(json.NotLossless, match=r"\$\[2\].*contains itself"):
        json.snapshot(cycle)


class Shouting(str):
    __slots__ = ()


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"a": [0, math.nan]}, r"\$\.a\[1\].*not a JSON number"),
        ({"a": math.inf}, "not a JSON number"),
        ({"a": (1,)}, "tuple is not a JSON type"),
        ({"a": {1}}, "set is not a JSON type"),
        ({"a": b"x"}, "bytes is not a JSON type"),
        ({1: "a"}, "the key 1 is not text"),
        ({"a": Shouting("x")}, "Shouting is not a JSON type"),
    ],
)
def test_what_would_not_survive_is_refused_with_its_path(value: object, problem: str) -> None:
    with pytest.raises(json.NotLossless, match=problem):
        json.snapshot(value)


@pytest.mark.parametrize("value", [-0.0, 2**53, -(2**53)])
def test_only_logged_values_are_held_to_what_other_readers_can_hold(value: float) -> None:
    assert json.snapshot([value]) == [value]
    with pytest.raises(json.NotLossless):
        json.snapshot([value], logged=True)


def test_depth_is_bounded_by_memory_only() -> None:
    deep = nested(50_000)

    taken = json.snapshot(deep, logged=True)
    text = json.dumps(taken)

    assert text.startswith(b'[{"in":[{"in":[')
    assert json.equal(taken, deep)
    assert json.equal(json.snapshot(deep), deep)
    assert json.equal(json.loads(text), deep)
    assert json.equal(json.thaw(taken), deep)
    assert json.canonical(deep) == text.decode()
    assert type(json.freeze(nested(50_000))) is json.FrozenList


def test_copies_of_frozen_data_are_plain() -> None:
    frozen = json.snapshot({"a": [1]})
    copied = copy.deepcopy(frozen)
    copied["a"].append(2)
    assert copied == {"a": [1, 2]}
    assert pickle.loads(pickle.dumps(frozen)) == frozen


def test_equal_tells_true_from_one_at_any_depth() -> None:
    assert not json.equal([{"a": True}], [{"a": 1}])
    assert json.equal([{"a": 1, "b": None}], [{"b": None, "a": 1.0}])
    assert not json.equal({"a": 1}, {"b": 1})
    assert not json.equal([1], [1, 2])
    assert not json.equal([1], {"0": 1})


def test_canonical_text_does_not_depend_on_key_order() -> None:
    assert json.canonical({"b": 1, "a": [2]}) == json.canonical({"a": [2], "b": 1})


@pytest.mark.parametrize("text", [b"NaN", b"{", b"[1,]", b"-Infinity", b"1e400", b"", b'"\xff"'])
def test_text_that_is_not_json_raises_value_error(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        json.loads(text)


@given(st.integers(min_value=2**63))
def test_an_integer_of_any_size_is_read_as_it_was_written(number: int) -> None:
    for value in ([number], {"a": -number}):
        assert json.equal(json.loads(json.dumps(value)), value)
        assert json.equal(json.loads(json.dumps(value).decode()), value)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_never_written_as_null(number: float) -> None:
    for value in (number, {"a": [None, number]}):
        with pytest.raises(ValueError, match="not JSON compliant"):
            json.dumps(value)
    assert json.dumps({"null": None}) == b'{"null":null}'


@given(values)
def test_a_logged_value_is_what_every_reader_gives_back(value: object) -> None:
    try:
        taken = json.snapshot(value, logged=True)
    except json.NotLossless:
        return
    assert json.equal(json.loads(json.dumps(taken)), taken)
    assert json.equal(json.snapshot(taken, logged=True), taken)


def test_the_halves_of_a_surrogate_pair_are_logged_as_one_character() -> None:
    halves = "a\ud83d" + "\ude00\ud83d"

    taken = json.snapshot({"a": [halves]}, logged=True)

    assert taken == {"a": ["a\U0001f600\ud83d"]}
    assert json.loads(json.dumps(taken)) == taken
    assert json.snapshot(halves) == halves


def test_a_key_that_reads_back_as_another_is_not_logged() -> None:
    key = "\ud83d" + "\ude00"
    with pytest.raises(json.NotLossless, match=r"\$\.a is not.*surrogate pair"):
        json.snapshot({"a": {key: 1}}, logged=True)
    assert json.snapshot({"é\ud83d": 1}, logged=True) == {"é\ud83d": 1}


def unsound(value: Any) -> json.FrozenDict:
    """Freeze the surface only, as a careless caller might."""
    return json.FrozenDict({"a": 1, "inside": json.FrozenList(["b", value])})


def test_a_frozen_part_is_shared_and_yet_looked_at_when_it_is_logged() -> None:
    sound = json.freeze({"a": [1, {"b": "c"}]})
    taken = json.snapshot({"x": sound}, logged=True)
    assert taken["x"] is sound
    assert json.snapshot(sound, logged=True) is sound

    inner: list[Any] = [1]
    hollow = unsound(inner)
    taken = json.snapshot({"x": hollow}, logged=True)
    assert hollow["inside"][1] is inner
    inner.append(2)
    assert taken == {"x": {"a": 1, "inside": ["b", [1]]}}
    assert type(taken["x"]["inside"][1]) is json.FrozenList

    members = json.FrozenDict({"a": inner})
    assert json.snapshot(members, logged=True) == {"a": [1, 2]}
    assert members["a"] is inner

    for value in (math.nan, 2**60, ()):
        with pytest.raises(json.NotLossless, match=r"\$\.x\.inside\[1\]"):
            json.snapshot({"x": unsound(value)}, logged=True)


def test_a_snapshot_of_what_is_frozen_looks_no_further() -> None:
    deep = json.freeze(nested(5_000))
    assert json.snapshot(deep) is deep


def test_a_cycle_through_frozen_parts_is_refused_when_it_is_logged() -> None:
    inner: list[Any] = []
    cycle = unsound(inner)
    inner.append(cycle)
    with pytest.raises(json.NotLossless, match="contains itself"):
        json.snapshot({"x": cycle}, logged=True)


def test_a_cycle_is_not_frozen_for_ever() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    with pytest.raises(json.NotLossless, match="contains itself"):
        json.freeze(cycle)


@pytest.mark.parametrize("logged", [False, True])
def test_the_path_of_a_deep_fault_is_exact(logged: bool) -> None:
    deep: Any = math.nan
    for _ in range(100):
        deep = {"k": [0, deep]}
    with pytest.raises(json.NotLossless) as told:
        json.snapshot(deep, logged=logged)
    assert told.value.path == "$" + ".k[1]" * 100


@pytest.mark.parametrize("value", [{}, {"a": [1, {"b": None}], "ä": "\ud800 \U0001f600"}, [], "x"])
def test_pretty_text_reads_as_the_same_value(value: Any) -> None:
    data = json.pretty(value)
    assert json.loads(data) == value
    assert data.endswith(b"\n")
    data.decode("utf-8")


def test_pretty_text_is_indented_and_refuses_what_is_no_number() -> None:
    assert json.pretty({"a": {"b": 1}}) == b'{\n  "a": {\n    "b": 1\n  }\n}\n'
    with pytest.raises(ValueError, match="JSON"):
        json.pretty({"a": float("nan")})
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    assert json.pretty(deep).count(b"[") == 100_000
