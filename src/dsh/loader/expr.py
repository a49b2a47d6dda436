"""The expression node that configuration carries until a row activates."""

from __future__ import annotations

from typing import Any, Final

JS_TAG: Final = "tag:yaml.org,2002:js"
"""The YAML tag of an expression; written ``!!js``."""

JSON_KEY: Final = "__jsExpr"
"""The one key of an expression's JSON form."""


class Expr:
    """An expression as configuration spells it, not evaluated.

    Immutable: copies of a tree may share it.
    """

    __slots__ = ("source",)

    source: str

    def __init__(self, source: str) -> None:
        object.__setattr__(self, "source", source)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("an expression does not change")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expr) and other.source == self.source

    def __hash__(self) -> int:
        return hash((JSON_KEY, self.source))

    def __repr__(self) -> str:
        return f"Expr({self.source!r})"

    def __copy__(self) -> Expr:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Expr:
        return self

    def __reduce__(self) -> tuple[type[Expr], tuple[str]]:
        return Expr, (self.source,)

    def to_json(self) -> dict[str, str]:
        """Return the form that JSON documents carry."""
        return {JSON_KEY: self.source}


def find_expr(value: object, path: str) -> str | None:
    """Return where a configuration value contains an expression first, or None.

    Args:
        value: Plain data.
        path: How the place of the value itself is written.
    """
    if isinstance(value, Expr):
        return path
    items: list[tuple[str, object]] = []
    if isinstance(value, dict):
        items = [(f"{path}.{key}", item) for key, item in value.items()]
    elif isinstance(value, (list, tuple)):
        items = [(f"{path}[{number}]", item) for number, item in enumerate(value)]
    return next((found for at, item in items if (found := find_expr(item, at))), None)


def holds_expr(value: object) -> bool:
    """Tell whether a configuration value contains an expression anywhere."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, Expr):
            return True
        if isinstance(item, dict):
            stack.extend(item.values())
        elif isinstance(item, (list, tuple)):
            stack.extend(item)
    return False


def detach(value: Any) -> Any:
    """Return a copy of plain configuration data that shares no container with it."""
    if isinstance(value, dict):
        return {key: detach(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [detach(item) for item in value]
    return value
