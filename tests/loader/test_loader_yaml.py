from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsh.loader.dump import dump_rows, dump_yaml
from dsh.loader.errors import ConfigFileError
from dsh.loader.expr import Expr
from dsh.loader.yaml import load_yaml, read_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("yes", "yes"),
        ("on", "on"),
        ("2024-01-01", "2024-01-01"),
        ("12:30", "12:30"),
        ("010", 10),
        ("0o10", 8),
        ("0x1F", 31),
        ("60_000", 60000),
        ("-1.5e3", -1500.0),
        ("1.", 1.0),
        (".inf", float("inf")),
        ("true", True),
        ("TRUE", True),
        ("tRue", "tRue"),
        ("~", None),
        ("null", None),
        ("", None),
        ("# only a comment", None),
        ("a:", {"a": None}),
        ("1: x", {"1": "x"}),
        ("<<: {a: 1}", {"<<": {"a": 1}}),
        ("= ", "="),
        ("'1'", "1"),
        ("!!str 1", "1"),
        ("!!js ctx.a ?? 1", Expr("ctx.a ?? 1")),
        ("a: !!js 'x: y'", {"a": Expr("x: y")}),
        ("\ufeffa: 1", {"a": 1}),
    ],
)
def test_scalars_have_json_types(text: str, value: Any) -> None:
    got = load_yaml(text, "f.yml")
    assert got == value
    assert type(got) is type(value)


def test_aliases_are_copied() -> None:
    first, second = load_yaml("- &a [1]\n- *a\n", "f.yml")
    first.append(2)
    assert second == [1]


@pytest.mark.parametrize(
    ("text", "line", "column", "problem"),
    [
        ("a: 1\nb: [\n", 3, 1, ""),
        ("a: 1\na: 2\n", 2, 1, "duplicate key 'a'"),
        ("- !!js ''\n", 1, 3, "!!js needs an expression"),
        ("x: !!js\n", 1, 4, "!!js needs an expression"),
        ("!!python/object:os.system {}", 1, 1, "unknown tag"),
        ("? [1]\n: 2\n", 1, 3, "a key must be a plain text"),
        ("a: !!int x\n", 1, 4, "does not fit its tag"),
        ("a: b: c\n", 1, 5, ""),
    ],
)
def test_errors_have_file_line_and_column(text: str, line: int, column: int, problem: str) -> None:
    with pytest.raises(ConfigFileError) as caught:
        load_yaml(text, "dir/f.yml", what="patches")
    error = caught.value
    assert (error.stage, error.line, error.column) == ("parse", line, column)
    assert str(error).startswith(f"failed to parse patches dir/f.yml:{line}:{column}: ")
    assert problem in str(error)


def test_a_document_that_explodes_is_refused() -> None:
    bomb = "a: &a [1,1,1,1,1,1,1,1,1]\n" + "".join(
        f"{name}: &{name} [{','.join(['*' + before] * 9)}]\n"
        for before, name in zip("abcdefg", "bcdefgh", strict=True)
    )
    with pytest.raises(ConfigFileError, match="too deep or too large"):
        load_yaml(bomb, "f.yml")
    with pytest.raises(ConfigFileError):
        load_yaml("&a [*a]", "f.yml")
    with pytest.raises(ConfigFileError):
        load_yaml("[" * 300 + "]" * 300, "f.yml")


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigFileError, match=r"failed to read patches .*: is a directory"):
        read_yaml(tmp_path, what="patches")
    (tmp_path / "latin.yml").write_bytes(b"a: \xe9")
    with pytest.raises(ConfigFileError, match="byte 3 is not UTF-8"):
        read_yaml(tmp_path / "latin.yml")


AWKWARD = "yes|null|1|1_0|0x1|a: b|- a|x #|!!js|'|&a|*a|---|...|%a|@a|`a|=|<<|?|? a|-|a:|~|>|.5|1e3"
BREAKS = [
    "a\nb\n",
    "a\n\n b\n",
    "\n",
    "a\tb",
    " a\n b",
    "a\n\n",
    "\x85",
    "\ufeff",
    "a\r\nb",
    "a \nb",
]
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.sampled_from(
    [*AWKWARD.split("|"), *BREAKS]
)
LEAVES = (
    TEXTS
    | st.booleans()
    | st.none()
    | st.integers()
    | st.floats(allow_nan=False)
    | TEXTS.filter(lambda text: bool(text.strip())).map(Expr)
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=15,
)


@settings(max_examples=400, deadline=None)
@given(VALUES)
def test_a_dump_reads_back_to_the_same_value(value: Any) -> None:
    assert load_yaml(dump_yaml(value), "dump") == value


def test_a_dump_shows_fields_in_order_and_expressions_verbatim() -> None:
    rows = [
        {"config": {"port": Expr("ctx.a?.b ?? 3080")}, "name": "x", "disabled": False, "id": "a"},
        {"id": "g", "name": "cordis:group", "group": True, "config": [{"name": "n", "id": "i"}]},
        {"id": "t", "name": "x", "config": {"when": Expr("a ? 'b' : c"), "text": "one\ntwo\n"}},
    ]
    assert dump_rows(rows, ["base", "base", "file"]) == (
        "# == base\n"
        "- id: a\n"
        "  name: x\n"
        "  disabled: false\n"
        "  config:\n"
        "    port: !!js ctx.a?.b ?? 3080\n"
        "- id: g\n"
        "  name: cordis:group\n"
        "  group: true\n"
        "  config:\n"
        "    - id: i\n"
        "      name: n\n"
        "\n"
        "# == file\n"
        "- id: t\n"
        "  name: x\n"
        "  config:\n"
        "    when: !!js a ? 'b' : c\n"
        "    text: |\n"
        "      one\n"
        "      two\n"
    ).replace("!!js a ? 'b' : c", "!!js 'a ? ''b'' : c'")


def test_an_empty_tree_dumps_as_an_empty_list() -> None:
    assert dump_rows([]) == "[]\n"
