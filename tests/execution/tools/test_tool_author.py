from __future__ import annotations

import dataclasses
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import pytest
from pydantic import BaseModel, ConfigDict, Field, field_validator

from dsh.base.json import JsonValue, snapshot
from dsh.execution.tools.author import define_tool, tool
from dsh.execution.tools.service import (
    JsonSchemaError,
    ToolArgsError,
    ToolDefinition,
    ToolRegistrationError,
    ToolResultFacts,
    ToolRunContext,
)

UNKNOWN_LIMT = (
    "unknown parameter \"limt\" (did you mean 'limit'?); allowed: path, limit, mode, ranges"
)


class Range(BaseModel):
    start: int
    end: int | None = None


class ReadArgs(BaseModel):
    path: str = Field(description="Where")
    limit: int = Field(default=10, ge=1)
    mode: Literal["text", "bytes"] = "text"
    ranges: list[Range] = []

    @field_validator("path")
    @classmethod
    def _no_nul(cls, path: str) -> str:
        if "\0" in path:
            raise ValueError("a path cannot hold NUL")
        return path


class ReadResult(TypedDict):
    path: str
    lines: list[str]


class Tree(BaseModel):
    branches: list[Tree] = []


class Hit(TypedDict):
    path: str
    line: NotRequired[int]


async def read(args: ReadArgs, run: ToolRunContext) -> ReadResult:
    """Read a file of the workspace."""
    return {"path": args.path, "lines": []}


def violations(definition: ToolDefinition, arguments: Any) -> list[str]:
    assert definition.parse_arguments is not None
    with pytest.raises(ToolArgsError) as caught:
        definition.parse_arguments(arguments)
    return list(caught.value.violations)


def test_a_model_gives_the_parameters_and_the_annotation_the_output() -> None:
    made = define_tool(read)
    assert made.name == "read"
    assert made.description == "Read a file of the workspace."
    assert list(made.parameters["properties"]) == ["path", "limit", "mode", "ranges"]  # type: ignore[call-overload]
    assert made.parameters["required"] == ["path"]
    assert made.parameters["additionalProperties"] is False
    assert made.output.schema["required"] == ["path", "lines"]


def test_plain_parameters_are_described_by_the_docstring() -> None:
    @tool(name="find")
    async def _find(pattern: str, limit: Annotated[int, Field(ge=1)] = 5) -> list[str]:
        """Find names.

        Args:
            pattern: What to look for.
            limit: At most so many.
        """
        return [pattern] * limit

    assert _find.name == "find"
    assert _find.parameters == {
        "type": "object",
        "properties": {
            "pattern": {"type": "string", "description": "What to look for."},
            "limit": {
                "type": "integer",
                "description": "At most so many.",
                "default": 5,
                "minimum": 1,
            },
        },
        "required": ["pattern"],
        "additionalProperties": False,
    }
    assert _find.output.schema == {"type": "array", "items": {"type": "string"}}


def test_the_run_context_is_not_a_parameter() -> None:
    @tool
    async def stop(run: ToolRunContext) -> None:
        """Stop."""

    assert stop.parameters["properties"] == {}
    assert stop.output.schema == {"type": "null"}


def test_defining_twice_gives_the_same_schema_text() -> None:
    assert str(define_tool(read).parameters) == str(define_tool(read).parameters)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, ['missing required parameter "path" (string)']),
        (
            {"path": "a", "limt": 3},
            [UNKNOWN_LIMT],
        ),
        ({"path": 5}, ['"path": expected string, got integer 5']),
        (
            {"path": "a", "limit": 0},
            ['"limit": expected integer >= 1, got integer 0'],
        ),
        (
            {"path": "a", "mode": "x"},
            ['"mode": expected one of "text", "bytes", got string \'x\''],
        ),
        ({"path": "a", "ranges": [{}]}, ['missing required parameter "ranges[0].start" (integer)']),
        (
            {"path": "a", "ranges": [{"start": 1, "end": "x"}]},
            ["\"ranges[0].end\": expected integer, got string 'x'"],
        ),
        ({"path": "\0"}, ['"path": a path cannot hold NUL']),
        ({"path": None, "limit": []}, None),
    ],
)
def test_each_wrong_parameter_gets_one_line(arguments: Any, expected: list[str] | None) -> None:
    found = violations(define_tool(read), arguments)
    if expected is None:
        assert len(found) == 2
    else:
        assert found == expected


def test_the_message_names_the_tool_and_has_a_line_a_violation() -> None:
    made = define_tool(read)
    assert made.parse_arguments is not None
    with pytest.raises(ToolArgsError) as caught:
        made.parse_arguments({"limit": 0})
    assert caught.value.code == "INVALID_ARGS"
    assert caught.value.message.splitlines() == [
        "tool 'read' was not run: its arguments are invalid",
        '- missing required parameter "path" (string)',
        '- "limit": expected integer >= 1, got integer 0',
    ]


def test_a_huge_wrong_value_is_not_repeated() -> None:
    found = violations(define_tool(read), {"path": "a", "limit": "y" * 1_000_000})
    assert len(found[0]) < 200
    found = violations(define_tool(read), {"path": "a", "z" * 1_000_000: 1})
    assert len(found[0]) < 300


def test_a_model_may_admit_more_arguments() -> None:
    class Open(BaseModel):
        model_config = ConfigDict(extra="allow")
        path: str

    @tool
    async def loose(args: Open) -> str:
        """Take anything."""
        return args.path

    assert "additionalProperties" not in loose.parameters or loose.parameters[
        "additionalProperties"
    ] in (True, {})
    assert loose.parse_arguments is not None
    assert loose.parse_arguments({"path": "a", "x": 1}).path == "a"


def test_an_optional_parameter_without_default_may_be_left_out() -> None:
    @tool
    async def maybe(note: str | None, other: str | None = None) -> str:
        """Note."""
        return note or ""

    assert "required" not in maybe.parameters
    assert maybe.parameters["properties"]["note"] == {"type": "string"}  # type: ignore[call-overload, index]
    assert maybe.parse_arguments is not None
    assert maybe.parse_arguments({}).note is None


def test_arguments_are_parsed_once_a_call() -> None:
    made = define_tool(read)
    arguments = snapshot({"path": "a"})
    assert made.parse_arguments is not None
    assert made.parse_arguments(arguments) is made.parse_arguments(arguments)


def test_callbacks_get_the_parsed_arguments() -> None:
    made = define_tool(
        read,
        render=lambda args, value: f"{args.path}: {len(value['lines'])}",
        presentation_meta=lambda args, value: {"path": args.path},
    )
    arguments, value = {"path": "a"}, {"path": "a", "lines": ["x"]}
    assert made.output.render(arguments, value) == [{"type": "text", "text": "a: 1"}]
    assert made.output.presentation_meta is not None
    assert made.output.presentation_meta(arguments, value) == {"path": "a"}


def test_presenters_and_classifier_are_soft_on_old_arguments() -> None:
    made = define_tool(
        read,
        parallel=True,
        present_call=lambda args: {"card": "generic", "title": args.path},
        present_result=lambda args, result: {"card": "generic", "title": str(result.is_error)},
    )
    assert made.present_call is not None
    assert made.present_result is not None
    assert made.is_concurrency_safe is not None
    facts = ToolResultFacts([], is_error=False)
    assert made.present_call({"path": "a"}) == {"card": "generic", "title": "a"}
    assert made.present_call({"gone": 1}) is None
    assert made.present_result({"path": "a"}, facts) == {"card": "generic", "title": "False"}
    assert made.present_result("junk", facts) is None
    assert made.is_concurrency_safe({"path": "a"}) is True
    assert made.is_concurrency_safe({}) is False


def test_a_classifier_of_arguments_must_say_exactly_true() -> None:
    made = define_tool(read, parallel=lambda args: args.path)
    assert made.is_concurrency_safe is not None
    assert made.is_concurrency_safe({"path": "a"}) is False


def test_without_render_text_is_itself_and_json_is_json() -> None:
    @tool
    async def say(text: str) -> str:
        """Say."""
        return text

    assert say.output.render({"text": "x"}, "plain") == [{"type": "text", "text": "plain"}]
    assert define_tool(read).output.render({"path": "a"}, {"é": [1]}) == [
        {"type": "text", "text": '{"é":[1]}'}
    ]


def test_a_deep_value_is_rendered_without_overflow() -> None:
    deep: Any = 1
    for _ in range(10_000):
        deep = [deep]
    [shown] = define_tool(read).output.render({"path": "a"}, deep)
    assert len(shown["text"]) == 20_001  # type: ignore[typeddict-item]


@dataclasses.dataclass
class Size:
    width: int
    height: int


async def test_dataclasses_and_models_become_json() -> None:
    @tool
    async def measure() -> list[Size]:
        """Measure."""
        return [Size(1, 2)]

    value = await measure.execute(measure.parse_arguments({}), None)  # type: ignore[misc, arg-type]
    assert value == [{"width": 1, "height": 2}]


def test_any_json_may_come_back() -> None:
    @tool
    async def anything() -> JsonValue:
        """Any."""
        return 1

    assert anything.output.schema == {}


def test_nested_typed_dicts_are_read_on_every_python() -> None:
    @tool
    async def search(pattern: str) -> dict[str, list[Hit | None]] | list[Hit]:
        """Search."""
        return []

    @tool
    async def first(hits: list[Hit]) -> Hit:
        """Take the first."""
        return hits[0]

    assert first.output.schema == {
        "type": "object",
        "properties": {"path": {"type": "string"}, "line": {"type": "integer"}},
        "required": ["path"],
    }
    assert search.output.schema["oneOf"][1]["items"] == first.output.schema  # type: ignore[call-overload, index]


def test_an_output_schema_can_be_given() -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {}}
    assert define_tool(read, output=schema).output.schema == schema


async def _unnamed(*args: int) -> None:
    """No."""


async def _untyped(a) -> None:  # type: ignore[no-untyped-def]
    """No."""


async def _silent(a: int) -> None:
    pass


async def _no_return(a: int):  # type: ignore[no-untyped-def]
    """No."""


async def _misdescribed(a: int) -> None:
    """No.

    Args:
        b: Not there.
    """


async def _hidden(a: Nowhere) -> None:  # type: ignore[name-defined]  # noqa: F821
    """No."""


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (_unnamed, "must have a name"),
        (_untyped, "'a' has no annotation"),
        (_silent, "needs a description or a docstring"),
        (_no_return, "no return annotation"),
        (_misdescribed, "describes 'b'"),
        (_hidden, "not under TYPE_CHECKING"),
    ],
)
def test_a_function_that_cannot_be_a_tool_is_refused(function: Any, problem: str) -> None:
    with pytest.raises(ToolRegistrationError, match=problem):
        define_tool(function)


def test_an_output_outside_the_subset_is_refused() -> None:
    with pytest.raises(JsonSchemaError):
        define_tool(read, output=Tree)
