from __future__ import annotations

import dataclasses
from collections.abc import Callable
from threading import Event
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


def test_a_callback_with_a_mistake_is_reported_and_harms_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def act(a: int) -> str:
        """Act."""
        return ""

    definition = define_tool(
        act,
        present_call=lambda args: args.nothing,
        present_result=lambda args, facts: args.nothing,
        parallel=lambda args: args.nothing,
        polls=lambda args: args.nothing,
    )
    facts = ToolResultFacts(content=[], is_error=False)
    assert definition.present_call is not None
    assert definition.present_result is not None
    assert definition.is_concurrency_safe is not None
    assert definition.polls is not None
    assert definition.present_call({"a": 1}) is None
    assert definition.present_result({"a": 1}, facts) is None
    assert definition.is_concurrency_safe({"a": 1}) is False
    assert definition.polls({"a": 1}) is False
    assert [record.getMessage() for record in caplog.records] == [
        f"{what} of tool 'act' failed"
        for what in ("present_call", "present_result", "parallel", "polls")
    ]


@pytest.mark.parametrize(
    "field",
    ["render", "presentation_meta", "parallel", "resources", "polls", "present_call"],
)
@pytest.mark.parametrize(("given", "problem"), [("no", "callable"), (read, "not be async")])
def test_a_callback_that_cannot_answer_is_refused(field: str, given: Any, problem: str) -> None:
    with pytest.raises(ToolRegistrationError, match=rf"tool 'read': {field} must .*{problem}"):
        define_tool(read, **{field: given})


class Spot(BaseModel):
    kind: Literal["spot"]
    at: int


class Span(BaseModel):
    kind: Literal["span"]
    until: str


NO_TAG = "found using 'kind' does not match any of the expected tags: 'spot', 'span'"


async def mark(
    where: Spot | Span | None = None,
    told: Annotated[Spot | Span, Field(discriminator="kind")] | None = None,
    sizes: dict[str, int] = {},  # noqa: B006  # pydantic copies it
    both: int | str | None = None,
    note: str = "",
) -> str:
    """Mark."""
    return ""


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            {"where": {"kind": "spot"}},
            [
                '"where": as Spot.at: field required',
                "\"where\": as Span.kind: input should be 'span'",
                '"where": as Span.until: field required',
            ],
        ),
        ({"told": {"kind": "line"}}, [f"\"told\": input tag 'line' {NO_TAG}"]),
        ({"sizes": {"a": 1, "b": "x"}}, ["\"sizes.b\": expected integer, got string 'x'"]),
        ({"both": []}, ['"both": expected integer or string, got array']),
    ],
)
def test_the_model_is_told_what_is_wrong_inside_of_alternatives_and_mappings(
    arguments: Any, expected: list[str]
) -> None:
    with pytest.raises(ToolArgsError) as caught:
        define_tool(mark).parse_arguments(arguments)  # type: ignore[misc]
    assert list(caught.value.violations) == expected


@pytest.mark.parametrize(
    "arguments",
    [
        {"sizes": {"x" * 100_000: "q"}},
        {"sizes": {str(n): "q" for n in range(10_000)}},
        {str(n): 1 for n in range(10_000)},
        {"told": {"kind": "z" * 100_000}},
        {"where": {"kind": "z" * 100_000}},
        {"note": ["z" * 100_000]},
    ],
)
def test_what_is_said_of_wrong_arguments_is_bounded(arguments: Any) -> None:
    with pytest.raises(ToolArgsError) as caught:
        define_tool(mark).parse_arguments(arguments)  # type: ignore[misc]
    assert len(caught.value.message) < 3_000
    assert len(caught.value.violations) <= 21


def test_defaults_without_a_json_form_are_not_shown() -> None:
    @tool
    async def act(
        a: int = object(),  # type: ignore[assignment]
        b: float = float("nan"),
        c: float = float("inf"),
        d: int = 1,
    ) -> str:
        """Act."""
        return ""

    shown: Any = act.parameters["properties"]
    assert {name: node.get("default") for name, node in shown.items()} == {
        "a": None,
        "b": None,
        "c": None,
        "d": 1,
    }
    snapshot(act.parameters)


def test_annotations_that_are_no_types_are_refused() -> None:
    def act(a: "1 +") -> str:  # type: ignore[valid-type]  # noqa: F722
        """Act."""
        return ""

    def take(a: BaseModel) -> str:
        """Take."""
        return ""

    with pytest.raises(ToolRegistrationError, match="tool 'act': its annotations cannot be read"):
        define_tool(act)
    with pytest.raises(ToolRegistrationError, match="tool 'take'"):
        define_tool(take)


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


async def _private(_a: int) -> None:
    """No."""


async def _config(model_config: int) -> None:
    """No."""


async def _unspeakable(a: int, b: Event) -> None:
    """No."""


async def _formless(a: int, b: Callable[[], int]) -> None:
    """No."""


async def _gives_formless(a: int) -> Event:
    """No."""
    return Event()


class _ArgsWithEvent(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)

    when: Event


async def _takes_formless(args: _ArgsWithEvent) -> None:
    """No."""


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (_private, "'_a' cannot be the name of a parameter; rename it"),
        (_config, "'model_config' cannot be the name of a parameter"),
        (_unspeakable, r"the type Event of parameter 'b' has no JSON form; use"),
        (_formless, r"the type .*Callable.* of parameter 'b' has no JSON form; use"),
        (_gives_formless, "its return type Event has no JSON form; use .*, or give output="),
        (_takes_formless, r"the type Event of parameter 'when' has no JSON form; use"),
        (lambda a: a, "needs a name as a tool"),
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


def test_a_parameter_may_have_the_name_of_a_method_of_models() -> None:
    async def ask(json: str, schema: int = 1) -> str:
        """Ask."""
        return json * schema

    definition = define_tool(ask)
    assert list(definition.parameters["properties"]) == ["json", "schema"]  # type: ignore[arg-type]


def test_a_schema_that_cannot_be_expressed_names_the_tool_and_the_part() -> None:
    async def grow(tree: Tree) -> str:
        """Grow."""
        return ""

    with pytest.raises(JsonSchemaError, match=r"parameters of tool 'grow': .* contains itself"):
        define_tool(grow)


def test_an_output_outside_the_subset_is_refused() -> None:
    with pytest.raises(JsonSchemaError, match="return value of tool 'read'"):
        define_tool(read, output=Tree)
