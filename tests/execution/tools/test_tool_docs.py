"""What the page on tools says holds: its plugin runs, its tables are complete."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tool_harness import Harness, text

from dsh.execution.tools import bodies, events, service, views
from dsh.execution.tools.author import define_tool
from dsh.execution.tools.runtime import ToolsConfig
from dsh.kernel import Emit, Waterfall

PAGE = (Path(__file__).parents[3] / "docs" / "tools.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


async def test_the_plugin_of_the_page_is_a_plugin(harness: Harness) -> None:
    page = ModuleType("page")
    exec(BLOCKS[0], vars(page))
    await harness.root.plugin(page)
    result = await harness.call("word_count", {"text": "a b a", "unique": True})
    assert text(result) == "2"
    (schema,) = harness.tools.schemas()
    assert schema["description"] == "Count the words of a text."
    assert schema["parameters"]["properties"]["unique"] == {
        "type": "boolean",
        "description": "Count each word once.",
        "default": False,
    }


def test_the_resources_of_the_page_are_resources() -> None:
    names: dict[str, Any] = {}
    exec(BLOCKS[1], names)
    assert names["touched"](type("Args", (), {"path": "a"})()) == [
        service.Resource("file:a"),
        service.Resource("terminal:1", shared=True),
    ]


def cells(heading: str) -> set[str]:
    """The names in the first column of the table that starts with this heading."""
    table = PAGE[PAGE.index(f"| {heading} |") :].partition("\n\n")[0].splitlines()[2:]
    return {name for row in table for name in re.findall(r"`([^`]+)`", row.split("|")[1])}


def test_every_argument_of_an_author_is_on_the_page() -> None:
    parameters = inspect.signature(define_tool).parameters
    assert cells("argument of `tool`, `define_tool`") == set(parameters) - {"function"}


def test_every_event_is_on_the_page() -> None:
    declared = {
        each.name for each in vars(events).values() if isinstance(each, Emit | Waterfall)
    } | {"tools/code-dispatch-log"}
    assert cells("event") == declared


def test_every_code_is_one_that_calls_have() -> None:
    declared = [*vars(service).values(), *vars(bodies).values()]
    errors = {getattr(each, "code", None) for each in declared}
    errors |= {service.ABORTED, service.ABORTED_BEFORE_DISPATCH, service.TOOL_TIMEOUT}
    assert cells("code") <= errors


def test_every_card_is_on_the_page_with_its_fields() -> None:
    cards = {variant.split()[0] for variant in (*views._CALLS, *views._RESULTS)}
    assert cells("card") == cards
    table = PAGE[PAGE.index("| card |") :].partition("\n\n")[0]
    for schema in (*views._CALLS.values(), *views._RESULTS.values()):
        required: Any = schema["required"]
        for field in schema["properties"]:  # type: ignore[union-attr]
            if field != "card":
                assert f"{field}{'' if field in required else '?'}" in table


@pytest.mark.parametrize("field", ["mode", "maxParallelSubCalls", "graceMs", "strayJoinMs"])
def test_the_fields_of_the_row_are_on_the_page(field: str) -> None:
    fields = {info.alias or name for name, info in ToolsConfig.model_fields.items()}
    assert field in fields
    assert fields == {"mode", "maxParallelSubCalls", "graceMs", "strayJoinMs"}
    assert f"`{field}`" in PAGE
