"""Rows put into a text: what reads back is right, and what did not change is as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsh.loader.config_file import parse_rows
from dsh.loader.dump import dump_rows
from dsh.loader.expr import Expr, detach
from dsh.loader.render import edit_rows
from dsh.loader.rows import Row

PATH = Path("/somewhere/a.yml")
TEXT = """\
# the file

# about a
- id: a   # first
  name: m
  config:  # settings
    deep: [1, 2]
    text: |
      two
      lines
  # about disabled
  disabled: false

# about g
- id: g
  name: cordis:group
  group: true
  config:
    # about x
    - id: x
      name: m   # a plugin

    # about y
    - {id: y, name: m}
# the end
"""


def edit(text: str, change: Any, path: Path = PATH) -> str:
    before = parse_rows(text, path)
    after = detach(before)
    change(after)
    edited = edit_rows(text, before, after, set(), path)
    assert parse_rows(edited, path) == after
    return edited


def test_one_field_changes_one_line() -> None:
    def change(rows: list[Row]) -> None:
        rows[0]["disabled"] = Expr("ctx.x")
        rows[1]["config"][0]["name"] = "n"

    expected = TEXT.replace("disabled: false", "disabled: !!js ctx.x")
    assert edit(TEXT, change) == expected.replace("name: m   # a plugin", "name: n   # a plugin")


def test_a_value_of_several_lines_goes_as_a_whole() -> None:
    def change(rows: list[Row]) -> None:
        rows[0]["config"] = {"deep": [1, 2], "text": "one line"}

    assert "  config:\n    deep:\n      - 1\n      - 2\n    text: one line\n  # about" in edit(
        TEXT, change
    )


def test_new_fields_stand_before_the_config() -> None:
    def change(rows: list[Row]) -> None:
        rows[0] |= {"intercept": {"a": {}}, "inject": ["b"]}
        rows[1]["config"][0]["config"] = 5

    edited = edit(TEXT, change)
    assert "  name: m\n  inject:\n    - b\n  intercept:\n    a: {}\n  config:" in edited
    assert "      name: m   # a plugin\n      config: 5\n" in edited


def test_rows_go_with_the_comments_above_them() -> None:
    def change(rows: list[Row]) -> None:
        inner = rows[1]["config"]
        inner.reverse()
        inner.insert(1, {"id": "z", "name": "m"})
        del rows[0]

    assert (
        edit(TEXT, change)
        == """\
# the file

# about g
- id: g
  name: cordis:group
  group: true
  config:

    # about y
    - {id: y, name: m}
    - id: z
      name: m
    # about x
    - id: x
      name: m   # a plugin
# the end
"""
    )


@pytest.mark.parametrize(
    "text",
    [
        "[{id: a, name: m}]\n",
        "- &one {id: a, name: m}\n- {id: b, name: m, config: *two}\n".replace("*two", "1"),
        "-\n  id: a\n  name: m\n",
        "- id: a\n  name: m",
        '- "id": a\n  ? name\n  : m\n',
        "- id: a\r\n  name: m\r\n",
        "---\n- id: a\n  name: m\n...\n",
    ],
)
def test_any_layout_reads_back(text: str) -> None:
    def change(rows: list[Row]) -> None:
        rows[0]["config"] = {"x": Expr("1 + 1")}
        rows.append({"id": "new", "name": "m"})

    edit(text, change)
    edit(text, lambda rows: rows[0].update(name="n"))
    edit(text, lambda rows: rows.clear())


values = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.text(max_size=8), st.just(Expr("a ?? b"))
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)
fields = st.fixed_dictionaries(
    {"name": st.sampled_from(["m", "./x.py"])},
    optional={"config": values, "disabled": st.booleans(), "inject": st.just(["a"])},
)


@st.composite
def trees(draw: st.DrawFn) -> list[Row]:
    ids = iter(draw(st.permutations([f"r{n}" for n in range(6)])))
    rows: list[Row] = [{"id": next(ids), **draw(fields)} for _ in range(draw(st.integers(1, 3)))]
    inner = [{"id": next(ids), **draw(fields)} for _ in range(draw(st.integers(0, 2)))]
    group = {"id": "g", "name": "cordis:group", "group": True, "config": inner}
    return draw(st.permutations([*rows, group]))


@given(trees(), trees())
def test_whatever_changes_the_text_reads_as_the_rows(before: list[Row], after: list[Row]) -> None:
    text = "# top\n" + dump_rows(before)
    edited = edit_rows(text, parse_rows(text, PATH), after, set(), PATH)
    assert parse_rows(edited, PATH) == after
