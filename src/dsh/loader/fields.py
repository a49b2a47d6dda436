"""Evaluate the expressions in a row's fields, and say where one fails."""

from __future__ import annotations

from typing import Any

from dsh.loader.errors import ExprError
from dsh.loader.expr import Expr, holds_expr
from dsh.loader.expr_eval import ExprScope, evaluate, is_true
from dsh.loader.expr_values import UNDEFINED


def evaluate_field(value: Any, scope: ExprScope, row: str, field: str = "config") -> Any:
    """Return a field's value with its expressions evaluated.

    A key whose value is ``undefined`` is absent; the whole field being so is None. A value
    without expressions is returned as it is.

    Raises:
        ExprError: an expression fails; names the row, the field, the expression and the column.
    """
    if not holds_expr(value):
        return value
    result = _evaluate(value, scope, row, field)
    return None if result is UNDEFINED else result


def evaluate_flag(expr: Expr, scope: ExprScope, row: str, field: str) -> bool:
    """Return whether an expression is true.

    Raises:
        ExprError: as `evaluate_field`.
    """
    try:
        return is_true(expr, scope)
    except ExprError as error:
        raise error.inside(row, field) from None


def _evaluate(value: Any, scope: ExprScope, row: str, field: str) -> Any:
    if isinstance(value, Expr):
        try:
            return evaluate(value, scope)
        except ExprError as error:
            raise error.inside(row, field) from None
    if isinstance(value, dict):
        items = (
            (key, _evaluate(each, scope, row, f"{field}.{key}")) for key, each in value.items()
        )
        return {key: each for key, each in items if each is not UNDEFINED}
    if isinstance(value, list):
        parts = [_evaluate(each, scope, row, f"{field}[{n}]") for n, each in enumerate(value)]
        return [None if each is UNDEFINED else each for each in parts]
    return value
