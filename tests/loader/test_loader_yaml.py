from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from dsh.loader import yaml as dialect
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
        ("a: 1\n---\nb: 2\n", 2, 1, "more than one document; keep one"),
        ("a:\n\tb: 1\n", 2, 1, "a tab cannot indent; use blanks"),
        ("a: @b\n", 1, 4, "a value cannot begin with '@'; put the text in quotes"),
        ("a: *x\n", 1, 4, "no anchor of this name"),
        ("a: &x 1\nb: &x 2\n", 2, 4, "this anchor is there twice"),
        ("a: 1\nb: \x07c\n", 2, 4, "U+0007 is not allowed"),
        ("\x00", 1, 1, "U+0000 is not allowed"),
        ("1: a\n'1': b\n", 2, 1, "duplicate key '1'"),
        ("a: {b: 1, b: 2}\n", 1, 11, "duplicate key 'b'"),
        ("a: !!binary eA==\n", 1, 4, "unknown tag"),
        ("a: !mine x\n", 1, 4, "unknown tag '!mine'"),
        ("a: !!py x\n", 1, 4, "unknown tag"),
        ("- !!js {a: 1}\n", 1, 3, "!!js takes a text; quote the expression"),
        ("? !!js x\n: 1\n", 1, 3, "a key must be a plain text"),
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


def test_a_pipe_is_refused_at_once_unless_it_was_named_as_one(tmp_path: Path) -> None:
    pipe = tmp_path / "patch.yml"
    os.mkfifo(pipe)
    with pytest.raises(ConfigFileError, match=r"patch\.yml: is a pipe, not a file"):
        read_yaml(pipe)

    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(read_yaml, pipe, pipe=True)
        pipe.write_text("- 1\n")
        assert found.result() == [1]


@contextmanager
def portable_parser() -> Iterator[None]:
    """Parse as where libyaml is not installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(yaml, "__with_libyaml__", False)
        patch.setattr(dialect, "_loader_class", None)
        yield


@pytest.mark.parametrize(
    ("text", "line", "column", "problem"),
    [
        ("a: 1\nb: \x07c\n", 2, 4, "U+0007 is not allowed"),
        ("a: *x\n", 1, 4, "no anchor of this name"),
        ("a: 1\n---\nb: 2\n", 2, 1, "more than one document; keep one"),
        ("a:\n\tb: 1\n", 2, 1, "a tab cannot indent; use blanks"),
        ("a: 1\na: 2\n", 2, 1, "duplicate key 'a'"),
    ],
)
def test_without_libyaml_the_errors_are_the_same(
    text: str, line: int, column: int, problem: str
) -> None:
    with portable_parser(), pytest.raises(ConfigFileError) as caught:
        load_yaml(text, "f.yml")
    assert (caught.value.line, caught.value.column) == (line, column)
    assert problem in str(caught.value)


def test_without_libyaml_documents_are_bounded_too() -> None:
    with portable_parser():
        assert load_yaml("- &a [1]\n- *a\n- !!js x\n- yes\n", "f") == [[1], [1], Expr("x"), "yes"]
        for count in (200, 5_000):
            with pytest.raises(ConfigFileError, match="deep"):
                load_yaml("[" * count + "]" * count, "f.yml")


def test_a_lone_surrogate_is_refused() -> None:
    with pytest.raises(ConfigFileError):
        load_yaml("a: \ud800", "f.yml")


def test_bytes_that_are_not_utf8_are_placed(tmp_path: Path) -> None:
    path = tmp_path / "f.yml"
    path.write_bytes("a: 1\nb: ä".encode() + b"\xff")
    with pytest.raises(ConfigFileError, match="save the file as UTF-8") as caught:
        read_yaml(path)
    assert (caught.value.line, caught.value.column) == (2, 5)
    path.write_bytes("a: 1".encode("utf-16"))
    with pytest.raises(ConfigFileError, match=r"f\.yml:1:1: the file is UTF-16; save it as UTF-8"):
        read_yaml(path)


def test_a_merge_key_is_a_key_like_any_other() -> None:
    assert load_yaml("x: &x {a: 1}\ny: {<<: *x, b: 2}\n", "f.yml")["y"] == {"<<": {"a": 1}, "b": 2}


@pytest.mark.parametrize("opener", ["[", "{a: ", "- ", "? ", "!!js [", "&a ["])
def test_nesting_without_end_is_refused(opener: str) -> None:
    for count in (200, 5_000, 200_000):
        with pytest.raises(ConfigFileError):
            load_yaml(opener * count, "f.yml")


@settings(max_examples=300, deadline=None)
@given(
    st.text(max_size=80)
    | st.lists(st.sampled_from(list("[]{}:-?!&*|>'\"%@`#,\n\t ab1"))).map("".join)
)
def test_no_text_makes_another_error(text: str) -> None:
    try:
        load_yaml(text, "f.yml")
    except ConfigFileError as error:
        place = (error.line, error.column)
    else:
        place = (1, 1)
    assert all(place)


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
