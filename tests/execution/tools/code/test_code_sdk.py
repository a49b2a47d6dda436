"""The declarations that a model reads: Python that parses, the same text for the same tools."""

from __future__ import annotations

import ast
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tool_harness import make_tool

from dsh.execution.prompt.service import interpolate
from dsh.execution.tools.code.python_sdk import INSTRUCTIONS, render
from dsh.execution.tools.code.python_types import TypeWriter


def object_of(members: dict[str, Any], *required: str, closed: bool = True) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "properties": members}
    if closed:
        schema["additionalProperties"] = False
    return {**schema, "required": list(required)} if required else schema


def source(*tools: Any) -> str:
    """The Python inside of the fence; it parses."""
    text = render(tools)
    assert text.startswith("```python\n")
    assert text.endswith("\n```")
    inner = text.removeprefix("```python\n").removesuffix("\n```")
    ast.parse(inner)
    return inner


def type_of(schema: Any) -> tuple[str, str]:
    writer = TypeWriter()
    found = writer.type_of(schema, "XArgs")
    return found, "\n".join(writer.blocks)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({}, "Any"),
        ({"description": "what"}, "Any"),
        (True, "Any"),
        ({"type": "string"}, "str"),
        ({"type": "number"}, "float"),
        ({"type": "integer"}, "int"),
        ({"type": "boolean"}, "bool"),
        ({"type": "null"}, "None"),
        ({"type": "array"}, "list[Any]"),
        ({"type": "array", "items": {"type": "integer"}}, "list[int]"),
        ({"type": "object"}, "dict[str, Any]"),
        ({"type": "object", "additionalProperties": True}, "dict[str, Any]"),
        ({"enum": ["a", 'b"', 1, True, None]}, "Literal['a', 'b\"', 1, True, None]"),
        ({"const": "x"}, "Literal['x']"),
        ({"const": 1.5, "type": "number"}, "float"),
        ({"enum": [2**70], "type": "integer"}, "int"),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}, {"type": "string"}]}, "str | int"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "str | None"),
        ({"oneOf": [{"type": "string"}, {}]}, "Any"),
        ({"type": "string", "minLength": 3, "pattern": "x"}, "str"),
        ({"type": ["string", "null"]}, "Any"),
        ({"type": "wonder"}, "Any"),
        ({"$ref": "#/x"}, "Any"),
        ({"type": "object", "allOf": []}, "Any"),
        (object_of({"a": {"type": "string"}}), "XArgs"),
    ],
)  # fmt: skip
def test_a_schema_becomes_a_type(schema: Any, text: str) -> None:
    assert type_of(schema)[0] == text


@pytest.mark.parametrize(
    "name", ["class", "a-b", "", "1a", "__private", "ﬁne", "a b", "None", "__class__", "__proto__"]
)
def test_a_field_that_no_stub_can_have_makes_the_object_a_dict(name: str) -> None:
    schema = object_of({"fine": {"type": "string"}, name: {"type": "string"}})
    assert type_of(schema)[0] == "dict[str, Any]"


def test_objects_say_what_is_optional_and_what_is_open() -> None:
    members = {"a": {"type": "string", "description": "The\n  a."}, "b": {"type": "integer"}}
    assert type_of(object_of(members, "a", closed=False))[1] == (
        "class XArgs(TypedDict):\n    # The a.\n    a: str\n    b: NotRequired[int]\n"
        "    # additional keys allowed"
    )
    assert type_of(object_of({}))[1] == "class XArgs(TypedDict):\n    pass"


def test_nested_classes_stand_before_those_that_use_them() -> None:
    inner = object_of({"x": {"type": "string"}})
    text = source(make_tool("read_file", parameters=object_of({"opts": inner, "more": inner})))
    names = [node.name for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
    assert names == [
        "ToolCallError", "ReadFileArgsOpts", "ReadFileArgsMore", "ReadFileArgs", "Tools",
    ]  # fmt: skip


def test_classes_that_would_share_a_name_are_counted_from_two() -> None:
    branch = object_of({"x": {"type": "string"}})
    found, _ = type_of({"oneOf": [branch, {**branch, "title": "b"}, {**branch, "title": "c"}]})
    assert found == "XArgs | XArgs2 | XArgs3"
    tools = [make_tool(name, parameters=branch) for name in ("a_b", "a-b", "AB")]
    assert "class ABArgs3(TypedDict):" in source(*tools)


def test_the_base_of_a_class_name_is_capped() -> None:
    text = source(make_tool("x" * 500, parameters=object_of({"a": {"type": "string"}})))
    (name,) = {n.name for n in ast.parse(text).body if isinstance(n, ast.ClassDef)} - {
        "ToolCallError",
        "Tools",
    }
    assert len(name) == 120


def test_lists_are_nested_180_deep_at_most() -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(300):
        schema = {"type": "array", "items": schema}
    found = type_of(schema)[0]
    assert found.count("list[") == 179
    assert "Any" in found
    source(make_tool("deep", parameters=object_of({"a": schema}), schema=schema))


@pytest.mark.parametrize("kind", ["object", "array", "oneOf"])
def test_a_schema_of_ten_thousand_levels_is_declared(kind: str) -> None:
    schema: dict[str, Any] = {}
    for _ in range(10_000):
        if kind == "object":
            schema = object_of({"a": schema})
        elif kind == "array":
            schema = {"type": "array", "items": schema}
        else:
            schema = {"oneOf": [{"type": "string"}, schema]}
    source(make_tool("deep", parameters=object_of({"a": schema})))


@pytest.mark.parametrize(
    "name", ["a-b", "class", "_hidden", "__dunder__", "match", "ﬁne", "1st", 'q"\\']
)
def test_a_tool_that_no_method_can_be_named_after_stands_in_a_comment(name: str) -> None:
    text = source(make_tool(name), make_tool("plain"))
    (line,) = [line for line in text.splitlines() if line.startswith("# tools[")]
    subscript = line.removeprefix("# tools[").partition("](args: ")[0]
    assert ast.literal_eval(subscript) == name
    assert "async def plain(self" in text


def test_comments_come_in_the_order_of_names() -> None:
    text = source(*[make_tool(name) for name in ("z-z", "a-a", "m-m")])
    lines = [line[9:12] for line in text.splitlines() if line.startswith("# tools[")]
    assert lines == ["a-a", "m-m", "z-z"]


def test_without_tools_there_is_an_empty_protocol() -> None:
    assert "class Tools(Protocol):\n    pass" in source()


def test_run_code_is_not_declared() -> None:
    assert "run_code" not in source(make_tool("run_code"), make_tool("a"))


@pytest.mark.parametrize(
    "description",
    ['ends with a quote"', '"""', "back\\slash", "\\", "nul\0bell\a", "\ud800", "tab\tcr\rlf\nend",
     "{{variable}}", "{{{", "line\u2028sep", ""],
)  # fmt: skip
def test_descriptions_survive_as_docstrings(description: str) -> None:
    text = source(
        make_tool("a", description=description),
        make_tool("b-b", description=description),
        make_tool("c", parameters=object_of({"x": {"type": "string", "description": description}})),
    )
    interpolate(text, {}, part="sdk")
    (tools,) = [
        n for n in ast.parse(text).body if isinstance(n, ast.ClassDef) and n.name == "Tools"
    ]
    method = tools.body[0]
    assert isinstance(method, ast.AsyncFunctionDef)
    found = ast.get_docstring(method, clean=False) or ""
    assert found.split() == description.strip().split()


def test_the_text_is_the_same_for_the_same_tools_in_any_order() -> None:
    names = ["b", "a", "c-c", "class", "A", "aB"]
    tools = [make_tool(name, parameters=object_of({"x": {"type": "string"}})) for name in names]
    first = render(tools)
    for seed in range(5):
        random.Random(seed).shuffle(tools)
        assert render(tools) == first


SCHEMAS = st.recursive(
    st.sampled_from(
        [
            {},
            {"type": "string"},
            {"type": "number"},
            {"type": "null"},
            {"type": "odd"},
            {"$ref": "#"},
        ]
    )
    | st.builds(lambda values: {"enum": values}, st.lists(st.text() | st.integers() | st.none()))
    | st.builds(lambda text: {"type": "string", "description": text}, st.text()),
    lambda inner: (
        st.builds(lambda items: {"type": "array", "items": items}, inner)
        | st.builds(lambda branches: {"oneOf": branches}, st.lists(inner, max_size=4))
        | st.builds(
            lambda members, closed, required: {
                "type": "object",
                "properties": members,
                "additionalProperties": not closed,
                "required": required,
            },
            st.dictionaries(st.text(max_size=8) | st.sampled_from(["a", "b", "class"]), inner),
            st.booleans(),
            st.lists(st.sampled_from(["a", "b"])),
        )
    ),
    max_leaves=12,
)
TOOLS = st.lists(
    st.tuples(st.text(min_size=1, max_size=12), st.text(max_size=30), SCHEMAS, SCHEMAS),
    max_size=3,
    unique_by=lambda tool: tool[0],
)


@settings(max_examples=40, deadline=None)
@given(TOOLS)
def test_any_tools_are_declared_in_python_that_parses(tools: Any) -> None:
    made = [
        make_tool(name, description=text, parameters=parameters, schema=output)
        for name, text, parameters, output in tools
    ]
    text = source(*made)
    assert source(*reversed(made)) == text
    interpolate(text, {}, part="sdk")


@pytest.mark.parametrize(
    "words",
    ["`code`", "`description`", "ToolCallError", "toolName", "asyncio.gather", "in the order",
     "lossless JSON", "attached afterwards", "static stubs", "dict literals"],
)  # fmt: skip
def test_the_instructions_say_what_a_program_may_do(words: str) -> None:
    assert words in INSTRUCTIONS
    interpolate(INSTRUCTIONS, {}, part="sdk")
