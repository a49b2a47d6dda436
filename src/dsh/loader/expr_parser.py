"""Parse an expression to its syntax tree; what the grammar lacks is refused with its column."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, NoReturn

from dsh.loader import expr_ast as ast
from dsh.loader.errors import ExprError
from dsh.loader.expr_lexer import Hole, Token, tokenize
from dsh.loader.expr_values import UNDEFINED

MAX_DEPTH: Final = 40
"""How deep expressions may nest."""

_LITERALS: Final = {
    "true": True,
    "false": False,
    "null": None,
    "undefined": UNDEFINED,
    "NaN": float("nan"),
    "Infinity": float("inf"),
}
_KEYWORD_NAMES: Final = """
    async await break case catch class const continue debugger default delete do else enum export
    extends finally for function if import in instanceof let return super switch this throw try
    typeof var void while with yield
"""
_KEYWORDS: Final = frozenset(_KEYWORD_NAMES.split())
_PRECEDENCE: Final = {
    "??": 1, "||": 1, "&&": 2,
    "===": 3, "!==": 3, "==": 3, "!=": 3,
    "<": 4, ">": 4, "<=": 4, ">=": 4,
    "+": 5, "-": 5, "*": 6, "/": 6, "%": 6,
}  # fmt: skip


@lru_cache(maxsize=512)
def parse(source: str) -> Any:
    """Return the syntax tree of one expression.

    Raises:
        ExprError: it is empty, not an expression, or uses unsupported syntax; has the column.
    """
    parser = _Parser(source, tokenize(source), depth=0)
    tree = parser.expression()
    parser.expect_end()
    return tree


class _Parser:
    """Recursive descent over tokens, bounded in depth."""

    def __init__(self, source: str, tokens: list[Token], *, depth: int) -> None:
        self._source = source
        self._tokens = tokens
        self._here = 0
        self._depth = depth

    def expression(self) -> Any:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self._refuse("the expression is nested too deeply", self._peek())
        test = self._binary(1)
        if (mark := self._take("?")) is not None:
            then = self.expression()
            self._expect(":")
            test = ast.Conditional(test, then, self.expression(), mark.at)
        self._depth -= 1
        return test

    def expect_end(self) -> None:
        token = self._peek()
        if token.kind != "end":
            self._unexpected(token)

    def _binary(self, least: int) -> Any:
        first = self._unary()
        at = self._peek().at
        rest: list[tuple[str, Any, int]] = []
        while (strength := self._strength()) >= least:
            token = self._next()
            rest.append((token.value, self._binary(strength + 1), token.at))
        self._check_mix(rest)
        return ast.Fold(first, tuple(rest), at) if rest else first

    def _strength(self) -> int:
        token = self._peek()
        return _PRECEDENCE.get(token.value, 0) if token.kind == "punctuation" else 0

    def _check_mix(self, rest: list[tuple[str, Any, int]]) -> None:
        """Refuse ``a ?? b || c``: JavaScript does, because its reading is anyone's guess."""
        marks = {mark for mark, _, _ in rest}
        if "??" not in marks:
            return
        for _, operand, _ in rest:
            if isinstance(operand, ast.Fold):
                marks.update(mark for mark, _, _ in operand.rest)
        if marks & {"||", "&&"}:
            at = next(at for mark, _, at in rest if mark == "??")
            raise ExprError("?? needs parentheses beside || or &&", self._source, at + 1)

    def _unary(self) -> Any:
        marks: list[Token] = []
        while (token := self._peek()).kind == "punctuation" and token.value in {"!", "-", "+"}:
            marks.append(self._next())
            if len(marks) > MAX_DEPTH:
                self._refuse("the expression is nested too deeply", token)
        value = self._postfix()
        for mark in reversed(marks):
            value = ast.Unary(mark.value, value, mark.at)
        return value

    def _postfix(self) -> Any:
        at = self._peek().at
        base = self._primary()
        links: list[ast.Link] = []
        while (link := self._link()) is not None:
            links.append(link)
        return ast.Chain(base, tuple(links), at) if links else base

    def _link(self) -> ast.Link | None:
        token = self._peek()
        if token.kind == "template":
            self._refuse("tagged templates are not supported", token)
        if self._take("?.") is not None:
            if self._at("(") or self._at("["):
                return self._bracket(optional=True)
            return self._member(optional=True)
        if self._take(".") is not None:
            return self._member(optional=False)
        return self._bracket(optional=False) if self._at("(") or self._at("[") else None

    def _member(self, *, optional: bool) -> ast.Link:
        token = self._next()
        if token.kind != "name":
            self._unexpected(token)
        return ast.Link("member", token.value, optional, token.at)

    def _bracket(self, *, optional: bool) -> ast.Link:
        token = self._next()
        if token.value == "(":
            return ast.Link("call", self._items(")"), optional, token.at)
        key = self.expression()
        self._expect("]")
        return ast.Link("index", key, optional, token.at)

    def _items(self, closer: str) -> tuple[Any, ...]:
        items: list[Any] = []
        while self._take(closer) is None:
            items.append(self.expression())
            if self._take(",") is None:
                self._expect(closer)
                break
        return tuple(items)

    def _primary(self) -> Any:
        token = self._next()
        if token.kind in {"number", "string"}:
            return ast.Literal(token.value, token.at)
        if token.kind == "template":
            return self._template(token)
        if token.kind == "name":
            return self._name(token)
        if token.value == "(" and token.kind == "punctuation":
            inner = self.expression()
            self._expect(")")
            # A chain of one keeps `(a ?? b) || c` apart from the mix that is refused.
            return ast.Chain(inner, (), token.at)
        if token.value == "[" and token.kind == "punctuation":
            return ast.Array(self._items("]"), token.at)
        if token.value != "{" or token.kind != "punctuation":
            self._unexpected(token)
        return self._object(token)

    def _name(self, token: Token) -> Any:
        if token.value in _LITERALS:
            return ast.Literal(_LITERALS[token.value], token.at)
        if token.value == "new":
            return self._new(token)
        if token.value in _KEYWORDS:
            self._refuse(f"{token.value!r} is not supported", token)
        return ast.Name(token.value, token.at)

    def _new(self, token: Token) -> Any:
        name = self._next()
        if name.kind != "name":
            self._unexpected(name)
        self._expect("(")
        return ast.New(name.value, self._items(")"), token.at)

    def _object(self, start: Token) -> Any:
        items: list[tuple[Any, Any]] = []
        while self._take("}") is None:
            items.append(self._property())
            if self._take(",") is None:
                self._expect("}")
                break
        return ast.Object(tuple(items), start.at)

    def _property(self) -> tuple[Any, Any]:
        token = self._next()
        if token.kind == "punctuation" and token.value == "[":
            key = self.expression()
            self._expect("]")
        elif token.kind in {"name", "string", "number"}:
            key = ast.Literal(str(token.value), token.at)
            if token.kind == "name" and (self._at(",") or self._at("}")):
                return key, self._name(token)
        else:
            self._unexpected(token)
        self._expect(":")
        return key, self.expression()

    def _template(self, token: Token) -> Any:
        parts: list[Any] = []
        for part in token.value:
            if isinstance(part, Hole):
                tokens = tokenize(self._source, part.at, part.at + len(part.source))
                inner = _Parser(self._source, tokens, depth=self._depth)
                parts.append(inner.expression())
                inner.expect_end()
            else:
                parts.append(ast.Literal(part, token.at))
        return ast.Template(tuple(parts), token.at)

    def _peek(self) -> Token:
        return self._tokens[self._here]

    def _next(self) -> Token:
        token = self._tokens[self._here]
        self._here = min(self._here + 1, len(self._tokens) - 1)
        return token

    def _at(self, mark: str) -> bool:
        token = self._peek()
        return token.kind == "punctuation" and token.value == mark

    def _take(self, mark: str) -> Token | None:
        return self._next() if self._at(mark) else None

    def _expect(self, mark: str) -> None:
        if self._take(mark) is None:
            token = self._peek()
            found = "the end" if token.kind == "end" else repr(str(token.value))
            self._refuse(f"expected {mark!r}, found {found}", token)

    def _unexpected(self, token: Token) -> NoReturn:
        if token.kind == "end":
            self._refuse("the expression ends too early", token)
        self._refuse(f"unexpected {str(token.value)[:40]!r}", token)

    def _refuse(self, problem: str, token: Token) -> NoReturn:
        raise ExprError(problem, self._source, token.at + 1)
