"""What the page on expressions says holds: its figures, its names and its error."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dsh.loader import expr_builtins, expr_eval, expr_lexer, expr_members, expr_parser, expr_values
from dsh.loader.errors import ExprError
from dsh.loader.expr import Expr
from dsh.loader.expr_eval import ExprScope
from dsh.loader.fields import evaluate_field
from dsh.loader.yaml import load_yaml

PAGE = (Path(__file__).parents[2] / "docs" / "expressions.md").read_text()


@pytest.mark.parametrize(
    "figure",
    [
        f"{expr_lexer.MAX_SOURCE:,} characters",
        f"nesting of an expression | {expr_parser.MAX_DEPTH} |",
        f"{expr_values.MAX_STRING:,} characters",
        f"{expr_values.MAX_ITEMS:,} items",
        f"nesting of a value | {expr_values.MAX_NESTED} |",
        f"characters | {expr_values.MAX_WORK:,} |",
    ],
)
def test_the_limits_are_those_of_the_code(figure: str) -> None:
    assert figure in PAGE


def test_every_name_of_the_language_is_on_the_page() -> None:
    names = [
        *expr_builtins.BUILTINS,
        *expr_eval._SCOPED,
        *expr_members._STRING_METHODS,
        *expr_members._ARRAY_METHODS,
        *expr_parser._LITERALS,
    ]
    assert [name for name in names if not re.search(rf"\b{name}\b", PAGE)] == []
    operators = [*expr_eval._OPERATORS, *expr_eval._SHORT]
    assert [mark for mark in operators if mark.replace("||", r"\|\|") not in PAGE] == []


def test_the_example_is_configuration() -> None:
    example = re.search(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert example is not None
    (row,) = load_yaml(example[1], "page")
    assert row["disabled"] == Expr("!!process.env.NO_WEB")


def test_the_error_is_as_shown() -> None:
    scope = ExprScope(
        variable=lambda _: None,
        home_path=str,
        service=lambda _: {"port": 1},
        find=lambda _: None,
    )
    config = {"port": Expr("ctx.webStartup.prot.x")}
    with pytest.raises(ExprError) as caught:
        evaluate_field(config, scope, "webserver")
    assert f"```\n{caught.value}\n```" in PAGE
