from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsh.execution.prompt.service import (
    SNAPSHOT_HEADER,
    PromptAssembly,
    PromptPart,
    UnknownVariable,
    interpolate,
    join_context_sections,
    render_context_sections,
    render_context_snapshot,
    render_prompt,
)

VARIABLES = {"name": "dsh", "none": None, "braces": "{{name}} }}"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("{{name}}", "dsh"),
        ("a {{name}}b{{name}}", "a dshbdsh"),
        ("{{braces}}", "{{name}} }}"),
        ("lone {{ stays", "lone {{ stays"),
        ("}} {{", "}} {{"),
        ("{{name}} and {{ open", "dsh and {{ open"),
        ("{name}", "{name}"),
    ],
)
def test_variables_are_filled_in_once(text: str, expected: str) -> None:
    assert interpolate(text, VARIABLES, part="p") == expected


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{{nope}}", "unknown variable 'nope'"),
        ("{{none}}", "'none', which has no value"),
        ("{{ name }}", "malformed variable"),
        ("{{}}", "malformed variable"),
        ("{{{name}}}", "malformed variable"),
        ("{{ lone\n then }}", "malformed variable"),
        ("{{constructor}}", "unknown variable 'constructor'"),
        ("{{__class__}}", "malformed variable"),
        ("{{keys}}", "unknown variable 'keys'"),
    ],
)
def test_a_bad_reference_names_the_part_and_the_known_variables(text: str, problem: str) -> None:
    with pytest.raises(UnknownVariable, match=problem) as caught:
        interpolate(text, VARIABLES, part="persona")
    assert "'persona'" in caught.value.message
    assert "known variables: braces, name, none" in caught.value.message


@given(st.text(alphabet="{} an\n"))
def test_interpolation_is_total(text: str) -> None:
    try:
        filled = interpolate(text, {"a": "{{n}}"}, part="p")
    except UnknownVariable:
        assert "}}" in text
    else:
        assert "{{" in filled or "{{" not in text


def test_empty_sections_are_dropped_and_the_rest_is_joined_by_blank_lines() -> None:
    parts = [PromptPart("a", "one"), PromptPart("b", " \n"), PromptPart("c", "{{name}}")]
    assembly = PromptAssembly(sections=parts, variables=dict(VARIABLES))
    assert render_prompt(assembly) == "one\n\ndsh"
    assert render_prompt(PromptAssembly()) == ""


def test_a_snapshot_says_that_it_replaces_earlier_ones() -> None:
    assembly = PromptAssembly(
        contexts=[PromptPart("a", "{{name}}"), PromptPart("b", ""), PromptPart("c", "x")],
        variables=dict(VARIABLES),
    )
    assert render_context_snapshot(assembly) == f"{SNAPSHOT_HEADER}\n\ndsh\n\nx"
    assert [part.name for part in render_context_sections(assembly)] == ["a", "c"]
    assert join_context_sections([]) == ""
