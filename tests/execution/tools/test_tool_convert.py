from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated, Any, Literal, NotRequired, Optional

import pytest
from pydantic import BaseModel, Field, TypeAdapter
from typing_extensions import TypedDict

from dsh.execution.tools.convert import output_schema, parameters_schema
from dsh.execution.tools.service import JsonSchemaError


class Color(StrEnum):
    RED = "red"
    BLUE = "blue"


class Point(BaseModel):
    """A place."""

    x: int
    y: int = 0


class Args(BaseModel):
    path: str = Field(description="Where", min_length=1)
    color: Color = Color.RED
    where: Point | None = None
    many: list[Point] = []
    limit: Annotated[int, Field(ge=1, le=10)] | None = Field(default=None, description="Max")
    kind: Literal["a", "b"] = "a"
    only: Literal["x"] = "x"
    options: dict[str, int] = {}
    anything: Any = None
    title: str = "t"


class Node(BaseModel):
    children: list[Node] = []


def parameters(model: type[BaseModel]) -> dict[str, Any]:
    schema = parameters_schema(model.model_json_schema(), closed=False)
    return json.loads(json.dumps(schema))  # type: ignore[no-any-return]


def output(kind: Any) -> dict[str, Any]:
    return dict(output_schema(TypeAdapter(kind).json_schema(mode="serialization")))


def test_references_are_inlined_and_nothing_points_elsewhere() -> None:
    schema = parameters(Args)
    assert "$" not in json.dumps(schema)
    point = schema["properties"]["where"]
    assert point["type"] == "object"
    assert point["description"] == "A place."
    assert point["properties"] == {"x": {"type": "integer"}, "y": {"type": "integer", "default": 0}}
    assert schema["properties"]["many"]["items"]["required"] == ["x"]


def test_an_optional_parameter_is_absent_not_null() -> None:
    schema = parameters(Args)
    assert schema["required"] == ["path"]
    assert schema["properties"]["limit"] == {
        "type": "integer",
        "description": "Max",
        "maximum": 10,
        "minimum": 1,
    }


def test_a_nested_value_that_must_be_said_may_be_null() -> None:
    class Inner(BaseModel):
        end: int | None

    class Outer(BaseModel):
        inner: Inner

    inner = parameters(Outer)["properties"]["inner"]
    assert inner["required"] == ["end"]
    assert inner["properties"]["end"] == {"oneOf": [{"type": "integer"}, {"type": "null"}]}


def test_constraints_stay_as_annotations() -> None:
    assert parameters(Args)["properties"]["path"]["minLength"] == 1


def test_generated_titles_go_and_a_property_called_title_stays() -> None:
    schema = parameters(Args)
    assert schema["properties"]["title"] == {"type": "string", "default": "t"}
    assert "title" not in schema
    assert "title" not in schema["properties"]["path"]


def test_literals_and_enums_are_typed() -> None:
    members = parameters(Args)["properties"]
    assert members["kind"] == {"type": "string", "enum": ["a", "b"], "default": "a"}
    assert members["only"] == {"type": "string", "const": "x", "default": "x"}
    assert members["color"] == {"type": "string", "enum": ["red", "blue"], "default": "red"}
    assert members["options"]["additionalProperties"] == {"type": "integer"}
    assert members["anything"] == {}


def test_key_order_is_fixed_and_the_text_is_stable() -> None:
    schema = parameters(Args)
    assert list(schema) == ["type", "properties", "required"]
    assert list(schema["properties"]) == list(Args.model_fields)
    assert json.dumps(schema) == json.dumps(parameters(Args))


def test_a_model_that_contains_itself_fails_when_it_is_defined() -> None:
    with pytest.raises(JsonSchemaError, match="contains itself"):
        parameters(Node)


def test_parameters_must_be_an_object() -> None:
    with pytest.raises(JsonSchemaError, match="must describe an object"):
        parameters_schema({"type": "string"}, closed=True)


class Result(TypedDict):
    name: Annotated[str, Field(min_length=3)]
    size: int | None
    note: NotRequired[str]
    extra: dict[str, int]


def test_outputs_fit_the_enforced_subset() -> None:
    assert output(Result) == {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "size": {"oneOf": [{"type": "integer"}, {"type": "null"}]},
            "note": {"type": "string"},
            "extra": {"type": "object", "additionalProperties": True},
        },
        "required": ["name", "size", "extra"],
    }


@pytest.mark.parametrize(
    ("kind", "schema"),
    [
        (int | float, {"type": "number"}),
        (Literal["a"] | str, {"type": "string"}),  # noqa: PYI051
        (Optional[Any], {}),  # noqa: UP045
        (tuple[int, int], {"type": "array", "items": {"type": "integer"}}),
        (
            int | str | None,
            {"oneOf": [{"type": "integer"}, {"type": "string"}, {"type": "null"}]},
        ),
        (list[str | None] | None, None),
    ],
)
def test_alternatives_that_overlap_are_merged(kind: Any, schema: dict[str, Any] | None) -> None:
    made = output(kind)
    assert schema is None or made == schema


def test_literals_of_different_types_have_no_form() -> None:
    with pytest.raises(JsonSchemaError, match="mixes literals"):
        output(Literal["a", 1])
