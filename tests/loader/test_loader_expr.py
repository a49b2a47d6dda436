from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsh.loader.errors import ExprError
from dsh.loader.expr import Expr
from dsh.loader.expr_eval import ExprScope, evaluate, is_true
from dsh.loader.expr_lexer import MAX_SOURCE
from dsh.loader.expr_values import UNDEFINED


@dataclass
class Startup:
    port: int | None = None
    max_items: int = 3
    _secret: str = "hidden"

    def method(self) -> str:
        return "called"


SERVICES: dict[str, Any] = {"webStartup": Startup(), "table": {"a": {"b": 1}, "_x": 2}}
VARIABLES = {"NAME": "value", "PORT": "8080", "EMPTY": ""}


def make_scope() -> ExprScope:
    return ExprScope(
        variable=VARIABLES.get,
        home_path=lambda *parts: "/".join(("/home", *parts)),
        service=lambda name: SERVICES[name],
        find=SERVICES.get,
        base_url="file:///profile/",
        cwd=lambda: "/cwd",
    )


def run(source: str) -> Any:
    return evaluate(Expr(source), make_scope())


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("1 + 2 * 3", 7),
        ("(1 + 2) * 3", 9),
        ("10 - 4 - 3", 3),
        ("10 / 4", 2.5),
        ("8 / 2", 4),
        ("7 % -4", 3),
        ("-7 % 4", -3),
        ("0x1f + 0b1 + 0o7", 39),
        ("1e3", 1000),
        (".5", 0.5),
        ("'a' + 1 + true + null + undefined", "a1truenullundefined"),
        ("'5' * '2'", 10),
        ("+'12'", 12),
        ("-'3'", -3),
        ("!''", True),
        ("![]", False),
        ("!{}", False),
        ("!!NaN", False),
        ("'b' > 'a'", True),
        ("'10' < 9", False),
        ("1 === 1.0", True),
        ("[1] == 1", True),
        ("[] == ''", True),
        ("new URL('file:///a') == 'file:///a'", True),
        ("[2] * 3", 6),
        ("+[]", 0),
        ("'abc'[[1]]", "b"),
        ("String(0.000012)", "0.000012"),
        ("String(-0.00005)", "-0.00005"),
        ("String(1.5e-9)", "1.5e-9"),
        ("JSON.stringify([1e-7, 1e21, -0])", "[1e-7,1e+21,0]"),
        ("JSON.parse('12345678901234567890')", 12345678901234567000.0),
        ("'\\ufeff x \\u00a0'.trim()", "x"),
        ("[NaN].includes(NaN)", True),
        ("`a${/* } */ 1}`", "a1"),
        ("1 === true", False),
        ("1 == true", True),
        ("'1' == 1", True),
        ("null == undefined", True),
        ("null === undefined", False),
        ("null == 0", False),
        ("[] === []", False),
        ("NaN === NaN", False),
        ("1 !== 2", True),
        ("0 || 'x'", "x"),
        ("0 ?? 'x'", 0),
        ("null ?? 'x'", "x"),
        ("1 && 2 || 3", 2),
        ("0 && nope", 0),
        ("1 || nope", 1),
        ("1 ?? nope", 1),
        ("(null ?? 0) || 2", 2),
        ("true ? 1 : nope", 1),
        ("0 ? 1 : '' ? 2 : 3", 3),
        ("[1, 'a', [null],]", [1, "a", [None]]),
        ("({a: 1, 'b-c': 2, [`d${1}`]: 3})", {"a": 1, "b-c": 2, "d1": 3}),
        ("{a: undefined, b: [undefined]}", {"b": [None]}),
        ("[1, 2, 3].length", 3),
        ("'abc'[1]", "b"),
        ("[1][5]", UNDEFINED),
        ("'a,b'.split(',')", ["a", "b"]),
        ("' X '.trim().toLowerCase()", "x"),
        ("[1, 2].includes(2)", True),
        ("['a', 1].join('-')", "a-1"),
        ("`a${1 + 1}b${`c${'}'}`}`", "a2bc}"),
        ("'\\u0041\\x42\\u{43}\\n\\''", "ABC\n'"),
        ("/* why */ 1 // end", 1),
        ("undefined?.a.b.c", UNDEFINED),
        ("null?.[0]", UNDEFINED),
        ("undefined?.()", UNDEFINED),
        ("true?.5:1", 0.5),
        ("Number('0x10')", 16),
        ("Number('')", 0),
        ("Number(null)", 0),
        ("Number()", 0),
        ("String(1.50)", "1.5"),
        ("String([1, [2, null]])", "1,2,"),
        ("String(1e21)", "1e+21"),
        ("String(1e-7)", "1e-7"),
        ("Boolean('0')", True),
        ("Boolean()", False),
        ("JSON.parse('{\"a\": [1.5, 2]}').a", [1.5, 2]),
        ("JSON.stringify({a: undefined, b: [NaN, 'x']})", '{"b":[null,"x"]}'),
        ("JSON.stringify(undefined)", UNDEFINED),
        ("process.env.NAME", "value"),
        ("process.env['NAME']", "value"),
        ("process.env.MISSING", UNDEFINED),
        ("process.env.MISSING ?? 'z'", "z"),
        ("process.env.EMPTY ?? 'z'", ""),
        ("process.env.EMPTY || 'z'", "z"),
        ("Number(process.env.PORT ?? 1)", 8080),
        ("process.cwd()", "/cwd"),
        ("process.execPath", sys.executable),
        ("process.nothing", UNDEFINED),
        ("dshHomePath('sessions', 'a')", "/home/sessions/a"),
        ("ctx.dshHomePath('x')", "/home/x"),
        ("baseUrl", "file:///profile/"),
        ("new URL('../a b', baseUrl).href", "file:///a b"),
        (
            "process.getBuiltinModule('node:url').fileURLToPath(new URL('./x', baseUrl))",
            "/profile/x",
        ),
        ("ctx.webStartup.port ?? 3080", 3080),
        ("webStartup.maxItems", 3),
        ("ctx.webStartup.nothing", UNDEFINED),
        ("ctx.get('nothing')?.x", UNDEFINED),
        ("ctx.get('table').a.b", 1),
        ("ctx.table.a['b']", 1),
    ],
)
def test_expressions_have_the_values_javascript_gives_them(source: str, expected: Any) -> None:
    value = run(source)
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize(
    ("source", "special"),
    [
        ("0 / 0", math.isnan),
        ("1 / 0", lambda v: v == math.inf),
        ("Number('x')", math.isnan),
        ("Number([1, 2])", math.isnan),
    ],
)
def test_arithmetic_has_no_exceptions(source: str, special: Callable[[float], bool]) -> None:
    assert special(run(source))


def test_a_disabled_expression_uses_javascript_truth() -> None:
    assert is_true(Expr("process.env.NAME"), make_scope())
    assert not is_true(Expr("process.env.MISSING"), make_scope())
    assert is_true(Expr("[]"), make_scope())


@pytest.mark.parametrize(
    ("source", "column", "problem"),
    [
        ("1 +", 4, "ends too early"),
        ("1 2", 3, "unexpected '2'"),
        ("a = 1", 3, "unsupported character '='"),
        ("x => 1", 3, "unsupported character"),
        ("typeof x", 1, "'typeof' is not supported"),
        ("function () {}", 1, "'function' is not supported"),
        ("this.x", 1, "'this' is not supported"),
        ("import('os')", 1, "'import' is not supported"),
        ("new Date()", 1, "only new URL"),
        ("a ?? b || c", 3, "needs parentheses"),
        ("a && b ?? c", 8, "needs parentheses"),
        ("a ?? b && c", 3, "needs parentheses"),
        ("'open", 1, "unterminated string"),
        ("`open ${1}", 1, "unterminated template"),
        ("tag`x`", 4, "tagged templates"),
        ("010", 1, "octal"),
        ("\u0661 + 1", 1, "unsupported character"),
        ("1px", 2, "number must not run into a name"),
        ("[1, 2", 6, "expected ']', found the end"),
        ("null.x", 6, "cannot read 'x' of null"),
        ("process.env.MISSING.x", 21, "cannot read 'x' of undefined"),
        ("nope.x", 1, "'nope' cannot be read here"),
        ("'a'.format('b')", 11, "not a function"),
        ("[1].map(1)", 8, "not a function"),
        ("ctx.webStartup.method", 16, "is code"),
        ("ctx.webStartup.method()", 16, "is code"),
        ("dshHomePath", 1, "code is not a value"),
        ("process.env", 1, "code is not a value"),
        ("process.getBuiltinModule('node:fs')", 25, "node:url"),
        ("JSON.parse('{')", 11, "invalid JSON"),
        ("{} + 1", 4, "+ takes numbers and texts"),
        ("String({})", 7, "no text"),
        ("dshHomePath(1)", 12, "takes texts"),
        ("Number(1, 2)", 7, "unusable arguments"),
    ],
)
def test_what_is_unsupported_is_refused_with_its_column(
    source: str, column: int, problem: str
) -> None:
    with pytest.raises(ExprError) as caught:
        run(source)
    assert problem in caught.value.problem
    assert (caught.value.column, caught.value.source) == (column, source)
    assert f"column {column}" in str(caught.value)


@pytest.mark.parametrize(
    "source",
    [
        "_x",
        "ctx._x",
        "ctx.webStartup._secret",
        "ctx.webStartup.__class__",
        "ctx.webStartup['_' + 'secret']",
        "ctx['__class__']",
        "''['__class__']",
        "[]['__class__']",
        "table._x",
        "process.env._",
        "process.__init__",
        "Number.__call__",
        "JSON['__class__']",
        "(1)['__class__']",
        "dshHomePath['__globals__']",
        "`${ctx.webStartup}`.__class__",
        "ctx.webStartup[['_secret']]",
    ],
)
def test_private_names_are_out_of_reach(source: str) -> None:
    with pytest.raises(ExprError):
        run(source)


@pytest.mark.parametrize(
    "source",
    [
        "(" * 500 + "1" + ")" * 500,
        "[" * 500,
        "!" * 500 + "1",
        "-" * 500 + "1",
        "1?" * 500 + "1",
        "`${" * 500,
        "a[" * 500,
        "x" * (MAX_SOURCE + 1),
    ],
)
def test_bounds_hold(source: str) -> None:
    with pytest.raises(ExprError):
        run(source)


def test_long_flat_expressions_are_fine() -> None:
    assert run("+".join(["1"] * 2000)) == 2000
    assert run("!" * 20 + "1") is True


def test_texts_and_arrays_are_bounded() -> None:
    SERVICES["long"] = "x" * 900_000
    try:
        with pytest.raises(ExprError, match="longer than"):
            run("long + long")
        with pytest.raises(ExprError, match="longer than"):
            run("`${long}${long}`")
        with pytest.raises(ExprError, match="more than"):
            run("long.split('')")
        with pytest.raises(ExprError, match="longer than"):
            run("[long, long].join()")
    finally:
        del SERVICES["long"]


def test_an_error_never_shows_a_value_it_read() -> None:
    SERVICES["secretText"] = "sk-very-secret"
    try:
        with pytest.raises(ExprError) as caught:
            run("JSON.parse(secretText)")
    finally:
        del SERVICES["secretText"]
    assert "sk-very-secret" not in str(caught.value)


WORDS = """
    ctx process env webStartup table _secret __class__ '_' 'x' 1 0 ( ) [ ] { } . ?. ?? && || ! - +
    * / % === == < > ? : , ` ${ } new URL JSON parse stringify Number String null undefined
    '__class__' baseUrl dshHomePath get join split length
"""
PIECES = st.sampled_from(WORDS.split())


@settings(max_examples=400, deadline=2000)
@given(st.lists(PIECES, max_size=25).map(" ".join) | st.text(max_size=60))
def test_no_input_escapes_hangs_or_fails_otherwise(source: str) -> None:
    try:
        value = run(source)
    except ExprError as error:
        column = error.column
        shown = ""
    else:
        column = 1
        shown = repr(value)
    assert 1 <= column <= len(source) + 2
    assert "<class" not in shown
    assert "built-in" not in shown


NAMES = st.text(st.characters(categories=["L", "N"], include_characters="_$"), max_size=8)


@settings(max_examples=300, deadline=2000)
@given(NAMES, st.sampled_from(["ctx.{}", "ctx['{}']", "table.{}", "webStartup['{}']", "'x'['{}']"]))
def test_no_spelling_reaches_an_underscore(name: str, form: str) -> None:
    with pytest.raises(ExprError):
        run(form.format("_" + name))


def test_python_machinery_is_closed_even_without_underscores() -> None:
    def generator() -> Any:
        yield 1

    running = generator()
    SERVICES["leaky"] = {"gen": running, "cls": Startup, "mod": math, "fn": len}
    try:
        for member in SERVICES["leaky"]:
            with pytest.raises(ExprError, match="is code"):
                run(f"leaky.{member}")
    finally:
        del SERVICES["leaky"]
        running.close()
