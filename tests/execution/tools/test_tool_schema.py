from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsh.execution.tools.schema import (
    _check,
    _fits,
    _run,
    assert_object_json_schema,
    assert_supported_json_schema,
    validate_json_schema_value,
)
from dsh.execution.tools.service import JsonSchemaError

DEEP = 10_000

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.floats()
    | st.text(max_size=3)
    | st.sampled_from(["a", "b"])
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    ),
    max_leaves=8,
)


def _object(members: dict[str, Any], required: list[str], closed: bool) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": members,
        "required": [name for name in required if name in members],
        "additionalProperties": not closed,
    }


schemas = st.recursive(
    st.sampled_from(
        [
            {},
            {"type": "string"},
            {"type": "string", "enum": ["a", "b"]},
            {"type": "integer"},
            {"type": "integer", "const": 1},
            {"type": "number"},
            {"type": "boolean"},
            {"type": "null"},
            {"type": "array"},
            {"type": "object"},
        ]
    ),
    lambda inner: (
        st.builds(lambda items: {"type": "array", "items": items}, inner)
        | st.builds(lambda one, two: {"oneOf": [one, two]}, inner, inner)
        | st.builds(
            _object,
            st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
            st.lists(st.sampled_from("abc"), max_size=2, unique=True),
            st.booleans(),
        )
    ),
    max_leaves=6,
)


@given(schemas, values)
def test_the_quick_and_the_careful_walk_agree(schema: dict[str, Any], value: Any) -> None:
    found: list[str] = []
    _run(_check(schema, value, (None, ""), found))
    assert _fits(schema, value, 0) is (not found)


@given(schemas, values)
def test_validation_is_total(schema: dict[str, Any], value: Any) -> None:
    assert_supported_json_schema(schema)
    assert all(isinstance(text, str) for text in validate_json_schema_value(schema, value))


@given(st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_asserting_a_schema_is_total(schema: Any) -> None:
    with suppress(JsonSchemaError):
        assert_supported_json_schema(schema)


class _Hostile(dict[str, Any]):
    def __contains__(self, key: object) -> bool:
        raise RuntimeError("no")

    def items(self) -> Any:
        raise RuntimeError("no")


def test_a_value_that_cannot_be_inspected_is_a_violation() -> None:
    schema = {"type": "object", "properties": {"a": {}}, "required": ["a"]}
    assert validate_json_schema_value(schema, _Hostile()) == [
        "arguments cannot be inspected: RuntimeError"
    ]


@pytest.mark.parametrize("kind", ["array", "object", "oneOf"])
def test_deep_schemas_and_values_do_not_overflow(kind: str) -> None:
    schema: dict[str, Any] = {"type": "integer"}
    value: Any = 1
    wrong: Any = "x"
    for _ in range(DEEP):
        if kind == "array":
            schema, value, wrong = {"type": "array", "items": schema}, [value], [wrong]
        elif kind == "object":
            schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
            value, wrong = {"a": value}, {"a": wrong}
        else:
            schema = {"oneOf": [schema, {"type": "null"}]}
    assert_supported_json_schema(schema)
    assert validate_json_schema_value(schema, value) == []
    [problem] = validate_json_schema_value(schema, wrong)
    assert len(problem) < 400


def test_a_deep_value_under_an_open_schema_does_not_overflow() -> None:
    value: Any = 1
    for _ in range(DEEP):
        value = [value]
    assert validate_json_schema_value({}, value) == []
    assert validate_json_schema_value({"type": "array"}, value) == []


@pytest.mark.parametrize(
    ("schema", "value", "problem"),
    [
        ({"type": "object", "required": ["b"], "properties": {"b": {}}}, {}, 'property "a.b"'),
        ({"type": "object", "additionalProperties": False}, {"x": 1}, 'unknown property "a.x"'),
        ({"type": "array", "items": {"type": "string"}}, ["", 1], '"a[1]" must be string'),
        ({"type": "integer"}, True, "must be integer, got boolean"),
        ({"type": "number"}, True, "must be number, got boolean"),
        ({"type": "integer"}, 1.5, "must be integer, got number"),
        ({"type": "number"}, float("inf"), "must be number"),
        ({"type": "string", "enum": ["x"]}, "y", "must be one of 'x'"),
        ({"type": "integer", "const": 1}, 2, "must be 1"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, 1, "it matches 2"),
        ({"oneOf": [{"type": "null"}, {"type": "string"}]}, 1, "it matches 0"),
        ({}, {1: 2}, "not lossless"),
        ({}, (1,), "not lossless"),
    ],
)
def test_each_rule_is_enforced(schema: dict[str, Any], value: Any, problem: str) -> None:
    [found] = validate_json_schema_value(schema, value, "a")
    assert problem in found


def test_an_integer_may_be_an_integral_float() -> None:
    assert validate_json_schema_value({"type": "integer"}, 2.0) == []


def test_the_empty_path_is_the_arguments() -> None:
    [found] = validate_json_schema_value({"type": "object"}, [])
    assert found == "arguments must be object, got array"


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ([], "schema must be an object"),
        ({"type": ["string", "null"]}, "schema.type must be one of"),
        ({"type": "text"}, "schema.type must be one of"),
        ({"$ref": "#/x"}, r"schema.\$ref is not supported"),
        ({"anyOf": [{}]}, "schema.anyOf is not supported"),
        ({"type": "string", "minLength": 1}, "schema.minLength is not supported"),
        ({"properties": {}}, "schema.properties needs a type"),
        ({"type": "string", "items": {}}, "schema.items does not apply to type 'string'"),
        ({"oneOf": [{}]}, "schema.oneOf must list at least two"),
        ({"oneOf": [{}, {}], "type": "string"}, "schema.type cannot stand beside oneOf"),
        ({"type": "object", "required": ["a"]}, "names 'a', which is not among"),
        ({"type": "object", "additionalProperties": {}}, "additionalProperties must be a boolean"),
        ({"type": "string", "enum": []}, "schema.enum must be a list with members"),
        ({"type": "string", "enum": [1]}, r"schema.enum\[0\] is not of type 'string'"),
        ({"type": "integer", "const": True}, "schema.const is not of type 'integer'"),
        ({"type": "string", "enum": ["a"], "const": "b"}, "schema.const is not a member"),
        ({"default": float("nan")}, "schema.default is not lossless"),
        (
            {"type": "object", "properties": {"x": {"type": "array", "items": {"not": {}}}}},
            "schema.properties.x.items.not is not supported",
        ),
    ],
)
def test_what_the_subset_cannot_say_is_refused(schema: Any, problem: str) -> None:
    with pytest.raises(JsonSchemaError, match=problem):
        assert_supported_json_schema(schema)


def test_all_violations_are_collected() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "x"}, "b": {"format": "uri"}}}
    with pytest.raises(JsonSchemaError) as caught:
        assert_supported_json_schema(schema)
    assert len(caught.value.violations) == 2


def test_shared_nodes_are_fine_and_cycles_are_not() -> None:
    shared: dict[str, Any] = {"type": "string"}
    assert_supported_json_schema({"type": "object", "properties": {"a": shared, "b": shared}})
    cyclic: dict[str, Any] = {"type": "array"}
    cyclic["items"] = cyclic
    with pytest.raises(JsonSchemaError, match="contains itself"):
        assert_supported_json_schema(cyclic)


def test_widely_shared_nodes_are_walked_once() -> None:
    node: dict[str, Any] = {"type": "string"}
    for _ in range(60):
        node = {"oneOf": [node, node]}
    assert_supported_json_schema(node)


def test_dunder_properties_are_data() -> None:
    schema = {"type": "object", "properties": {"__class__": {"type": "string"}}}
    assert_supported_json_schema(schema)
    assert validate_json_schema_value(schema, {"__class__": 1}, "v") == [
        '"v.__class__" must be string, got integer'
    ]


def test_an_object_root_can_be_demanded() -> None:
    assert_object_json_schema({"type": "object"})
    with pytest.raises(JsonSchemaError, match="at its root"):
        assert_object_json_schema({"type": "string"})
