"""Evaluate expressions against a scope: a small interpreter, never Python's own ``eval``."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from typing import Any, Final

from dsh.base.values import value
from dsh.loader import expr_ast as ast
from dsh.loader.errors import ExprError
from dsh.loader.expr import Expr
from dsh.loader.expr_builtins import BUILTINS, make_url
from dsh.loader.expr_members import read_member, reading
from dsh.loader.expr_parser import parse
from dsh.loader.expr_values import (
    MAX_STRING,
    UNDEFINED,
    Function,
    Namespace,
    ValueProblem,
    bounded,
    check_public,
    is_nullish,
    kind_of,
    loosely_equal,
    metered,
    plain,
    spend,
    strictly_equal,
    to_number,
    to_string,
    truthy,
)

PLATFORM: Final = {"win32": "win32", "darwin": "darwin"}.get(sys.platform, "linux")
"""``process.platform``, in the spelling that configurations compare with."""


@value
class ExprScope:
    """What an expression can see besides the language's own names."""

    variable: Callable[[str], str | None]
    """An environment variable, or None."""
    home_path: Callable[..., str]
    """Joins segments to the home folder."""
    service: Callable[[str], object]
    """A service by the name the expression used; raises when it cannot be read."""
    find: Callable[[str], object | None]
    """A service by name, or None."""
    base_url: str | None = None
    """What relative names of the tree resolve against."""
    cwd: Callable[[], str] = os.getcwd
    """The working folder."""


def evaluate(expr: Expr, scope: ExprScope) -> Any:
    """Return the value of one expression as configuration data, or `UNDEFINED`.

    Raises:
        ExprError: it does not parse or evaluate; has the column, never a value it read.
    """
    return _run(expr, scope, plain)


def is_true(expr: Expr, scope: ExprScope) -> bool:
    """Return whether an expression's value is true in JavaScript's sense.

    Raises:
        ExprError: as `evaluate`.
    """
    return bool(_run(expr, scope, truthy))


def _run(expr: Expr, scope: ExprScope, finish: Callable[[Any], Any]) -> Any:
    try:
        tree = parse(expr.source)
        with metered():
            return finish(_Evaluation(expr.source, scope).value(tree))
    except ValueProblem as problem:
        raise ExprError(str(problem), expr.source, 1) from problem
    except ExprError:
        raise
    except RecursionError as error:
        raise ExprError("the expression is nested too deeply", expr.source, 1) from error
    except Exception as error:
        # Data of the host may fail at anything, even at being asked for its class.
        said = f"the value cannot be used: {type(error).__name__}"
        raise ExprError(said, expr.source, 1) from None


class _Evaluation:
    """One run of one expression: its depth is bounded by the parser, its work by a budget."""

    __slots__ = ("_scope", "_source")

    def __init__(self, source: str, scope: ExprScope) -> None:
        self._source = source
        self._scope = scope

    def value(self, node: Any) -> Any:
        try:
            spend(1)
            return _STEPS[type(node)](self, node)
        except ExprError:
            raise
        except ValueProblem as problem:
            raise ExprError(str(problem), self._source, node.at + 1) from problem
        except RecursionError:
            raise
        except Exception as error:
            said = f"a value cannot be used: {type(error).__name__}"
            raise ExprError(said, self._source, node.at + 1) from None

    def literal(self, node: ast.Literal) -> Any:
        return node.value

    def name(self, node: ast.Name) -> Any:
        name = check_public(node.name)
        if name in BUILTINS:
            return BUILTINS[name]
        if (own := _SCOPED.get(name)) is not None:
            return own(self._scope)
        return _service(self._scope, name)

    def chain(self, node: ast.Chain) -> Any:
        current = self.value(node.base)
        for link in node.links:
            if link.optional and is_nullish(current):
                return UNDEFINED
            try:
                current = self._step(current, link)
            except ValueProblem as problem:
                raise ExprError(str(problem), self._source, link.at + 1) from problem
        return current

    def _step(self, current: Any, link: ast.Link) -> Any:
        if link.kind == "member":
            return read_member(current, link.value)
        if link.kind == "index":
            return self._index(current, link.value)
        if not isinstance(current, Function):
            raise ValueProblem("this is not a function that expressions may call")
        arguments = [self.value(item) for item in link.value]
        try:
            result = current.call(*arguments)
        except ValueProblem:
            raise
        except TypeError as error:
            raise ValueProblem(f"{current.name}() got unusable arguments") from error
        except Exception as error:
            raise ValueProblem(f"{current.name}() failed: {type(error).__name__}") from None
        return bounded(result)

    def _index(self, current: Any, key: Any) -> Any:
        try:
            return read_member(current, self.value(key))
        except ValueProblem as problem:
            raise (problem if isinstance(key, ast.Literal) else problem.masked()) from None

    def new(self, node: ast.New) -> Any:
        if node.name != "URL":
            raise ValueProblem("new {} is not supported; only new URL(...) is", node.name)
        return make_url(*[self.value(item) for item in node.arguments])

    def unary(self, node: ast.Unary) -> Any:
        operand = self.value(node.operand)
        if node.operator == "!":
            return not truthy(operand)
        number = to_number(operand)
        return -number if node.operator == "-" else number

    def fold(self, node: ast.Fold) -> Any:
        current = self.value(node.first)
        for operator, operand, at in node.rest:
            if (short := _SHORT.get(operator)) is not None:
                current = self.value(operand) if short(current) else current
                continue
            right = self.value(operand)
            try:
                current = _OPERATORS[operator](current, right)
            except ValueProblem as problem:
                raise ExprError(str(problem), self._source, at + 1) from problem
        return current

    def conditional(self, node: ast.Conditional) -> Any:
        return self.value(node.then if truthy(self.value(node.test)) else node.otherwise)

    def array(self, node: ast.Array) -> Any:
        return [self.value(item) for item in node.items]

    def object(self, node: ast.Object) -> Any:
        return {self._key(key): self.value(item) for key, item in node.items}

    def _key(self, node: Any) -> str:
        name = to_string(self.value(node))
        if name.startswith("_"):
            raise ValueProblem("a key that begins with _ is private")
        return name

    def template(self, node: ast.Template) -> Any:
        parts: list[str] = []
        length = 0
        for part in node.parts:
            text = to_string(self.value(part))
            length += len(text)
            if length > MAX_STRING:
                raise ValueProblem(f"the text is longer than {MAX_STRING} characters")
            parts.append(text)
        spend(length)
        return "".join(parts)


_STEPS: Final[dict[type, Callable[[_Evaluation, Any], Any]]] = {
    ast.Literal: _Evaluation.literal,
    ast.Name: _Evaluation.name,
    ast.Chain: _Evaluation.chain,
    ast.New: _Evaluation.new,
    ast.Unary: _Evaluation.unary,
    ast.Fold: _Evaluation.fold,
    ast.Conditional: _Evaluation.conditional,
    ast.Array: _Evaluation.array,
    ast.Object: _Evaluation.object,
    ast.Template: _Evaluation.template,
}
_SHORT: Final[dict[str, Callable[[Any], bool]]] = {
    "??": is_nullish,
    "&&": truthy,
    "||": lambda value: not truthy(value),
}


def _add(left: Any, right: Any) -> Any:
    if "string" in {kind_of(left), kind_of(right)}:
        return _concatenated(to_string(left), to_string(right))
    if "object" in {kind_of(left), kind_of(right)}:
        raise ValueProblem("+ takes numbers and texts")
    return _number(to_number(left) + to_number(right))


def _concatenated(left: str, right: str) -> str:
    if len(left) + len(right) > MAX_STRING:
        raise ValueProblem(f"the text is longer than {MAX_STRING} characters")
    spend(len(left) + len(right))
    return left + right


def _divide(left: Any, right: Any) -> Any:
    over, under = to_number(left), to_number(right)
    if under == 0:
        return math.nan if over == 0 or math.isnan(over) else math.copysign(math.inf, over)
    return _number(over / under)


def _remainder(left: Any, right: Any) -> Any:
    over, under = to_number(left), to_number(right)
    if under == 0 or math.isinf(over):
        return math.nan
    return _number(math.fmod(over, under))


def _number(value: float) -> int | float:
    return to_number(value)


def _ordered(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def ordered(left: Any, right: Any) -> bool:
        if isinstance(left, str) and isinstance(right, str):
            return compare(left, right)
        if "object" in {kind_of(left), kind_of(right)}:
            raise ValueProblem("objects have no order")
        return compare(to_number(left), to_number(right))

    return ordered


_OPERATORS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "===": strictly_equal,
    "!==": lambda left, right: not strictly_equal(left, right),
    "==": loosely_equal,
    "!=": lambda left, right: not loosely_equal(left, right),
    "<": _ordered(lambda left, right: left < right),
    ">": _ordered(lambda left, right: left > right),
    "<=": _ordered(lambda left, right: left <= right),
    ">=": _ordered(lambda left, right: left >= right),
    "+": _add,
    "-": lambda left, right: _number(to_number(left) - to_number(right)),
    "*": lambda left, right: _number(to_number(left) * to_number(right)),
    "/": _divide,
    "%": _remainder,
}


def _service(scope: ExprScope, name: str) -> Any:
    try:
        return scope.service(name)
    except Exception:
        problem = "{} cannot be read here; if it is a service, add it to the row's inject"
        raise ValueProblem(problem, name) from None


def _process(scope: ExprScope) -> Namespace:
    from dsh.loader.expr_builtins import builtin_module, version

    members = {
        "cwd": lambda: Function("process.cwd", scope.cwd),
        "env": lambda: Namespace("process.env", lambda key: _variable(scope, key)),
        "execPath": lambda: sys.executable,
        "getBuiltinModule": lambda: Function("process.getBuiltinModule", builtin_module),
        "platform": lambda: PLATFORM,
        "version": version,
    }
    return Namespace("process", lambda key: members[key]() if key in members else UNDEFINED)


def _context(scope: ExprScope) -> Namespace:
    def read(key: str) -> Any:
        if key == "get":
            return Function("ctx.get", lambda name: _found(scope, name))
        if key in {"baseUrl", "dshHomePath"}:
            return _SCOPED[key](scope)
        return _service(scope, key)

    return Namespace("ctx", read)


def _home(scope: ExprScope) -> Function:
    def join(*segments: Any) -> str:
        if any(not isinstance(segment, str) for segment in segments):
            raise ValueProblem("dshHomePath() takes texts")
        return scope.home_path(*segments)

    return Function("dshHomePath", join)


def _variable(scope: ExprScope, name: str) -> Any:
    return _present(reading(name, lambda: scope.variable(name)))


def _found(scope: ExprScope, name: Any) -> Any:
    if not isinstance(name, str):
        raise ValueProblem("ctx.get() takes the name of a service")
    try:
        return _present(reading(check_public(name), lambda: scope.find(name)))
    except ValueProblem as problem:
        raise problem.masked() from None


def _present(value: Any) -> Any:
    return UNDEFINED if value is None else value


_SCOPED: Final[dict[str, Callable[[ExprScope], Any]]] = {
    "baseUrl": lambda scope: scope.base_url,
    "ctx": _context,
    "dshHomePath": _home,
    "process": _process,
}
